"""Measure which learning rate is a good default for a user's own data.

Each setting is a run of `recipes/classify.py` with its other defaults on a part of a data set. The
learning rate is chosen on the validation split; the test split says what the choice is worth. Runs
that are already in the results file are not repeated.

    python benchmarks/learning_rates.py --data_dir DATA --sizes 400,2000 --seeds 2 --out rates.json
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from cases import load_texts
from provenance import provenance

ROOT = Path(__file__).resolve().parent.parent
RATES = ("2e-5", "5e-5", "1e-4", "2e-4", "4e-4")
DATA_SETS = ("sst2", "trec", "mrpc", "goemotions", "docstrings")
# The same held-out rows for every size, so that results of the sizes can be compared.
VALIDATION_ROWS, TEST_ROWS = 300, 700

Rows = list[dict[str, str]]


def load_rows(name: str, data_dir: Path) -> Rows:
    """Return the training rows of a data set in a random order with a fixed seed."""
    rows = _goemotions(data_dir / name) if name == "goemotions" else _single_label(name, data_dir)
    random.Random(0).shuffle(rows)
    return rows


def _single_label(name: str, data_dir: Path) -> Rows:
    data = load_texts(name, data_dir)
    split = data.splits["train"]
    labels = split.features["label"].int2str(split["label"])
    columns = {column: split[column] for column in data.input_columns}
    names = [*columns, "label"]
    return [
        dict(zip(names, row, strict=True)) for row in zip(*columns.values(), labels, strict=True)
    ]


def _goemotions(folder: Path) -> Rows:
    labels = (folder / "labels.txt").read_text(encoding="utf-8").split()
    rows = []
    for line in (folder / "train.tsv").read_text(encoding="utf-8").splitlines():
        text, ids, _ = line.split("\t")
        rows.append(
            {"text": text, "label": ",".join(labels[int(index)] for index in ids.split(","))}
        )
    return rows


def write_splits(rows: Rows, size: int, folder: Path) -> list[str]:
    """Write three CSV files and return the flags that pass them to the recipe."""
    held_out = VALIDATION_ROWS + TEST_ROWS
    if len(rows) < held_out + size:
        raise ValueError(f"{size} + {held_out} rows were asked of {len(rows)}")
    splits = {
        "validation": rows[:VALIDATION_ROWS],
        "test": rows[VALIDATION_ROWS:held_out],
        "train": rows[held_out : held_out + size],
    }
    # A label that the training rows lack cannot be evaluated.
    known = {label for row in splits["train"] for label in row["label"].split(",")}
    for name, part in splits.items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(row for row in part if set(row["label"].split(",")) <= known)
    return [f"--{name}_file={folder / name}.csv" for name in splits]


def measure(name: str, rows: Rows, size: int, rate: str, seed: int) -> dict[str, Any]:
    """Train once; return the best validation metric and the metric of the test split."""
    columns = [column for column in rows[0] if column != "label"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        command = [
            sys.executable,
            str(ROOT / "recipes" / "classify.py"),
            *write_splits(rows, size, folder),
            f"--text_column_names={','.join(columns)}",
            *(["--task=multi-label"] if name == "goemotions" else []),
            f"--learning_rate={rate}",
            f"--seed={seed}",
            "--mixed_precision=bf16",
            f"--output_dir={folder / 'run'}",
        ]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        record_file = folder / "run" / "run.json"
        if done.returncode or not record_file.exists():
            raise SystemExit(f"{name} {size} {rate}: exit code {done.returncode}\n{done.stderr}")
        record = json.loads(record_file.read_text(encoding="utf-8"))
    metric = "micro_f1" if name == "goemotions" else "accuracy"
    return {
        "data": name,
        "size": size,
        "learning_rate": rate,
        "seed": seed,
        "metric": metric,
        "validation": max(part["metrics"][metric] for part in record["validations"]),
        "test": record["metrics"][metric],
    }


def table(runs: list[dict[str, Any]]) -> str:
    """Return means over seeds, one row per data set and size, as validation / test in per cent."""
    cells: dict[tuple[str, int], dict[str, list[dict[str, Any]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for run in runs:
        cells[run["data"], run["size"]][run["learning_rate"]].append(run)
    lines = [f"| data | rows | {' | '.join(RATES)} |", "| --- " * (2 + len(RATES)) + "|"]
    for (name, size), row in cells.items():
        words = [
            " / ".join(
                f"{100 * statistics.mean(run[split] for run in row[rate]):.1f}"
                for split in ("validation", "test")
            )
            if rate in row
            else ""
            for rate in RATES
        ]
        lines.append(f"| {name} | {size} | {' | '.join(words)} |")
    return "\n".join(lines)


def main() -> None:
    """Train all settings that are missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--data_dir", type=Path, required=True, help="folder with sst2/, trec/, ..."
    )
    parser.add_argument("--data", default=",".join(DATA_SETS), help="data sets, comma-separated")
    parser.add_argument("--sizes", default="400,2000", help="training rows, comma-separated")
    parser.add_argument("--rates", default=",".join(RATES), help="learning rates")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds")
    parser.add_argument("--out", type=Path, required=True, help="results file (JSON)")
    args = parser.parse_args()
    runs = json.loads(args.out.read_text())["runs"] if args.out.exists() else []
    keys = ("data", "size", "learning_rate", "seed")
    present = {tuple(run[key] for key in keys) for run in runs}
    for size in map(int, args.sizes.split(",")):
        for name in args.data.split(","):
            rows = load_rows(name, args.data_dir)
            if len(rows) < VALIDATION_ROWS + TEST_ROWS + size:
                print(f"{name}: too few rows for {size}", flush=True)
                continue
            for seed in range(args.seeds):
                for rate in args.rates.split(","):
                    if (name, size, rate, seed) in present:
                        continue
                    runs.append(measure(name, rows, size, rate, seed))
                    print(runs[-1], flush=True)
                    content = {"provenance": provenance(), "runs": runs}
                    args.out.write_text(json.dumps(content, indent=1) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
