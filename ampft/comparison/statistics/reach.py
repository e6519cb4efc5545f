"""What a comparison can show at best, and which losses its cases and seeds cannot exclude.

The numbers of `reach`, which are known before any run, assume the most favourable results: for
equivalence, models that predict every case alike; for a difference, a model that loses the same
cases at every seed. They come from the test that will judge the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ampft.comparison.statistics.interval import DifferenceEstimate, estimate_difference
from ampft.comparison.statistics.jackknife import jackknife_differences
from ampft.errors import InputError
from ampft.metrics.sums import ACCURACY, CostliestCase, single_label_sums

MISS_PROBABILITY = 0.05  # that no draw shows the event

# Losing a share of the cases costs at least about this share of the metric. Where classes weigh
# alike, as in macro F1, a case of a frequent class costs less than in accuracy, and F1 counts half
# of a lost case.
MIN_WORTH = 0.5


def rate_upper_limit(draws: int, *, probability: float = MISS_PROBABILITY) -> float:
    """Return the largest rate of an event that does not occur in `draws` independent draws.

    At the rate 1 - probability^(1 / draws), none of the draws shows the event with this probability
    (the exact form of the rule of three, Hanley and Lippman-Hand, JAMA 249, 1983). For cases, it is
    the largest share of cases that an arm may lose at every seed without any of them being in the
    test set: 0.46 % for 648 cases. For seeds, it is the largest rate of failed trainings if none of
    these failed: 45 % for five seeds.

    Args:
        draws: Number of draws, at least 1.
        probability: Probability of seeing no event, between 0 and 1.

    Raises:
        InputError: `draws` is less than 1.
    """
    if draws < 1:
        raise InputError(f"draws {draws}: the number of cases or seeds must be at least 1")
    return -math.expm1(math.log(probability) / draws)


def draws_to_exclude(rate: float, *, probability: float = MISS_PROBABILITY) -> int:
    """Return the minimum number of draws without an event that excludes a rate: 299 for 1 %.

    Args:
        rate: Rate of the event, between 0 and 1, exclusive.
        probability: Probability of seeing no event, as in `rate_upper_limit`.
    """
    return math.ceil(math.log(probability) / math.log1p(-rate))


def min_support(costliest: CostliestCase, cases: int, *, margin: float, alpha: float) -> int:
    """Return the number of cases of the costliest kind without which equivalence is impossible.

    If L cases of this kind are together worth c of the metric, then losing the whole margin in this
    kind means losing the share q = margin L / (c n) of all cases, and (1 - q)^n <= alpha is
    required. For balanced accuracy over K classes, this is about 3 / (K margin), such as 60 cases
    per class for one point and five classes; for macro F1, about half of that. For accuracy, it is
    the number of all cases, about 3 / margin.

    Args:
        costliest: The kind of case whose loss costs the metric most.
        cases: n.
        margin: Margin in the metric's unit.
        alpha: Level of the test.
    """
    together = costliest.effect * costliest.support
    if costliest.label is None:
        return draws_to_exclude(min(margin / together, 0.5), probability=alpha)
    return math.ceil(together * cases / margin * rate_upper_limit(cases, probability=alpha))


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
