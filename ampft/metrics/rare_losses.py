"""Test a difference while allowing for rare cases that the test set may lack.

A t interval fails if few cases differ. When a subgroup of 1 % of cases is lost at every seed, a
test set of 300 contains none of it with probability 5 %, and then nothing varies. The test here
computes instead how likely a mean over cases at least as high as the observed one is if the true
difference is `limit`. It uses the likeliest distribution of a case's difference with mean `limit`,
in which a case may also be lost even though none was observed:

    maximize sum_i log p_i   subject to   sum_i p_i + q = 1,   sum_i p_i v_i - q w = limit,

with v_i the observed differences of cases and w the effect of a lost case. This is bootstrap
tilting (Efron 1981) in the least favourable family of the nonparametric likelihood (DiCiccio and
Romano 1990), with the bound of the differences as a further support point, as in Honda and Takemura
(2010). If q > 0, the solution has a closed form,

    p_i = (w + limit) / (n (w + v_i)),

and otherwise p_i = 1 / (n (1 + t (v_i - limit))), as in empirical likelihood (Owen 1988). The
distribution of a sum over n cases is exact on a grid of values, by Fourier transform.

If k of n cases are lost at every seed and nothing else differs, this is the exact binomial test of
Clopper and Pearson (Biometrika 26, 1934): 0 of n exclude a loss of m only if (1 - m)^n <= 5 %, so
that one point needs 299 cases. If many cases differ, it approaches the normal test.

Sources: Efron, "Nonparametric standard errors and confidence intervals", Canadian Journal of
Statistics 9, 1981; DiCiccio and Romano, "Nonparametric confidence limits by resampling methods and
least favorable families", International Statistical Review 58, 1990; Owen, "Empirical likelihood
ratio confidence intervals for a single functional", Biometrika 75, 1988; Honda and Takemura, "An
asymptotically optimal bandit algorithm for bounded support models", COLT 2010.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

GRID_ERROR = 0.01  # relative, in the mean square of the differences
MAX_HALVINGS = 8  # of the grid's step
BISECTIONS = 60  # to the last bit of a float64
LIMIT_BISECTIONS = 20  # to a millionth of the distance to the limit
MAX_DEVIATIONS = 10  # standard deviations on each side, beyond which a distribution is cut off


@dataclass(frozen=True)
class CaseDistribution:
    """How often each difference between two arms occurs among the cases of a test set.

    The difference of a case is what it contributes: the mean over the cases is the difference in
    the metric. Differences are rounded to multiples of `step`, a grid.
    """

    steps: IntArray  # (U,) int64, ascending: the values that occur, in steps of the grid.
    counts: FloatArray  # (U,) float64: the number of cases with each value.
    step: float  # Width of a step.
    mean: float  # Exact mean over the cases.
    lost_steps: int  # Effect of a lost case, in steps, at least 1.
    # Variance of the mean that the grid does not show, because differences are rounded to it; it is
    # added to the noise.
    rounded: float = 0.0

    @classmethod
    def from_differences(cls, values: FloatArray, lost: float, seeds: int) -> Self:
        """Return the distribution of the differences of cases.

        A step of the grid is the effect of one loss at one seed, which is exact for accuracy. It is
        halved until rounding to the grid changes the mean square by at most 1 %.

        Args:
            values: (n,) differences of cases, such as `JackknifeDifferences.pseudovalues`.
            lost: Effect of a lost case, in the same unit, above 0.
            seeds: S, the number of seeds that the differences are means over.
        """
        step, square = lost / seeds, float(values @ values)
        for _ in range(MAX_HALVINGS):
            rounded = np.rint(values / step) * step
            if abs(float(rounded @ rounded) - square) <= GRID_ERROR * square:
                break
            step /= 2
        nearest = np.rint(values / step).astype(np.int64)
        rest = values - nearest * step
        first = int(nearest.min())
        counts = np.bincount(nearest - first)
        occurring = np.flatnonzero(counts)
        return cls(
            steps=occurring + first,
            counts=counts[occurring].astype(np.float64),
            step=step,
            mean=float(values.mean()),
            lost_steps=max(round(lost / step), 1),
            rounded=float(rest.var()) / len(values),
        )

    def p_above(self, limit: float, *, noise: float = 0.0) -> float:
        """Return the p-value of the hypothesis "the mean difference is at most `limit`".

        Args:
            limit: Difference in the metric's unit.
            noise: Part of the variance of the mean that the cases do not explain but seeds do.
        """
        if limit >= self.mean:
            return 1.0
        total = int(self.counts @ self.steps)
        # Rounding to the grid shifts the mean, so the limit is shifted by as much.
        cases = float(self.counts.sum())
        tilted = self._likeliest(limit + total * self.step / cases - self.mean)
        if tilted is None:
            return 0.0
        variance = (noise + self.rounded) * (cases / self.step) ** 2
        return tail_of_sum(*tilted, cases=round(cases), total=total, noise=variance)

    def p_below(self, limit: float, *, noise: float = 0.0) -> float:
        """Return the p-value of the hypothesis "the mean difference is at least `limit`"."""
        return self._mirrored().p_above(-limit, noise=noise)

    def _mirrored(self) -> Self:
        return replace(self, steps=-self.steps[::-1], counts=self.counts[::-1], mean=-self.mean)

    def _likeliest(self, limit: float) -> tuple[IntArray, FloatArray] | None:
        """Return steps and probabilities of the likeliest distribution with mean `limit`.

        Return None if there is no such distribution, because losing every case is not enough.
        """
        values: FloatArray = self.steps.astype(np.float64) * self.step
        shares: FloatArray = self.counts / self.counts.sum()
        lost = -self.lost_steps * self.step
        if values[0] > lost:
            if limit <= lost:
                return None
            observed = shares * (limit - lost) / (values - lost)
            unseen = 1 - float(observed.sum())
            if unseen >= 0:
                return np.append(self.steps, -self.lost_steps), np.append(observed, unseen)
        if values[0] >= limit:
            return None
        distances: FloatArray = values - limit
        return self.steps, tilted_shares(shares, distances)

    def lower_limit(self, level: float, *, noise: float = 0.0) -> float:
        """Return the lower confidence limit of the mean difference.

        Args:
            level: One-sided confidence level, such as 0.975.
            noise: Variance between seeds, as in `p_above`.
        """
        reach = self.lost_steps * self.step / self.counts.sum()
        while self.p_above(self.mean - reach, noise=noise) > 1 - level:
            reach *= 2
        near, far = 0.0, reach
        for _ in range(LIMIT_BISECTIONS):
            middle = (near + far) / 2
            inside = self.p_above(self.mean - middle, noise=noise) > 1 - level
            near, far = (middle, far) if inside else (near, middle)
        return self.mean - far

    def upper_limit(self, level: float, *, noise: float = 0.0) -> float:
        """Return the upper confidence limit of the mean difference."""
        return -self._mirrored().lower_limit(level, noise=noise)


def tilted_shares(shares: FloatArray, distances: FloatArray) -> FloatArray:
    """Return shares / (1 + t distances) with t such that the mean distance is 0.

    Args:
        shares: (U,) probabilities.
        distances: (U,) ascending, the first below 0.
    """
    low, high = 0.0, float(-1 / distances[0])
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        too_high = float(shares @ (distances / (1 + middle * distances))) > 0
        low, high = (middle, high) if too_high else (low, middle)
    tilted = shares / (1 + low * distances)
    return tilted / tilted.sum()


def tail_of_sum(
    steps: IntArray, shares: FloatArray, *, cases: int, total: int, noise: float
) -> float:
    """Return the probability that a sum over cases, plus normal noise, is at least `total`.

    The sum is computed by Fourier transform over a window of ten standard deviations plus ten times
    the largest step on each side. For a sum of many cases, the rest is smaller than the rounding
    error of float64.

    Args:
        steps: (U,) values of a case.
        shares: (U,) probabilities of these values.
        cases: Number of independent cases.
    """
    mean = cases * float(shares @ steps)
    centred = steps - mean / cases
    deviation = math.sqrt(cases * float(shares @ centred**2) + noise)
    reach = MAX_DEVIATIONS * (deviation + int(np.abs(steps).max())) + abs(total - mean)
    length = 1 << (2 * int(reach) + 2).bit_length()
    density = np.zeros(length)
    np.add.at(density, steps % length, shares)
    spectrum = _power(np.fft.rfft(density), cases)
    if noise:
        angles = 2 * math.pi / length * np.arange(len(spectrum))
        spectrum *= np.exp(-noise / 2 * angles**2)
    density = np.fft.irfft(spectrum, length)
    above = np.arange(total, math.floor(mean) + length // 2) % length
    return min(max(float(density[above].sum()), 0.0), 1.0)


def _power(values: npt.NDArray[np.complex128], exponent: int) -> npt.NDArray[np.complex128]:
    """Return values ** exponent by repeated squaring, ten times as fast as numpy's power."""
    power = np.ones_like(values)
    while exponent:
        if exponent & 1:
            power *= values
        values = values * values
        exponent >>= 1
    return power
