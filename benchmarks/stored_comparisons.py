"""The tables of comparisons whose measurements are stored, by the statistics of this version.

    python benchmarks/stored_comparisons.py

Prints the tables of docs/comparing.md and docs/showcase.md from `results/*-runs.json`:
metric, step time and memory of each run, and the jackknife variances of the differences. The
predictions are not stored, so the intervals make no allowance for rare losses, which a report does.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from provenance import command_line

from ampft.comparison.report.tables import speed_up_text
from ampft.comparison.statistics.interval import DifferenceEstimate
from ampft.comparison.statistics.speed_up import speed_up
from ampft.text.numbers import PLUS_MINUS, Units, mean_count
from ampft.text.page import Cell, Table, markdown_table

RESULTS = Path(__file__).parent / "results"
# Page -> measurements, title of the metric.
TABLES = {
    "comparing.md": ("default-job-runs.json", "accuracy"),
    "showcase.md": ("classic-runs.json", "mean IoU"),
}
MIB = 2**20


def table(name: str, title: str) -> str:
    """Return the table of a stored comparison in Markdown."""
    stored = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    units = Units(title, margin=0.01)
    base, *_ = stored["arms"]
    header = (
        *("", units.heading, "difference, points (95 % interval)"),
        f"predictions changed, of {stored['examples']}",
        *("speed-up (95 % interval)", "peak memory, MiB", "skipped steps"),
    )
    rows = [_cells(arm, base, stored, units) for arm in stored["arms"]]
    return markdown_table(Table(header=header, rows=rows))


def _cells(
    arm: dict[str, Any], base: dict[str, Any], stored: dict[str, Any], units: Units
) -> tuple[Cell, ...]:
    is_emulated, is_base = arm["execution"] == "emulated", arm is base
    values = arm["values"]
    ratios = [
        slow / fast for slow, fast in zip(base["step_seconds"], arm["step_seconds"], strict=True)
    ]
    faster = speed_up(ratios, in_turns=True)
    assert faster is not None
    return (
        arm["name"] + ", emulated" * is_emulated,
        f"{units.value(statistics.fmean(values))} {PLUS_MINUS} "
        f"{units.value(statistics.stdev(values))}",
        "" if is_base else _difference(arm, base, stored, units),
        "" if is_base else mean_count(statistics.fmean(arm["changed_predictions"])),
        "" if is_base else "not ranked" if is_emulated else speed_up_text(faster),
        f"{arm['peak_bytes'] / MIB:,.0f}",
        f"{sum(arm['skipped_steps'])}",
    )


def _difference(
    arm: dict[str, Any], base: dict[str, Any], stored: dict[str, Any], units: Units
) -> str:
    per_seed = np.array(arm["values"]) - np.array(base["values"])
    estimate = DifferenceEstimate(
        estimate=float(per_seed.mean()),
        per_seed=per_seed,
        seed_variance=float(per_seed.var(ddof=1)),
        jackknife_variance=arm["jackknife_variance"],
        jackknife_covariance=arm["jackknife_covariance"],
        cases=stored["examples"],
        min_variance=stored["min_variance"],
    )
    interval = units.interval(estimate.interval(0.95))
    return f"{units.difference(estimate.estimate)} ({interval})"


def main() -> None:
    """Print each table below the name of its page."""
    command_line(__doc__, out=None).parse_args()
    for page, (name, title) in TABLES.items():
        print(f"docs/{page}, from {name}:\n\n{table(name, title)}\n")


if __name__ == "__main__":
    main()
