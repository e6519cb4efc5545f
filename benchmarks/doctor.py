"""Measure the doctor: its time on the default job, and its memory beside that of a training.

`ampft doctor` examines MiniLM with the docstrings of the standard library in turns with a short
training in the same mode.

    python benchmarks/doctor.py --turns 3 --out benchmarks/results/doctor.json

Targets: less than 60 seconds on two cores, imports included, and at most twice the peak memory of
the training.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from provenance import provenance

ROOT = Path(__file__).resolve().parent.parent


def measure(*words: str) -> dict[str, float]:
    """Run a command to its end; return its seconds, and its peak resident set in MiB."""
    started = time.perf_counter()
    with subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with exit code {process.returncode}")
    return {"seconds": time.perf_counter() - started, "peak_mib": usage.ru_maxrss / 1024}


def turn(folder: Path, mode: str, steps: int, flags: list[str]) -> dict[str, dict[str, float]]:
    """Return time and memory of the doctor and of a training."""
    doctor = ("-m", "ampft", "doctor", "--mixed_precision", mode, "--output_dir", f"{folder}/d")
    training = ("recipes/classify.py", "--mixed_precision", mode, "--output_dir", f"{folder}/run")
    few = ("--max_train_steps", str(steps), "--max_eval_samples", "64")
    return {
        "doctor": measure(*doctor, "--", *flags),
        "training": measure(*training, *few, "--max_predict_samples", "64", *flags),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", default="fp16")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps of the training")
    parser.add_argument("--out", type=Path)
    args, flags = parser.parse_known_args()
    turns = []
    for _ in range(args.turns):
        with tempfile.TemporaryDirectory() as name:
            turns.append(turn(Path(name), args.mode, args.steps, flags))
    seconds = statistics.median(each["doctor"]["seconds"] for each in turns)
    ratios = [each["doctor"]["peak_mib"] / each["training"]["peak_mib"] for each in turns]
    medians = {"seconds": seconds, "memory_ratio": statistics.median(ratios)}
    print(f"doctor: {seconds:.1f} s, {medians['memory_ratio']:.2f} times the memory of a training")
    if args.out is not None:
        result = {**provenance(), "mode": args.mode, "turns": turns, "medians": medians}
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
