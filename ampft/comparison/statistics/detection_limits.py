"""Limits of what a comparison can detect: losses in cases or seeds that were not sampled."""

from __future__ import annotations

import math

from ampft.errors import InputError
from ampft.metrics.sums import CostliestCase

MISS_PROBABILITY = 0.05  # that no draw shows the event


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
