"""What more seeds would do, and how likely a planted loss is found."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ampft.comparison.statistics.interval import DifferenceEstimate, error_of_mean

MOST_SEEDS = 1000
PLAUSIBLE = 0.8  # level of the interval for s^2 that the range of seeds comes from
QUANTILES = 1000  # of s^2 in an integral: errs by less than 0.001


def seeds_to_decide(
    estimate: DifferenceEstimate, *, margin: float, alpha: float = 0.05
) -> tuple[int, int] | None:
    """Return how many seeds in all would decide an undecided comparison, from and to.

    It takes the truth to be the estimate and C to stay, because more seeds bring no new examples:
    V(S) = s^2/S + C. The two ends take s^2 at the ends of its 80 % chi-square interval (never
    below J - C). A guide, not a promise: the next seeds move the estimate too, and with a truth
    where the estimate is, about half of such comparisons are decided at that number.

    Args:
        estimate: Of the S seeds that are there.
        margin: In the metric's unit.
        alpha: Level of the look.

    Returns:
        Numbers above S; an upper end of `MOST_SEEDS` means that many or more. None when not even
        the lower end decides: then only more test examples, or a wider margin, can.
    """
    from scipy.special import chdtri

    seeds = len(estimate.per_seed)
    degrees = seeds - 1
    tail = (1 - PLAUSIBLE) / 2
    floor = max(estimate.jackknife_variance - estimate.jackknife_covariance, 0.0)
    # chdtri takes the probability above.
    low, high = (
        _fewest_seeds(
            estimate,
            max(floor, estimate.seed_variance * degrees / float(chdtri(degrees, above))),
            margin=margin,
            alpha=alpha,
        )
        for above in (tail, 1 - tail)
    )
    if low is None:
        return None
    return low, max(low, high) if high is not None else MOST_SEEDS


def _fewest_seeds(
    estimate: DifferenceEstimate, seed_variance: float, *, margin: float, alpha: float
) -> int | None:
    """Return the fewest seeds above those that are there that decide, or None."""
    seeds = len(estimate.per_seed) + 1
    while seeds <= MOST_SEEDS:
        error, degrees = error_of_mean(
            seed_variance,
            estimate.jackknife_covariance,
            seeds,
            smallest_variance=estimate.smallest_variance,
            cases=estimate.cases,
        )
        then = replace(estimate, standard_error=error, degrees_of_freedom=degrees)
        if min(then.p_equivalence(margin), then.p_difference()) <= alpha:
            return seeds
        seeds += 1
    return None


def power(
    loss: float,
    *,
    seeds: int,
    seed_variance: float,
    covariance: float,
    jackknife_variance: float = 0.0,
    cases: int | None = None,
    alpha: float = 0.05,
) -> float:
    """Return the probability that the interval of level 1 - alpha excludes 0, on the loss's side.

    The mean difference is normal with variance s^2/S + C; the observed s^2 is independent of it,
    chi-square with S - 1 degrees of freedom, floored as in `obuchowski_rockette`. The probability
    is integrated over it. Without covariance and floor this is the noncentral t distribution, which
    Hillis, Obuchowski and Berbaum ("Power estimation for multireader ROC methods", Academic
    Radiology 18, 2011) use throughout; at three seeds the floor takes much of that power away.

    Args:
        loss: True difference, in the metric's unit.
        seeds: S >= 3.
        seed_variance: s^2 that is expected, without a floor.
        covariance: C that is expected, >= 0.
        jackknife_variance: J that is expected; J - C is the floor of s^2.
        cases: As in `obuchowski_rockette`.
        alpha: Two-sided level.
    """
    from scipy.special import chdtri, ndtr, stdtrit

    deviation = math.sqrt(seed_variance / seeds + covariance)
    if deviation == 0:
        return float(loss != 0)
    above = (np.arange(QUANTILES) + 0.5) / QUANTILES
    observed = seed_variance * chdtri(seeds - 1, above) / (seeds - 1)
    observed = np.maximum(observed, jackknife_variance - covariance)
    errors, degrees = np.transpose(
        [error_of_mean(float(s2), covariance, seeds, cases=cases) for s2 in observed]
    )
    reach = stdtrit(degrees, 1 - alpha / 2) * errors
    return float(np.mean(ndtr((abs(loss) - reach) / deviation)))
