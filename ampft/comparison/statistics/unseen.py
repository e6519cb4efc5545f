"""What a comparison cannot see: lost cases that the test set lacks, seeds that were not run."""

from __future__ import annotations

import math

from ampft.errors import InputError
from ampft.metrics.sums import CostliestCase

UNSEEN = 0.05  # probability at which nothing is seen


def rate_not_excluded(clean: int, *, probability: float = UNSEEN) -> float:
    """Return the largest rate of an event that `clean` independent draws without it do not exclude.

    At the rate 1 - probability^(1/clean), none in `clean` draws has this probability (the rule of
    three, Hanley and Lippman-Hand, JAMA 249, 1983, without its approximation). With draws being
    cases, it is the largest share of cases that an arm may lose at every seed without one of them
    being in the test set: 0.46 % with 648. With draws being seeds, it is the largest rate of failed
    trainings that S clean seeds do not exclude: 45 % with five.

    Args:
        clean: Number of draws, at least 1.
        probability: Between 0 and 1.

    Raises:
        InputError: There is no draw.
    """
    if clean < 1:
        raise InputError(f"clean {clean}: give the number of cases or seeds, at least 1")
    return -math.expm1(math.log(probability) / clean)


def draws_to_exclude(rate: float, *, probability: float = UNSEEN) -> int:
    """Return the fewest draws without an event that exclude a rate: 299 for 1 %.

    Args:
        rate: Between 0 and 1, both excluded.
        probability: As in `rate_not_excluded`.
    """
    return math.ceil(math.log(probability) / math.log1p(-rate))


def largest_hidden_loss(
    cases: int, *, margin: float, alpha: float = 0.05, probability: float = UNSEEN
) -> float:
    """Return the largest share of cases that may be lost at every seed and yet pass as equivalent.

    The arms agree in everything else. Equivalence within the margin is then concluded from at most
    k lost cases, k being the largest number with P(X <= k) <= alpha for X binomial (n, margin); at
    the share that is returned, that many or fewer have the stated probability (the upper limit of
    Clopper and Pearson, Biometrika 26, 1934). At a probability of alpha it is the margin or a
    little less, at one half what typically passes.

    Args:
        cases: n.
        margin: Of accuracy, or of another metric in which each case is worth 1/n.
        alpha: Level of the look.
        probability: Of being called equivalent.

    Returns:
        A share, 0 where the test set is too small to establish equivalence at all.
    """
    from scipy.special import bdtr, betaincinv

    if bdtr(0, cases, margin) > alpha:
        return 0.0
    few, many = 0, cases  # P(X <= few) <= alpha < P(X <= many) = 1
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if bdtr(middle, cases, margin) <= alpha else (few, middle)
    return 1 - float(betaincinv(cases - few, few + 1, probability))


def support_needed(costliest: CostliestCase, cases: int, *, margin: float, alpha: float) -> int:
    """Return how many cases of the costliest kind are needed to establish equivalence at all.

    With L cases of the kind, which together are worth c of the metric, a loss of the whole margin
    in this kind is a loss of the share q = margin L / (c n) of all cases, and (1 - q)^n <= alpha
    is needed. For balanced accuracy over K classes this is about 3 / (K margin), 60 cases of each
    class for one point over five classes, and for macro F1 about half of that. For accuracy it is
    the number of cases, about 3 / margin.

    Args:
        costliest: As the comparison has it.
        cases: n.
        margin: In the metric's unit.
        alpha: Level of the look.
    """
    together = costliest.worth * costliest.support
    if costliest.label is None:
        return draws_to_exclude(min(margin / together, 0.5), probability=alpha)
    return math.ceil(together * cases / margin * rate_not_excluded(cases, probability=alpha))
