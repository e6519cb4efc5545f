"""What twice the labels would add: a power law through the scores of nested subsets.

The mean score at n labels is modelled as

    f(n) = a + b h(n / N),    h(x) = (1 - x^-c) / c,    h(x) = log(x) for c = 0,

with the largest size N and an exponent c from 0 (each doubling adds the same) to 3 (each doubling
adds an eighth of the one before). An error that falls to a floor by a power law is of this form
(Hestness et al., "Deep learning scaling is predictable, empirically", 2017; Figueroa et al.,
"Predicting sample size required for classification performance", BMC Medical Informatics and
Decision Making 12, 2012, fit it to subsets and extrapolate). Twice the labels add b h(2).

The covariance of the mean scores has two parts, as in `interval`: over seeds, each drawing
its own subsets, s_k^2 / S at each size; over the test cases, the jackknife covariance C between
sizes. Scores of one seed at two sizes share rows, which makes them more alike than is assumed here,
so that differences are known slightly better than stated.

Given c, the model is linear, and generalised least squares gives a gain with a variance and a
misfit Q(c). The interval is the profile of the likelihood over c: all gains whose misfit exceeds
the least misfit by at most 2 F(2, df), the limit for two parameters, because c is unknown on a
plateau or at its bound, where the limit for one covers too little
(`benchmarks/curve_simulation.py`). The interval of a plateau is still narrow, because b is nearly 0
for every c. The estimate is the mean over c, weighted by exp(-Q / 2).

If the sizes do not fit, the smallest are left out, because a curve often starts with a part in
which little is learnt; at least `FEWEST_SIZES` must remain. A curve that flattens sooner than any
power law, as an S, is often not noticed, and then the gain is overstated. Beyond twice the labels
nothing is said: the data determine c too poorly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

FEWEST_SIZES = 4  # three parameters, and one size to notice that they do not fit
LARGEST_EXPONENT, EXPONENTS = 3.0, 61
MISFIT_LEVEL = 0.1  # p-value of the fit below which the smallest size is left out
LEVEL, TAIL = 0.95, 0.025  # of intervals, and one-sided
LARGEST_FACTOR = 2.0


@dataclass(frozen=True, kw_only=True)
class ScoresBySize:
    """Mean scores at several sizes, higher is better, with their uncertainty.

    Attributes:
        sizes: (K,) numbers of labels, ascending.
        means: (K,) mean over the seeds.
        seed_variances: (K,) variance over the seeds, s^2.
        case_covariance: (K, K) jackknife covariance over the test cases between seeds.
        seeds: S.
        min_variance: Lower bound of the variance of a mean.
    """

    sizes: FloatArray
    means: FloatArray
    seed_variances: FloatArray
    case_covariance: FloatArray
    seeds: int
    min_variance: float = 0.0

    def covariance(self) -> FloatArray:
        """Return the (K, K) covariance of the means.

        The variance over a few seeds at one size is a poor estimate, so it is averaged with their
        mean over the sizes.
        """
        shared = (self.seed_variances + self.seed_variances.mean()) / 2
        values, vectors = np.linalg.eigh(self.case_covariance)
        over_cases = (vectors * np.maximum(values, 0.0)) @ vectors.T
        found: FloatArray = np.diag(shared / self.seeds + self.min_variance) + over_cases
        return found

    def largest(self, count: int) -> ScoresBySize:
        """Return the same without the smallest sizes, so that `count` remain."""
        part = slice(len(self.sizes) - count, None)
        return ScoresBySize(
            sizes=self.sizes[part],
            means=self.means[part],
            seed_variances=self.seed_variances[part],
            case_covariance=self.case_covariance[part, part],
            seeds=self.seeds,
            min_variance=self.min_variance,
        )


@dataclass(frozen=True, kw_only=True)
class Extrapolation:
    """What more labels would add, if the curve goes on as it is.

    Attributes:
        factor: How many times the labels of the largest size.
        gain: Estimate, in the metric's unit; positive is better.
        interval: 95 % interval.
        sizes_used: Number of sizes, the largest ones, that the power law was fitted to.
    """

    factor: float
    gain: float
    interval: tuple[float, float]
    sizes_used: int


def extrapolate(scores: ScoresBySize, factor: float = LARGEST_FACTOR) -> Extrapolation | None:
    """Return what `factor` times the labels would add; None if no power law fits.

    Args:
        scores: Scores at several sizes.
        factor: Above 1, at most 2.

    Raises:
        ValueError: The factor is larger than 2.
    """
    if not 1 < factor <= LARGEST_FACTOR:
        raise ValueError("the data say nothing about more than twice the labels")
    from scipy.special import fdtrc, fdtri

    for count in range(len(scores.sizes), FEWEST_SIZES - 1, -1):
        part = scores.largest(count)
        gains, variances, misfits = _fits(part, factor)
        least = float(misfits.min())
        # Of the variances over seeds, which sizes share by half
        freedom = (part.seeds - 1) * (1 + len(part.sizes)) / 2
        rest = count - 3
        if fdtrc(rest, freedom, least / rest) < MISFIT_LEVEL:
            continue
        room = 2 * float(fdtri(2, freedom, LEVEL)) - (misfits - least)
        allowed = room >= 0
        half = np.sqrt(variances[allowed] * room[allowed])
        weights = np.exp(-(misfits - least) / 2)
        return Extrapolation(
            factor=factor,
            gain=float(np.average(gains, weights=weights)),
            interval=(
                float((gains[allowed] - half).min()),
                float((gains[allowed] + half).max()),
            ),
            sizes_used=count,
        )
    return None


def _fits(scores: ScoresBySize, factor: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return gain, its variance and the misfit of the power law with each exponent."""
    weight = np.linalg.inv(scores.covariance())
    found = []
    for exponent in np.linspace(0.0, LARGEST_EXPONENT, EXPONENTS):
        shape = _shape(scores.sizes / scores.sizes[-1], exponent)
        design = np.stack([np.ones_like(shape), shape], axis=1)
        covariance = np.linalg.inv(design.T @ weight @ design)
        level_and_slope = covariance @ design.T @ weight @ scores.means
        rest = scores.means - design @ level_and_slope
        added = float(_shape(np.array([factor]), exponent)[0])
        found.append(
            (added * level_and_slope[1], added**2 * covariance[1, 1], float(rest @ weight @ rest))
        )
    gains, variances, misfits = np.array(found).T
    return gains, variances, misfits


def _shape(ratios: FloatArray, exponent: float) -> FloatArray:
    """Return h of the module's docstring."""
    if math.isclose(exponent, 0.0):
        logarithms: FloatArray = np.log(ratios)
        return logarithms
    powers: FloatArray = (1 - ratios**-exponent) / exponent
    return powers
