"""Measure what `--watch N` costs: the time of the training with and without it, side by side.

The default job (MiniLM on docstrings) runs in turns without the watch, with one watched step in N,
and with every step watched. Without the flag no hook is registered and no operation is added
(`tests/training/test_range_watch.py`), so that only runs with it are compared with runs without it.

    python benchmarks/watch_cost.py --steps 600 --turns 3 --out results/watch-cost.json

Target: less than 3 % of the time with N = 50.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from provenance import provenance

ROOT = Path(__file__).resolve().parent.parent


def training_seconds(folder: Path, *flags: str) -> float:
    """Run to the end; return the seconds of all optimizer steps."""
    command = [sys.executable, "recipes/classify.py", "--output_dir", str(folder), *flags]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    record: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    return float(record["timings"]["training_seconds"])


def measure_turn(root: Path, turn: int, every: int, flags: list[str]) -> dict[str, float]:
    """Return the time with the watch over that without it, in one turn."""
    plain = training_seconds(root / f"plain-{turn}", *flags)
    watched = training_seconds(root / f"watched-{turn}", *flags, "--watch", str(every))
    always = training_seconds(root / f"always-{turn}", *flags, "--watch", "1")
    return {
        "plain_seconds": plain,
        "watched_ratio": watched / plain,
        "every_step_ratio": always / plain,
        # Free of the noise between runs that is larger than a watched step in N.
        "predicted_ratio": 1 + (always / plain - 1) / every,
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="optimizer steps of each run")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--every", type=int, default=50, help="N of --watch")
    parser.add_argument("--mixed_precision", default="fp16")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    flags = ["--max_train_steps", str(args.steps), "--mixed_precision", args.mixed_precision]
    with tempfile.TemporaryDirectory() as name:
        turns = [measure_turn(Path(name), i, args.every, flags) for i in range(args.turns)]
    medians = {key: statistics.median(turn[key] for turn in turns) for key in turns[0]}
    for key, value in medians.items():
        print(f"{key:<17} {value:.4f}")
    if args.out is not None:
        settings = {"steps": args.steps, "every": args.every, "mode": args.mixed_precision}
        result = {**provenance(), **settings, "turns": turns, "medians": medians}
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
