"""Confidence limits of functions of sums over cases, by bootstrap tilting.

The limit is the value in a population in which the observed sums are just as extreme as the level
allows. Of the populations with a given value, the likeliest is taken: observed cases with other
probabilities, and possibly one kind of case that was not observed (see `rare_losses`). In that
population the influence of a case is the derivative of the value, and the probability of a sum of
influences as extreme as the observed one is computed exactly, up to rounding to a grid.

For a share, this is the interval of Clopper and Pearson (Biometrika 26, 1934), and for a mean of
many different values that of the normal distribution. It has no width of 0 where all cases agree,
and where a value is a ratio, such as F1, its variance is the one at the limit, as in a score test.
Where a value does not rise with the mean influence, such as a macro F1 over many rare labels, the
limit is the largest value among the populations that are not too extreme.
`benchmarks/abstention.py` measures how often it contains the true value.

Sources: Efron, "Nonparametric standard errors and confidence intervals", Canadian Journal of
Statistics 9, 1981; DiCiccio and Romano, "Nonparametric confidence limits by resampling methods and
least favorable families", International Statistical Review 58, 1990.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampft.metrics.rare_losses import tail_of_sum, tilted_shares

FloatArray = npt.NDArray[np.float64]
OfSums = Callable[[FloatArray], FloatArray]
# Function of the (U, D) vectors of cases and the (D,) derivative of a value that returns the (D,)
# vector of a possible case that was not observed, the one with the largest influence.
Unseen = Callable[[FloatArray, FloatArray], FloatArray]

TAIL = 0.025  # of each limit of a two-sided interval of 95 %
BISECTIONS = 20  # to a millionth of the range of means
GRID_STEPS = 16  # of the range of influences, at least where few cases matter
MAX_DEVIATION = 1500  # standard deviation of the sum, in steps of the grid
DERIVATIVE_STEP = 1e-6  # relative
ROUNDING = 1e-7  # of influences, relative to their parts
FAR = 20.0  # negative logarithm of a probability that is not computed
ENTRIES_AT_A_TIME = 1 << 22


@dataclass(frozen=True)
class Sample:
    """Distinct vectors of independent cases, and how many cases have each."""

    vectors: FloatArray  # (U, D)
    counts: FloatArray  # (U,)

    @classmethod
    def of(cls, cases: FloatArray) -> Sample:
        """Return the sample of (n, D) vectors."""
        vectors, counts = np.unique(cases, axis=0, return_counts=True)
        return cls(vectors, counts.astype(np.float64))


def tilted_interval(
    cases: FloatArray, value: OfSums, limits: tuple[float, float], unseen: Unseen
) -> tuple[float, float]:
    """Return the 95 % interval of a value.

    Args:
        cases: (n, D) what each independent case adds to the sums.
        value: Function of sums (..., D) that returns values (...), the same for all multiples of
            the sums.
        limits: Least and largest possible value.
        unseen: The possible case that was not observed.
    """
    sample = Sample.of(cases)
    low = -_upper_limit(sample, lambda sums: -value(sums), -limits[0], unseen)
    return low, _upper_limit(sample, value, limits[1], unseen)


def _upper_limit(sample: Sample, value: OfSums, most: float, unseen: Unseen) -> float:
    totals = sample.counts @ sample.vectors
    observed = float(value(totals))
    case = unseen(sample.vectors, _gradient(value, totals, sample))
    population = _Tilting(sample, value, case)
    if population.reach <= 0:
        return observed
    inside, outside, plausible = 0.0, population.reach, observed
    for _ in range(BISECTIONS):
        middle = (inside + outside) / 2
        shares = population.shares(middle)
        if population.tail(shares) > TAIL:
            inside, plausible = middle, max(plausible, population.value_of(shares))
        else:
            outside = middle
    limit = population.value_of(population.shares(outside))
    if outside == population.reach:  # no population is too extreme
        starts = population.reach / 2.0 ** np.arange(1, BISECTIONS)
        values = [population.value_of(population.shares(each)) for each in starts]
        plausible = max(plausible, *values)
    return min(max(limit, plausible), most)


class _Tilting:
    """Populations of the observed cases and one that was not observed, by their mean influence."""

    def __init__(self, sample: Sample, value: OfSums, unseen: FloatArray) -> None:
        self._sample, self._value = sample, value
        self._cases = sample.counts.sum()
        self._vectors = np.vstack([sample.vectors, unseen])
        gradient = _gradient(value, sample.counts @ sample.vectors, sample)
        self._influences = sample.vectors @ gradient
        self._of_unseen = float(unseen @ gradient)
        self.reach = max(self._of_unseen, float(self._influences.max()))
        if self.reach <= ROUNDING * float(np.abs(self._vectors * gradient).max()):
            self.reach = 0.0

    def shares(self, mean: float) -> FloatArray:
        """Return (U + 1,) the likeliest shares with a mean influence, the unseen case last."""
        observed = self._sample.counts / self._cases
        if self._of_unseen > self._influences.max() * (1 + DERIVATIVE_STEP):
            shares = observed * (self._of_unseen - mean) / (self._of_unseen - self._influences)
            rest = 1 - float(shares.sum())
            if rest >= 0:
                return np.append(shares, rest)
        if mean >= self._influences.max():
            return np.append(0 * observed, 1.0)
        order = np.argsort(-self._influences)
        shares = np.empty_like(observed)
        shares[order] = tilted_shares(observed[order], mean - self._influences[order])
        return np.append(shares, 0.0)

    def value_of(self, shares: FloatArray) -> float:
        return float(self._value(self._cases * (shares @ self._vectors)))

    def tail(self, shares: FloatArray) -> float:
        """Return the probability that a sample has influences as low as the observed ones."""
        sums = self._cases * (shares @ self._vectors)
        terms = -self._vectors * _gradient(self._value, sums, self._sample)
        losses = terms.sum(axis=1)
        occurring = losses[shares > 0]
        span = float(occurring.max() - occurring.min())
        if span <= ROUNDING * float(np.abs(terms).max()):
            return 1.0
        losses = losses - occurring.min()
        mean = float(shares @ losses)
        deviation = math.sqrt(self._cases * float(shares @ (losses - mean) ** 2))
        parts = min(GRID_STEPS, max(1, round(MAX_DEVIATION * span / deviation)))
        steps = np.rint(losses * parts / span).astype(np.int64)
        rounded = losses * parts / span - steps
        counts = self._sample.counts
        # Rounding to the grid shifts observed and expected sums, and the limit by the difference.
        shift = float(counts @ rounded[:-1]) - self._cases * float(shares @ rounded)
        total = math.ceil(float(counts @ steps[:-1]) + shift - DERIVATIVE_STEP)
        beyond = total - self._cases * float(shares @ steps)
        variance = (deviation * parts / span) ** 2
        if beyond > 0 and beyond**2 > 2 * FAR * (variance + parts * beyond):  # Bernstein
            return 0.0
        return tail_of_sum(steps, shares, cases=round(self._cases), total=total, noise=0.0)


def _gradient(value: OfSums, totals: FloatArray, sample: Sample) -> FloatArray:
    """Return the (D,) derivative of a value with respect to the sums."""
    largest = max(float(np.abs(sample.vectors).max()), np.finfo(np.float64).tiny)
    steps = DERIVATIVE_STEP * np.maximum(np.abs(totals), largest)
    # Sums that cannot be negative are not made so.
    below = np.minimum(steps, totals) if (sample.vectors >= 0).all() else steps
    slopes, rows = np.empty(len(totals)), max(1, ENTRIES_AT_A_TIME // len(totals))
    for start in range(0, len(totals), rows):
        part = slice(start, start + rows)
        unit = np.eye(len(totals))[part]
        change = value(totals + steps[part, None] * unit) - value(totals - below[part, None] * unit)
        slopes[part] = change / (steps[part] + below[part])
    return slopes
