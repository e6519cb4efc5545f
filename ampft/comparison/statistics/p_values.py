"""The exact McNemar test, and p-values of several comparisons."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TypeVar

from ampft.errors import InputError

K = TypeVar("K")


def mcnemar_mid_p(gained: int, lost: int) -> float:
    """Return the two-sided mid-p value of McNemar's exact conditional test.

    It compares two checkpoints of one seed. Counts pooled over seeds do not keep its level, because
    the seeds share their cases. With m = b + c discordant cases and X binomial (m, 1/2),
    p = 2 P(X <= min(b, c)) - P(X = min(b, c)), and 1 - P(X = b) / 2 if b = c; 1 if m = 0.

    Source: Fagerland, Lydersen, Laake, "The McNemar test for binary matched-pairs data: mid-p and
    asymptotic are better than exact conditional", BMC Medical Research Methodology 13:91, 2013.

    Args:
        gained: b, the number of cases that only the arm predicts correctly.
        lost: c, the number of cases that only the baseline predicts correctly.

    Raises:
        ValueError: A count is negative.
    """
    from scipy.stats import binom

    if gained < 0 or lost < 0:
        raise ValueError(f"counts must not be negative, received {gained} and {lost}")
    fewer, discordant = min(gained, lost), gained + lost
    if discordant == 0:
        return 1.0
    point = float(binom.pmf(fewer, discordant, 0.5))
    if gained == lost:
        return 1 - point / 2
    return 2 * float(binom.cdf(fewer, discordant, 0.5)) - point


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Return the adjusted p-values, in the given order.

    With p_(1) <= ... <= p_(m), the adjusted p_(k) is the maximum over j <= k of
    min(1, (m - j + 1) p_(j)). All claims with an adjusted value of at most alpha hold together with
    a probability of at least 1 - alpha, for any dependence between the modes.

    Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal
    of Statistics 6, 1979.
    """
    adjusted: dict[K, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def alpha_per_analysis(numbers: tuple[int, ...], alpha: float = 0.05) -> float:
    """Return the level of each analysis, so that all of them together have the level `alpha`.

    Bonferroni's correction, alpha / (number of analyses), holds for any dependence between them.

    Args:
        numbers: Increasing numbers of seeds at which the results are analysed, such as (5, 10).
        alpha: Level of the whole comparison.

    Raises:
        InputError: `numbers` is empty, or the numbers are not positive and increasing.
    """
    if not numbers or numbers[0] < 1 or any(b <= a for a, b in pairwise(numbers)):
        raise InputError(
            f"numbers of seeds: received {','.join(map(str, numbers)) or 'none'}, but they must be "
            "positive and increasing, such as 5,10"
        )
    return alpha / len(numbers)
