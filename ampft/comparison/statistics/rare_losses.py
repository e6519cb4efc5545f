"""How surprising a difference is, given that a rare kind of case may be missing from the test set.

A t interval fails where few cases differ. When a subgroup of 1 % of cases is lost at every seed, a
test set of 300 has none of it with probability 5 %, and then nothing varies. The test here asks
instead: if the true difference were `limit`, how likely is a mean over cases at least as high as
the one that was observed? It answers for the likeliest distribution of a case's difference among
those with mean `limit`, where a case may also be lost although none was observed:

    maximize sum_i log p_i   subject to   sum_i p_i + q = 1,   sum_i p_i v_i - q w = limit,

with v_i the observed differences of cases and w what a lost case is worth. This is bootstrap
tilting (Efron 1981) in the least favourable family of the nonparametric likelihood (DiCiccio and
Romano 1990), whose support includes the bound of the differences besides the observed values, as
in Honda and Takemura (2010). The solution has a closed form where q > 0,

    p_i = (w + limit) / (n (w + v_i)),

and otherwise p_i = 1 / (n (1 + t (v_i - limit))), as in empirical likelihood (Owen 1988). The
distribution of a sum over n cases is exact on a grid of values, by Fourier transform.

Where k of n cases are lost at every seed and nothing else differs, this is the exact binomial test
of Clopper and Pearson (Biometrika 26, 1934): 0 of n exclude a loss of m only if (1 - m)^n <= 5 %,
so that one point needs 299 cases. Where many cases differ, the test is that of the normal limit.

Sources: Efron, "Nonparametric standard errors and confidence intervals", Canadian Journal of
Statistics 9, 1981; DiCiccio and Romano, "Nonparametric confidence limits by resampling methods and
least favorable families", International Statistical Review 58, 1990; Owen, "Empirical likelihood
ratio confidence intervals for a single functional", Biometrika 75, 1988; Honda and Takemura, "An
asymptotically optimal bandit algorithm for bounded support models", COLT 2010.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

GRID_ERROR = 0.01  # of the mean square of the differences
HALVINGS = 8  # of the grid's step, at most
BISECTIONS = 60  # to the last bit of a float64
DEVIATIONS = 10  # of a sum on each side of its mean, beyond which its distribution is cut


@dataclass(frozen=True)
class CaseDifferences:
    """The distribution of a case's difference over a test set, on a grid.

    Values are in the metric's unit per case: their mean is the difference of the metric.

    Attributes:
        steps: (U,) int64, ascending: the values that occur, in steps of the grid.
        counts: (U,) float64, how many cases have each.
        step: Width of a step.
        mean: Exact mean over the cases.
        lost_steps: What a lost case is worth, in steps, at least 1.
    """

    steps: IntArray
    counts: FloatArray
    step: float
    mean: float
    lost_steps: int

    def p_above(self, limit: float, *, noise: float = 0.0) -> float:
        """Return the p value of "the mean difference is `limit` or less".

        Args:
            limit: In the metric's unit.
            noise: Variance of the mean that the cases do not explain: that between seeds.
        """
        if limit >= self.mean:
            return 1.0
        total = int(self.counts @ self.steps)
        # Rounding to the grid moves the mean; the distance to the limit is what counts.
        cases = float(self.counts.sum())
        tilted = self._likeliest(limit + total * self.step / cases - self.mean)
        if tilted is None:
            return 0.0
        return tail_of_sum(
            *tilted, cases=round(cases), total=total, noise=noise * (cases / self.step) ** 2
        )

    def p_below(self, limit: float, *, noise: float = 0.0) -> float:
        """Return the p value of "the mean difference is `limit` or more"."""
        mirrored = CaseDifferences(
            -self.steps[::-1], self.counts[::-1], self.step, -self.mean, self.lost_steps
        )
        return mirrored.p_above(-limit, noise=noise)

    def _likeliest(self, limit: float) -> tuple[IntArray, FloatArray] | None:
        """Return steps and probabilities of the likeliest distribution with mean `limit`.

        `None` where there is no such distribution: not even losing every case explains it.
        """
        values: FloatArray = self.steps.astype(np.float64) * self.step
        shares: FloatArray = self.counts / self.counts.sum()
        lost = -self.lost_steps * self.step
        if values[0] > lost:
            if limit <= lost:
                return None
            kept = shares * (limit - lost) / (values - lost)
            unseen = 1 - float(kept.sum())
            if unseen >= 0:
                return np.append(self.steps, -self.lost_steps), np.append(kept, unseen)
        if values[0] >= limit:
            return None
        distances: FloatArray = values - limit
        return self.steps, _tilted(shares, distances)

    def lowest(self, level: float, *, noise: float = 0.0) -> float:
        """Return the limit below which differences have p values of at most 1 - `level`.

        Args:
            level: One-sided, such as 0.975.
            noise: As in `p_above`.
        """
        reach = self.lost_steps * self.step / self.counts.sum()
        while self.p_above(self.mean - reach, noise=noise) > 1 - level:
            reach *= 2
        near, far = 0.0, reach
        for _ in range(BISECTIONS // 3):
            middle = (near + far) / 2
            inside = self.p_above(self.mean - middle, noise=noise) > 1 - level
            near, far = (middle, far) if inside else (near, middle)
        return self.mean - far

    def highest(self, level: float, *, noise: float = 0.0) -> float:
        """Return the limit above which differences have p values of at most 1 - `level`."""
        mirrored = CaseDifferences(
            -self.steps[::-1], self.counts[::-1], self.step, -self.mean, self.lost_steps
        )
        return -mirrored.lowest(level, noise=noise)


def case_differences(values: FloatArray, lost: float, seeds: int) -> CaseDifferences:
    """Return the distribution of the differences of cases.

    The grid's step is what one loss at one seed is worth, which is exact for accuracy, halved until
    rounding changes the mean square by at most 1 %.

    Args:
        values: (n,) differences of cases, such as `JackknifeDifferences.by_case`.
        lost: What a lost case is worth, in the same unit, > 0.
        seeds: S, that the differences are means over.
    """
    step, square = lost / seeds, float(values @ values)
    for _ in range(HALVINGS):
        if abs(_square(values, step) - square) <= GRID_ERROR * square:
            break
        step /= 2
    nearest = np.rint(values / step).astype(np.int64)
    first = int(nearest.min())
    counts = np.bincount(nearest - first)
    occurring = np.flatnonzero(counts)
    return CaseDifferences(
        steps=occurring + first,
        counts=counts[occurring].astype(np.float64),
        step=step,
        mean=float(values.mean()),
        lost_steps=max(round(lost / step), 1),
    )


def _square(values: FloatArray, step: float) -> float:
    rounded = np.rint(values / step) * step
    return float(rounded @ rounded)


def _tilted(shares: FloatArray, distances: FloatArray) -> FloatArray:
    """Return shares / (1 + t distances), t such that their mean distance is 0; some are < 0."""
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

    By Fourier transform over a window of ten standard deviations and ten of the largest steps on
    each side; what is outside is less than the rounding of float64 for a sum of many cases.

    Args:
        steps: (U,) values of a case.
        shares: (U,) their probabilities.
        cases: Number of independent cases.
        total: The sum that is asked for.
        noise: Variance of the noise.
    """
    mean = cases * float(shares @ steps)
    centred = steps - mean / cases
    deviation = math.sqrt(cases * float(shares @ centred**2) + noise)
    reach = DEVIATIONS * (deviation + int(np.abs(steps).max())) + abs(total - mean)
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
