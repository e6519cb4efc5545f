"""Measure time and memory of `ampft compare` on many runs, from predictions on disk to reports.

Writes run folders with synthetic predictions through ampft's own writers, runs `ampft compare` on
them in a fresh process on one core, and measures the time and the peak resident set.

    python benchmarks/comparison_scale.py --examples 10000
    python benchmarks/comparison_scale.py --examples 1000000 --out scale.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from provenance import provenance

from ampft.features.resources import PeakMemory
from ampft.machine import hardware
from ampft.runs.folder import RunFolder
from ampft.runs.predictions import write_predictions
from ampft.runs.record import (
    DataPart,
    ModelPart,
    PrecisionPart,
    RunRecord,
    StepsPart,
    TopologyPart,
    write_record,
)
from ampft.tasks.single_label import Predictions

ARMS = ("fp32", "placebo", "bf16", "fp16")
STEPS = 2000
# Runs `ampft` and writes the peak resident set of the process, in bytes, to a file.
AMPFT_SCRIPT = """
import sys
from ampft.cli import main
from ampft.machine import resident_peak
code = main(sys.argv[2:])
open(sys.argv[1], "w").write(str(resident_peak()))
sys.exit(code)
"""


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


def synthetic_predictions(
    seed: int, noise: str, labels: np.ndarray, base_logits: np.ndarray, names: list[str]
) -> Predictions:
    """Return predictions with an accuracy of about 90 %.

    Args:
        seed: Seed of the run; runs of one seed share most of their errors.
        noise: Name of the noise added for the arm; about 4 % of predictions differ between names.
        labels: Shape (n,), class indices.
        base_logits: Shape (n, K), shared by all runs.
        names: The K class names.
    """
    rng = np.random.default_rng([seed, *noise.encode()])
    shift = np.random.default_rng(seed).normal(0, 0.5, base_logits.shape).astype(np.float32)
    logits = base_logits + shift + rng.normal(0, 0.2, base_logits.shape).astype(np.float32)
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return Predictions(np.arange(len(labels)), labels, probabilities, tuple(names), "test")


def write_runs(parent: Path, examples: int, classes: int, seeds: int) -> list[Path]:
    """Write a run folder per arm and seed; 16-bit modes also predict in float32."""
    rng = np.random.default_rng(0)
    names = [f"class {k}" for k in range(classes)]
    labels = rng.integers(0, classes, examples)
    base_logits = rng.normal(0, 1, (examples, classes)).astype(np.float32)
    base_logits[np.arange(examples), labels] += 4
    texts = [f"The text of an example, which has this number: {i}." for i in range(examples)]
    history = "".join(
        json.dumps({"step": k, "loss": 1 / k, "loss_scale": None, "skipped": False}) + "\n"
        for k in range(1, STEPS + 1)
    )
    folders = []
    for seed in range(seeds):
        for arm in ARMS:
            with RunFolder(parent / f"{arm}-seed{seed}") as folder:
                files = {"predictions.parquet": arm}
                if arm in ("bf16", "fp16"):
                    files["predictions_fp32.parquet"] = f"{arm} in fp32"
                for name, noise in files.items():
                    predictions = synthetic_predictions(seed, noise, labels, base_logits, names)
                    write_predictions(
                        folder / name, predictions, lambda rows: {"text": texts[rows]}
                    )
                folder.write_text("history.jsonl", history)
                write_record(folder, record(arm, seed, examples, names))
                folders.append(folder.path)
    return folders


def measure(folders: list[Path], target: Path) -> dict[str, float]:
    """Compare in a fresh process on one core; return its seconds and its peak memory in bytes."""
    peak = target / "peak.txt"
    command = [sys.executable, "-c", AMPFT_SCRIPT, str(peak), "compare", *map(str, folders)]
    started = time.perf_counter()
    subprocess.run(
        [*command, f"--output_dir={target / 'comparison'}"],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    )
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_memory_bytes": float(peak.read_text(encoding="ascii"))}


def main() -> None:
    """Write the runs, compare them, and print time and memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--examples", type=int, default=10_000, help="examples in the test split")
    parser.add_argument("--classes", type=int, default=20, help="number of classes")
    parser.add_argument("--seeds", type=int, default=5, help=f"runs of each of {', '.join(ARMS)}")
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder, "runs")
        folders = write_runs(runs, args.examples, args.classes, args.seeds)
        measured = measure(folders, Path(folder))
    result = {
        **provenance(),
        "runs": len(folders),
        "examples": args.examples,
        "classes": args.classes,
        **measured,
    }
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(
        f"{len(folders)} runs x {args.examples:,} examples x {args.classes} classes: "
        f"{measured['seconds']:.1f} s, peak memory {measured['peak_memory_bytes'] / 2**30:.2f} GiB"
    )


if __name__ == "__main__":
    main()
