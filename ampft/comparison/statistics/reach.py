"""What a comparison can show, from its numbers of test cases, seeds and arms, before any run.

The numbers assume the most favourable results: for equivalence, models that predict every case
alike; for a difference, a model that loses the same cases at every seed. They come from the test
that will judge the results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ampft.comparison.statistics.detection_limits import draws_to_exclude, rate_upper_limit
from ampft.comparison.statistics.interval import DifferenceEstimate, estimate_difference
from ampft.comparison.statistics.jackknife import jackknife_differences
from ampft.metrics.sums import ACCURACY, single_label_sums

# Losing a share of the cases costs at least about this share of the metric. Where classes weigh
# alike, as in macro F1, a case of a frequent class costs less than in accuracy, and F1 counts half
# of a lost case.
MIN_WORTH = 0.5


@dataclass(frozen=True, kw_only=True)
class Reach:
    """What a comparison can show at best.

    Attributes:
        cases: Number of independent test cases.
        cases_needed: Number of cases below which no number of seeds establishes equivalence.
        margin_needed: Smallest margin at which equivalence is possible with these cases.
        is_equivalence_possible: Whether it is possible with these cases and seeds.
        smallest_difference: Smallest loss that can be found, as a share of the cases; None if even
            the loss of half of them cannot.
    """

    cases: int
    cases_needed: int
    margin_needed: float
    is_equivalence_possible: bool
    smallest_difference: float | None


def reach(cases: int, *, seeds: int, arms: int, margin: float, alpha: float, metric: str) -> Reach:
    """Return what a comparison can show at best.

    Args:
        cases: Number of independent test cases, at least 1.
        seeds: Number of seeds, at least 3.
        arms: Number of arms that are compared with the baseline.
        margin: Equivalence margin, as a fraction.
        alpha: Level of the last analysis.
        metric: Name of the primary metric, whose values are shares.
    """
    worth = 1.0 if metric == ACCURACY.name else MIN_WORTH
    level, share = alpha / arms, margin / worth  # the first step of Holm's procedure
    needed = draws_to_exclude(min(share, 0.5), probability=level)
    if cases < 2:
        return Reach(
            cases=cases, cases_needed=needed, margin_needed=worth,
            is_equivalence_possible=False, smallest_difference=None,
        )  # fmt: skip
    same = _estimate(cases, 0, seeds)
    lost = _first(cases // 2, lambda n: _estimate(cases, n, seeds).p_difference() <= level)
    return Reach(
        cases=cases,
        cases_needed=needed,
        margin_needed=worth * rate_upper_limit(cases, probability=level),
        is_equivalence_possible=same.p_equivalence(share) <= level,
        smallest_difference=None if lost is None else worth * lost / cases,
    )


def _estimate(cases: int, lost: int, seeds: int) -> DifferenceEstimate:
    """Return the difference of an arm that loses the same cases at every seed."""
    labels = np.zeros(cases, dtype=np.int64)
    baseline = single_label_sums(labels, labels, 2)
    arm = single_label_sums(labels, (np.arange(cases) < lost).astype(np.int64), 2)
    return estimate_difference(jackknife_differences([arm] * seeds, [baseline] * seeds, ACCURACY))


def _first(high: int, holds: Callable[[int], bool]) -> int | None:
    """Return the smallest number from 1 to `high` that fulfils a monotone condition."""
    low = 1
    if high < low or not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
