"""Measure how time and memory of a run grow with the data: twice the examples, and a million rows.

Each row is a docstring followed by a number, so that all rows differ. Time: an epoch over 2N
examples, run between two epochs over N, so that drift of the machine affects both alike; only
optimizer steps count. Memory: a few steps with few rows and with many, each in its own process,
with the same model and number of steps.

    python benchmarks/scaling.py --out scaling.json
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from provenance import provenance

from ampft.data.load import load_data
from ampft.data.request import DataRequest

ROOT = Path(__file__).resolve().parent.parent
CLASSES = 4


def write_rows(path: Path, texts: list[str], count: int) -> None:
    """Write a CSV file of `count` rows."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for number, text in enumerate(islice(cycle(texts), count)):
            rows.writerow([f"{text} {number}", f"class {number % CLASSES}"])


def run(train: Path, test: Path, folder: Path, *flags: str) -> dict[str, Any]:
    """Train on `train` and return the run record."""
    with tempfile.TemporaryDirectory(dir=folder) as output:
        # All runs evaluate the same file, once, so that evaluation costs the same in each.
        files = [f"--train_file={train}", f"--validation_file={test}", f"--test_file={test}"]
        subprocess.run(
            [
                *(sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"),
                *(str(ROOT / "recipes" / "classify.py"), *files, *flags, "--max_seq_length=64"),
                *("--no-load_best_model_at_end", f"--output_dir={output}"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"HF_HOME": output},
        )
        return json.loads(Path(output, "run.json").read_text(encoding="utf-8"))


def main() -> None:
    """Measure time and memory, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--examples", type=int, default=3200, help="N of the time measurement")
    parser.add_argument("--turns", type=int, default=3, help="repetitions of the time measurement")
    parser.add_argument("--few", type=int, default=10_000, help="rows of the small run")
    parser.add_argument("--many", type=int, default=1_000_000, help="rows of the large run")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the results")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    data = load_data(DataRequest(dataset_name="stdlib"))
    texts = list(data.splits["train"]["text"])
    seconds: dict[int, list[float]] = {args.examples: [], 2 * args.examples: []}
    peaks: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "test.csv", texts, 64)
        for count in {*seconds, args.few, args.many}:
            write_rows(folder / f"{count}.csv", texts, count)
        for _ in range(args.turns):
            for count in (args.examples, 2 * args.examples, args.examples):
                record = run(
                    folder / f"{count}.csv", folder / "test.csv", folder, "--num_train_epochs=1"
                )
                seconds[count].append(record["timings"]["training_seconds"])
                print(f"{count:,} examples: {seconds[count][-1]:.2f} s", flush=True)
        for count in (args.few, args.many):
            record = run(
                folder / f"{count}.csv", folder / "test.csv", folder, "--max_train_steps=10"
            )
            peaks[count] = record["memory"]["peak"]
            print(f"{count:,} rows: peak {peaks[count] / 1e6:.0f} MB", flush=True)
    single, double = seconds.values()
    ratios = [
        2 * time / (before + after)
        for before, time, after in zip(single[0::2], double, single[1::2], strict=True)
    ]
    result = {
        "examples": args.examples,
        "training_seconds": {str(count): values for count, values in seconds.items()},
        "time_of_twice_the_examples": statistics.median(ratios),
        "time_of_twice_the_examples_range": [min(ratios), max(ratios)],
        "peak_bytes": {str(count): peak for count, peak in peaks.items()},
        "more_memory_of_many_rows_bytes": peaks[args.many] - peaks[args.few],
        **provenance(),
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"twice the examples take {statistics.median(ratios):.3f} times as long")


if __name__ == "__main__":
    main()
