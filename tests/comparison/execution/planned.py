"""A plan and an estimate for tests."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from record_fixtures import record_of

from ampft.comparison.execution.comparison_folder import run_folder
from ampft.comparison.execution.plan import (
    CostEstimate,
    ModeCost,
    Plan,
    PlannedRun,
    TrainingSize,
    set_by_flags,
)
from ampft.comparison.settings import ComparisonDesign
from ampft.files import hashed_text

SIZE = TrainingSize(epochs=5, train_examples=1642)
ESTIMATE = CostEstimate(
    startup=9.0,
    modes={
        "fp32": ModeCost(step=0.15, evaluated_example=0.004),
        "bf16": ModeCost(step=0.1, evaluated_example=0.002),
    },
    executions={"fp32": "native", "bf16": "native"},
    device="CPU, 2 threads",
    size=SIZE,
    effective_batch_size=16,
    validation_examples=251,
    final_examples=648,
    classes=12,
    model_bytes=90_000_000,
)


def plan(**changes: object) -> Plan:
    """Return a plan of fp32, its placebo and bf16 with seeds 42 to 44."""
    design = ComparisonDesign(
        modes=("fp32", "bf16"), arm_settings=(), first_seed=42, metric="accuracy", margin=0.01,
        placebo=True, config_file=None, budget=None, select_seeds=0, seed_counts=(3,),
    )  # fmt: skip
    names = {each.name for each in fields(ComparisonDesign)}
    of_design = {name: value for name, value in changes.items() if name in names}
    result = Plan(
        design=replace(design, **of_design),
        arguments={"seed": 42, "learning_rate": 1e-3}, estimate=ESTIMATE, size=SIZE,
    )  # fmt: skip
    return replace(result, **{k: v for k, v in changes.items() if k not in names})


def write_record(folder: Path, run: PlannedRun, **parts: object) -> None:
    """Write the record of a finished run, with the settings that its flags set."""
    record = record_of()
    record = replace(
        record,
        arguments={**record.arguments, "perturb_initial_weights": False, **set_by_flags(run.flags)},
        **parts,
    )
    place = run_folder(folder, run)
    place.mkdir(parents=True)
    (place / "run.json").write_text(hashed_text(record))
