"""The page on probabilities has the numbers of the stored simulation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ampft.metrics.abstention import rows_needed

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs/probabilities.md").read_text(encoding="utf-8").split())
STORED = json.loads((ROOT / "benchmarks/results/abstention.json").read_text(encoding="utf-8"))
RATES = STORED["rates"]
SIZES = (300, 500, 1000, 2000)


def test_the_promise_was_kept():
    worst = max(rate["broken"] for rate in RATES.values())
    assert worst <= 0.05
    assert f"In at most {100 * worst:.1f} % of the splits of any setting" in PAGE
    assert not any(rate["broken"] or rate["promised"] for rate in RATES.values() if rate["refused"])


def test_picking_a_confidence_broke_it():
    picked = [rate["picked"] for name, rate in RATES.items() if name.startswith("overconfident")]
    assert min(picked) > 0.05, "otherwise the simulation would show nothing"
    assert f"in {100 * min(picked):.0f} to {100 * max(picked):.0f} % of the splits" in PAGE


@pytest.mark.parametrize("error", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("model", ["calibrated", "overconfident"])
def test_the_table_of_promises(error, model):
    cells = []
    for rows in SIZES:
        rate = RATES[f"{model}, {rows} rows, {error:g}"]
        shares = f"{100 * rate['promised']:.0f} %, {100 * rate['answered']:.0f} %"
        cells.append(shares if rate["promised"] else "none")
    assert f"| {error:g} | {model} | {' | '.join(cells)} |" in PAGE


def coverage(*names, decided):
    """Return the least and the largest coverage of intervals of these names, in percent."""
    shares = [
        share
        for setting, row in STORED["coverage"].items()
        for name, share in row.items()
        if name in names and setting.startswith("decided") == decided
    ]
    return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %"


def test_the_coverage_of_the_intervals():
    losses = coverage("log_loss", "brier", decided=False)
    assert f"in {losses} of the" in PAGE
    assert f"error in {coverage('expected_calibration_error', decided=False)}." in PAGE
    shares = [f"{100 * share:.0f}" for share in STORED["shares"].values()]
    assert f"in {min(shares)} to {max(shares)} %" in PAGE
    worst = min((row["f1"], name) for name, row in STORED["coverage"].items() if "f1" in row)
    others = [row["f1"] for name, row in STORED["coverage"].items() if "f1" in row]
    assert f"F1 in {100 * sorted(others)[1]:.0f} % or more" in PAGE
    assert worst[1].endswith("rows of a group 5")
    assert f"{100 * worst[0]:.0f} %, because an interval was 0 to 0" in PAGE


def test_the_fewest_rows():
    table = re.findall(r"\| (0\.\d+) \| (\d+) \|", PAGE)
    assert len(table) == 4
    for error, rows in table:
        assert int(rows) == 2 * rows_needed(float(error))
