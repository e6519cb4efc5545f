"""Time and memory of comparing many runs: statistics, reports and all, from predictions on disk.

Writes run folders with made-up answers through ampft's own writers, then runs `ampft compare` on
them in a fresh process on one core, and reads its time and the highest resident set that it had.

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

from ampft.machine import hardware
from ampft.runs.folder import RunFolder
from ampft.runs.memory import PeakMemory
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
# The door, and then what the kernel says of this process.
DOOR = """
import sys
from ampft.cli import main
from ampft.runs.memory import resident_peak
code = main(sys.argv[2:])
open(sys.argv[1], "w").write(str(resident_peak()))
sys.exit(code)
"""


def record(arm: str, seed: int, examples: int, names: list[str]) -> RunRecord:
    """Return the record of a run of which nothing but its answers is of interest."""
    mode = "fp32" if arm == "placebo" else arm
    return RunRecord(
        status="finished",
        arguments={"seed": seed, "mixed_precision": mode, "learning_rate": 5e-5},
        command=["recipes/classify.py"],
        task="text",
        label_names=names,
        data=DataPart(
            name="made up",
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
        memory=PeakMemory(peak=2**30, baseline=2**28, reserved=None, protocol="made up"),
        metrics={"split": "test"},
        hardware=hardware(),
    )


def answers(
    seed: int, arm: str, labels: np.ndarray, evidence: np.ndarray, names: list[str]
) -> Predictions:
    """Return predictions that are right nine times in ten; arms differ in about 4 % of them."""
    rng = np.random.default_rng([seed, *arm.encode()])
    shift = np.random.default_rng(seed).normal(0, 0.5, evidence.shape).astype(np.float32)
    logits = evidence + shift + rng.normal(0, 0.2, evidence.shape).astype(np.float32)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    return Predictions(np.arange(len(labels)), labels, shares, tuple(names), "test")


def write_runs(parent: Path, examples: int, classes: int, seeds: int) -> list[Path]:
    """Write a folder for each arm and seed, with predictions in fp32 for 16-bit modes too."""
    rng = np.random.default_rng(0)
    names = [f"class {k}" for k in range(classes)]
    labels = rng.integers(0, classes, examples)
    evidence = rng.normal(0, 1, (examples, classes)).astype(np.float32)
    evidence[np.arange(examples), labels] += 4
    texts = [f"The text of an example, which has this number: {i}." for i in range(examples)]
    history = "".join(
        json.dumps({"step": k, "loss": 1 / k, "loss_scale": None, "skipped": False}) + "\n"
        for k in range(1, STEPS + 1)
    )
    folders = []
    for seed in range(seeds):
        for arm in ARMS:
            with RunFolder(parent / f"{arm}-seed{seed}") as folder:
                kept = {"predictions.parquet": arm}
                if arm in ("bf16", "fp16"):
                    kept["predictions_fp32.parquet"] = f"{arm} in fp32"
                for name, stream in kept.items():
                    predictions = answers(seed, stream, labels, evidence, names)
                    write_predictions(
                        folder / name, predictions, lambda rows: {"text": texts[rows]}
                    )
                folder.write_text("history.jsonl", history)
                write_record(folder, record(arm, seed, examples, names))
                folders.append(folder.path)
    return folders


def measure(folders: list[Path], target: Path) -> dict[str, float]:
    """Compare in a fresh process on one core; return its seconds and its peak in bytes."""
    peak = target / "peak.txt"
    words = [sys.executable, "-c", DOOR, str(peak), "compare", *map(str, folders)]
    started = time.perf_counter()
    subprocess.run(
        [*words, f"--output_dir={target / 'comparison'}"],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
    )
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_memory_bytes": float(peak.read_text(encoding="ascii"))}


def main() -> None:
    """Write the runs, compare them, print time and memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--examples", type=int, default=10_000, help="of the test split")
    parser.add_argument("--classes", type=int, default=20, help="of the label map")
    parser.add_argument("--seeds", type=int, default=5, help=f"of each of {', '.join(ARMS)}")
    parser.add_argument("--out", type=Path, help="JSON file of the result")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder, "runs")
        folders = write_runs(runs, args.examples, args.classes, args.seeds)
        found = measure(folders, Path(folder))
    result = {
        **provenance(),
        "runs": len(folders),
        "examples": args.examples,
        "classes": args.classes,
        **found,
    }
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(
        f"{len(folders)} runs x {args.examples:,} examples x {args.classes} classes: "
        f"{found['seconds']:.1f} s, peak memory {found['peak_memory_bytes'] / 2**30:.2f} GiB"
    )


if __name__ == "__main__":
    main()
