"""Critical values for the mean over a few seeds whose effects may be skewed.

If most trainings lose nothing and a few lose much, a few seeds often show a small mean with a small
variance, and Student's t calls a loss as large as the margin equivalent in 16 % of comparisons with
five seeds instead of 5 %. Skewness cannot be estimated from so few values: corrections that do so
(Johnson 1978, Hall 1992) are inaccurate for small samples of skewed values (Sutton 1993). The
critical value here is therefore the quantile of Student's t for exponential effects, whose skewness
is 2. Effects that are more skewed exceed the level by less than with Student's quantile; two kinds
of training, of which one is missing among the seeds, cannot be allowed for.

The sum G of S exponential values has a gamma distribution and is independent of the shares of the
values in it, whose standard deviation is D. With mean 1, t = sqrt(S) (1 / S - 1 / G) / D, and

    P(t <= -c) = E[P(G <= S / (1 + c sqrt(S) D))],

where the mean is over D. D is drawn once for each S, with a fixed seed.

Noise of the cases is a mean over many of them and not skewed. s^2 contains J - C of it, so that
only the part of s^2 that exceeds what J - C alone reaches in three of four comparisons,
J - C times a quartile of chi-square(S - 1) / (S - 1), gets this critical value.

Sources: Johnson, "Modified t tests and confidence intervals for asymmetrical populations", JASA 73,
1978; Hall, "On the removal of skewness by transformation", Journal of the Royal Statistical Society
B 54, 1992; Sutton, "Computer-intensive methods for tests about the mean of an asymmetrical
distribution", JASA 88, 1993.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

VALUES, LEAST_SAMPLES = 500_000, 2_000  # exponential values and samples, to draw D from
SHARES, SMALLEST_SHARE = 150, 1e-4  # quantiles of D, closer to each other for small D
CRITICALS, LARGEST_CRITICAL = 300, 1e4  # of the table
CASES_REACH = 0.25  # probability of a smaller s^2 if it is due to the cases only


def seed_critical(tail: float, seeds: int) -> float:
    """Return the critical value for exponential effects, at least Student's.

    Args:
        tail: One-sided tail probability, above 0 and at most 0.5.
        seeds: S >= 2.
    """
    from scipy.special import stdtrit

    log_tails, log_criticals = _table(seeds)
    found = float(np.interp(np.log(tail), log_tails, log_criticals))
    if np.log(tail) < log_tails[0]:  # far out, as for any density: P(t <= -c) ~ c^(1 - S)
        found = float(log_criticals[0] + (log_tails[0] - np.log(tail)) / (seeds - 1))
    return max(float(np.exp(found)), -float(stdtrit(seeds - 1, tail)))


def skewed_part(seed_variances: FloatArray, over_cases: float, seeds: int) -> FloatArray:
    """Return the part of s^2 that may be skewed.

    Args:
        seed_variances: (m,) values of s^2.
        over_cases: J - C, at least 0.
        seeds: S >= 2.
    """
    from scipy.special import chdtri

    reached = float(chdtri(seeds - 1, 1 - CASES_REACH)) / (seeds - 1) * over_cases
    return np.maximum(seed_variances - reached, 0.0)


@cache
def _table(seeds: int) -> tuple[FloatArray, FloatArray]:
    """Return ascending logarithms of tail probabilities, and of their critical values."""
    from scipy.special import gammainc

    generator = np.random.default_rng(0)
    values = generator.exponential(size=(max(VALUES // seeds, LEAST_SAMPLES), seeds))
    deviations = np.sort((values / values.sum(axis=1, keepdims=True)).std(axis=1, ddof=1))
    edges = np.concatenate([[0.0], np.geomspace(SMALLEST_SHARE, 1.0, SHARES)])
    places = ((edges[1:] + edges[:-1]) / 2 * len(deviations)).astype(int)
    criticals = np.geomspace(LARGEST_CRITICAL, 0.01, CRITICALS)
    limits = seeds / (1 + criticals[:, None] * np.sqrt(seeds) * deviations[places])
    tails = gammainc(seeds, limits) @ np.diff(edges)
    return np.log(np.maximum(tails, np.finfo(np.float64).tiny)), np.log(criticals)
