"""Training speed of this project beside the Trainer and a plain Accelerate loop.

One process measures one case in one precision: the systems take turns, five times, and every
optimizer step from the sixth on is timed from the end of the one before, so that waiting for data
counts. Printed are medians (`--statistic mean` for whole epochs), and ratios turn by turn. Length
grouping goes through an epoch by length, so that a few steps say nothing about it: give it the
steps of an epoch and the mean.

    python benchmarks/speed.py docstrings --mode bf16 --out speed.json
    python benchmarks/speed.py sst2 --data_dir SST2 --mode fp32 --out speed.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from provenance import provenance
from systems import SYSTEMS, Work

from ampft.data.dataset import ClassificationData
from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.quiet import quiet_libraries

UNTIMED_STEPS = 5


def load_case(name: str, data_dir: Path | None) -> ClassificationData:
    """Return the texts of a case."""
    if name == "docstrings":
        return load_data(DataRequest(dataset_name="stdlib", dataset_config_name="full"))
    assert data_dir is not None, "--data_dir is needed for sst2"
    lines = (data_dir / "train.tsv").read_text(encoding="utf-8").splitlines()
    texts, labels = zip(*(line.rsplit("\t", 1) for line in lines), strict=True)
    rows = datasets.Dataset.from_dict({"text": list(texts), "label": [int(n) for n in labels]})
    rows = rows.cast_column("label", datasets.ClassLabel(names=["negative", "positive"]))
    return ClassificationData(datasets.DatasetDict(train=rows), ("text",), "text", "sst2", {}, ())


def measure(
    work: Work, names: list[str], turns: int, statistic: Callable[[Any], Any]
) -> dict[str, list[float]]:
    """Return the seconds of a step by system, one `statistic` over the steps for each turn."""
    medians: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns):
        for name in names if turn % 2 == 0 else names[::-1]:
            ends = SYSTEMS[name](work, turn)
            medians[name].append(float(statistic(np.diff(ends)[UNTIMED_STEPS - 1 :])))
            print(f"turn {turn + 1}  {name:30s} {medians[name][-1]:.3f} s/step", flush=True)
    return medians


def table(medians: dict[str, list[float]], batch_size: int) -> dict[str, dict[str, Any]]:
    """Return examples/s and how many times faster `ampft` is, median and range over the turns."""
    rows = {}
    for name, seconds in medians.items():
        ratios = [theirs / ours for theirs, ours in zip(seconds, medians["ampft"], strict=True)]
        rows[name] = {
            "examples_per_second": batch_size / statistics.median(seconds),
            "ampft_times_faster": statistics.median(ratios),
            "ampft_times_faster_range": [min(ratios), max(ratios)],
            "step_seconds": seconds,
        }
    return rows


def main() -> None:
    """Measure one case and append it to the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("case", choices=("docstrings", "sst2"))
    parser.add_argument("--mode", choices=("fp32", "bf16", "fp16"), required=True)
    parser.add_argument("--data_dir", type=Path, help="folder of SST-2's train.tsv")
    parser.add_argument("--batch_size", type=int, default=32, help="effective batch, examples")
    parser.add_argument("--max_length", type=int, default=128, help="tokens")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps of a turn")
    parser.add_argument("--statistic", choices=("median", "mean"), default="median")
    parser.add_argument("--turns", type=int, default=5, help="interleaved repetitions")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="comma separated")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to add to")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    quiet_libraries()
    names = args.systems.split(",")
    if args.mode == "fp16":  # the peers do not run fp16 on a CPU
        names = [name for name in names if name.startswith("ampft")]
    data = load_case(args.case, args.data_dir)
    work = Work(data, args.mode, args.batch_size, args.max_length, args.steps)
    rows = table(measure(work, names, args.turns, getattr(np, args.statistic)), args.batch_size)
    for name, row in rows.items():
        low, high = row["ampft_times_faster_range"]
        print(
            f"{name:30s} {row['examples_per_second']:7.1f} examples/s; "
            f"ampft {row['ampft_times_faster']:.2f} times faster ({low:.2f} to {high:.2f})"
        )
    found = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else []
    case = {"case": args.case, "mode": args.mode, "batch_size": args.batch_size}
    case |= {"max_length": args.max_length, "steps": args.steps, "statistic": args.statistic}
    found.append({**case, "systems": rows, **provenance()})
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
