"""Measure what checkpoints cost: the stall of the loop, and the start of a run that continues.

The default job (MiniLM on docstrings) runs in turns without checkpoints and with one per interval,
written in the background. Then the time until the first step of a resumed run is compared with that
of a fresh one.

    python benchmarks/checkpoints.py --steps 600 --turns 3 --out results/checkpoints.json

Targets: the loop loses less than 2 % with one checkpoint per minute; a resume starts within three
seconds of a fresh start.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
POLL_SECONDS = 0.01
LIMIT = ("--checkpoint_total_limit", "2")


def command(folder: Path, *flags: str) -> list[str]:
    """Return the command of a run."""
    return [sys.executable, "recipes/classify.py", "--output_dir", str(folder), *flags]


def run(folder: Path, *flags: str) -> dict[str, Any]:
    """Run to the end; return its record."""
    subprocess.run(command(folder, *flags), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    record: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return record


def seconds_until(rows: int, folder: Path, *flags: str) -> float:
    """Start a run; return the seconds until its history has `rows` rows, and kill it."""
    history = folder / "history.jsonl"
    started = time.perf_counter()
    process = subprocess.Popen(command(folder, *flags), cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        while not history.exists() or history.read_bytes().count(b"\n") < rows:
            if process.poll() is not None:
                raise RuntimeError(f"the run ended with exit code {process.returncode}")
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - started
    finally:
        process.kill()
        process.wait()


def measure_loop(root: Path, turn: int, interval: str, flags: list[str]) -> dict[str, float]:
    """Return what checkpoints cost in one turn, as shares of the loop's time."""
    plain = run(root / f"plain-{turn}", *flags)["timings"]
    saving = ("--checkpointing_steps", interval, "--async_checkpoints")
    record = run(root / f"saving-{turn}", *flags, *saving, *LIMIT)["timings"]
    loop = record["training_seconds"] + record["checkpoint_seconds"]
    return {
        "plain_seconds": plain["training_seconds"],
        "loop_seconds": loop,
        "stall_share": record["checkpoint_seconds"] / loop,
        "slowdown": loop / plain["training_seconds"] - 1,
    }


def measure_start(root: Path, turn: int, flags: list[str]) -> dict[str, float]:
    """Return the seconds from the start of the process to its first step, fresh and resumed."""
    folder = root / f"start-{turn}"
    fresh = seconds_until(1, root / f"fresh-{turn}", *flags)
    seconds_until(3, folder, *flags, "--checkpointing_steps", "1", *LIMIT)  # after 1 and 2
    checkpoint = ("--resume_from_checkpoint", str(folder / "checkpoints" / "step-2"))
    resumed = seconds_until(3, root / f"resumed-{turn}", *flags, *checkpoint)
    return {"fresh_seconds": fresh, "resumed_seconds": resumed, "difference": resumed - fresh}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="optimizer steps of each run")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--interval", default="1min", help="as for --checkpointing_steps")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    flags = ["--max_train_steps", str(args.steps)]
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        loops = [measure_loop(root, turn, args.interval, flags) for turn in range(args.turns)]
        starts = [measure_start(root, turn, flags) for turn in range(args.turns)]
    medians = {
        key: statistics.median(part[key] for part in parts)
        for parts in (loops, starts)
        for key in parts[0]
    }
    for key, value in medians.items():
        print(f"{key:<16} {value:.4f}")
    if args.out is not None:
        result = {**provenance(), "interval": args.interval, "loops": loops, "starts": starts}
        args.out.write_text(json.dumps({**result, "medians": medians}, indent=2) + "\n")


if __name__ == "__main__":
    main()
