"""Every interval of an arm follows from the numbers and formulas of the page, within rounding."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from example_comparison import realistic
from scipy import stats

from ampft.comparison.report.prediction_tables import seeds as seed_tables
from ampft.comparison.report.sections import method_paragraphs
from ampft.comparison.statistics.interval import estimate_of_sums
from ampft.comparison.statistics.verdict import Difference
from ampft.metrics.sums import ACCURACY, single_label_sums
from ampft.text.numbers import MINUS

ROUNDING = 0.011  # points: two decimals of an interval, three of its components times t(2)


def number(cell) -> float:
    return float(str(cell).replace(MINUS, "-").replace(",", "").replace("+", ""))


def pair(cell) -> tuple[float, float]:
    low, high = str(cell).split(" to ")
    return number(low), number(high)


def recomputed(differences, components, column: int, tail: float) -> tuple[float, float]:
    """The interval of one arm by the Method, from the cells of its rows."""
    per_seed = [number(cell) for cell in differences[1:-3]]
    s, j, c, one = (number(cell) for cell in components[1:5])
    n, seeds, mean = int(number(components[5])), len(per_seed), number(differences[-3])
    assert s == pytest.approx(np.std(per_seed, ddof=1), abs=ROUNDING)
    assert mean == pytest.approx(np.mean(per_seed), abs=ROUNDING)
    variance, fixed = s**2 / seeds + c**2, max(j**2 - c**2, 0) / seeds + c**2
    share = s**2 / seeds / variance if variance > one**2 * (1 + 1e-3) else 1.0
    over_seeds, over_cases = stats.t.isf(tail, seeds - 1), stats.t.isf(tail, n - 1)
    half = max(
        (share * over_seeds + (1 - share) * over_cases) * math.sqrt(max(variance, one**2)),
        over_cases * math.sqrt(max(fixed, one**2)),
    )
    low, high = mean - half, mean + half
    rare_low, rare_high = pair(components[column])
    return min(low, rare_low) if low <= 0 else low, max(high, rare_high) if high >= 0 else high


def arms_of(n_seeds: int):
    """Predictions of a baseline and of arms that differ from it in one way each."""
    generator = np.random.default_rng(n_seeds)
    n = 648
    base = np.tile(generator.random(n) < 0.8, (n_seeds, 1))
    flips = generator.random((n_seeds, n))
    lost, one = base.copy(), base.copy()
    lost[:, :8] = False
    one[:, np.flatnonzero(base[0])[0]] = False
    worse = base & (flips > np.linspace(0.1, 0.4, n_seeds)[:, None])
    return base, {
        "same": base, "lost": lost, "one": one, "flips": base ^ (flips < 0.05), "worse": worse,
    }  # fmt: skip


def sums(rows):
    labels = np.zeros(rows.shape[1], dtype=np.int64)
    return [single_label_sums(labels, 1 - row.astype(np.int64), 2) for row in rows]


@pytest.mark.parametrize("n_seeds", [3, 5])
def test_every_interval_follows_from_the_page(n_seeds):
    base, arms = arms_of(n_seeds)
    comparison = realistic()
    baseline, other = comparison.arms[0], comparison.arms[2]
    seeds = comparison.seeds[:n_seeds]
    found = [
        replace(
            other,
            name=name,
            runs=other.runs[:n_seeds],
            difference=Difference.of(
                estimate_of_sums(sums(rows), sums(base), ACCURACY), alpha=0.05
            ),
        )
        for name, rows in arms.items()
    ]
    page = replace(comparison, seeds=seeds, arms=(replace(baseline, difference=None), *found))
    _, differences, components, _ = seed_tables(page)
    checked, widened = 0, 0
    for row, parts in zip(differences.rows, components.rows, strict=True):
        for cell, column, tail in ((row[-2], 6, 0.025), (row[-1], 7, 0.05)):
            wanted = recomputed(row, parts, column, tail)
            assert pair(cell) == pytest.approx(wanted, abs=ROUNDING), row[0]
            checked += 1
            widened += wanted[0] == pair(parts[column])[0]
    assert checked == 2 * len(arms)
    assert 0 < widened < checked  # a formula without rare losses would not reproduce the page


def test_the_method_has_the_formulas():
    text = " ".join(method_paragraphs(realistic()))
    for formula in ("V = s²/S + C", "w t(S - 1) + (1 - w) t(n - 1)", "(J - C)/S + C", "rare"):
        assert formula in text
