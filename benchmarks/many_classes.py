"""Time a training with 5,000 classes from start to end, beside its loop, and weigh its report.

    python benchmarks/many_classes.py --out benchmarks/results/many-classes.json

Targets: the whole run, with imports, tokens, evaluation and report, takes at most 1.2 times the
time of the training loop, and report.json has less than 5 MB.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from provenance import provenance

ROOT = Path(__file__).resolve().parent.parent


def write_rows(path: Path, classes: int, per_class: int) -> None:
    """Write texts of ten words, two of which name the class."""
    generator = random.Random(0)
    words = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    names = [f"{first} {second}" for first in words for second in words]
    names += [f"{name} {last}" for name in names for last in words][: classes - len(names)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for name in names[:classes] * per_class:
            others = generator.choices(words, k=8)
            writer.writerow([f"{name} {' '.join(others)}", f"class {name}"])


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--classes", type=int, default=5000)
    parser.add_argument("--per_class", type=int, default=5, help="rows of each class")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--mode", default="bf16")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder / "rows.csv", args.classes, args.per_class)
        command = [sys.executable, "recipes/classify.py", "--mixed_precision", args.mode]
        command += ["--train_file", f"{folder}/rows.csv", "--output_dir", f"{folder}/run"]
        command += ["--num_train_epochs", str(args.epochs), "--per_device_train_batch_size", "16"]
        started = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
        record = json.loads((folder / "run" / "run.json").read_text())
        size = (folder / "run" / "report.json").stat().st_size
    training = record["timings"]["training_seconds"]
    result = {
        **provenance(),
        "classes": args.classes,
        "total_seconds": seconds,
        "training_seconds": training,
        "ratio": seconds / training,
        "report_megabytes": size / 1e6,
    }
    print(json.dumps(result, indent=2))
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
