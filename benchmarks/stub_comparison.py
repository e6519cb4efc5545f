"""The record and the plan of a comparison of stubs, for `cluster_faults.py`."""

from __future__ import annotations

from ampft.comparison.execution.plan import CostEstimate, ModeCost, Plan, TrainingSize
from ampft.comparison.settings import parse_compare_arguments
from ampft.features.resources import PeakMemory
from ampft.machine import hardware
from ampft.runs.record import DataPart, ModelPart, PrecisionPart, RunRecord, StepsPart, TopologyPart

MODES = ("fp32", "bf16", "fp16")
EXAMPLES, CLASSES, STEPS = 300, 3, 2000


def record(arm: str, seed: int, examples: int, names: list[str]) -> RunRecord:
    """Return a run record that is valid; only the predictions of the run matter here."""
    mode = "fp32" if arm == "placebo" else arm
    return RunRecord(
        status="finished",
        arguments={"seed": seed, "mixed_precision": mode, "learning_rate": 5e-5},
        command=["recipes/classify.py"],
        task="text",
        label_names=names,
        data=DataPart(
            name="synthetic",
            kind="text",
            fingerprints={"test": "00" * 32},
            examples={"train": 1, "test": examples},
        ),
        model=ModelPart(
            name="none",
            architecture="None",
            parameters=1,
            trainable_parameters=1,
            initial_weights_sha256=f"{seed:064x}",
            perturbed=arm == "placebo",
        ),
        precision=PrecisionPart(requested=mode, resolved={"mode": mode, "execution": "native"}),
        topology=TopologyPart(num_processes=1, cpu_threads=1, device="cpu"),
        steps=StepsPart(total=STEPS, applied=STEPS, effective_batch_size=32),
        example_ids_sha256=f"{seed:064x}",
        timings={"step_seconds_median": 0.05 if mode == "bf16" else 0.1, "waiting_share": 0.01},
        memory=PeakMemory(peak=2**30, baseline=2**28, reserved=None, protocol="synthetic"),
        metrics={"split": "test"},
        hardware=hardware(),
    )


def plan_of(seeds: int, slots: int) -> tuple[Plan, list[str]]:
    """Return a plan of four arms, and the words of its command."""
    words = ["--jobs", str(slots), "--seeds", str(seeds), "--modes", ",".join(MODES), "--anyway"]
    command = parse_compare_arguments([*words, "--metric", "accuracy"])
    estimate = CostEstimate(
        startup=0.1,
        modes={mode: ModeCost(step=0.1, evaluated_example=0.001) for mode in MODES},
        executions=dict.fromkeys(MODES, "native"),
        device="CPU, 1 thread",
        size=TrainingSize(epochs=1, train_examples=100),
        effective_batch_size=10,
        validation_examples=0,
        final_examples=EXAMPLES,
        classes=CLASSES,
        model_bytes=1,
    )
    plan = Plan(design=command.design, arguments={}, estimate=estimate, size=estimate.size)
    return plan, words
