"""Differences between two models on the same cases: a paired t-test, and a 95 % interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampft.metrics.sums import CaseSums, Metric
from ampft.text.numbers import signed_number

FloatArray = npt.NDArray[np.float64]

LEVEL = 0.05  # of the test, for both directions together


@dataclass(frozen=True)
class PairedGain:
    """By how much the mean of a value is higher with one model than with another."""

    mean: float  # Difference of the means.
    error: float  # Its standard error over the cases; 0 for a single case.
    cases: int  # Number of cases.

    @property
    def is_beyond_chance(self) -> bool:
        """Whether it is above 0 by a two-sided t-test of `LEVEL`; False for a single case."""
        from scipy.special import stdtrit

        if self.cases < 2 or not self.mean > 0:
            return False
        return bool(self.mean > stdtrit(self.cases - 1, 1 - LEVEL / 2) * self.error)


def paired_gain(higher: FloatArray, lower: FloatArray, units: FloatArray) -> PairedGain:
    """Return by how much the mean over the units is higher in `higher` than in `lower`.

    Cases are independent, and the units of a case (the words of a sentence) are not. The standard
    error is computed for a ratio of sums over cases (Cochran, "Sampling Techniques", 1977, chapter
    6), and is at least the effect of one changed case, because a few cases may agree by chance.

    Args:
        higher: (n,) sum of the values of each case with one model.
        lower: (n,) the same with the other one.
        units: (n,) number of units of each case.
    """
    difference, n = higher - lower, len(units)
    mean = float(difference.sum() / units.sum())
    if n < 2:
        return PairedGain(mean, 0.0, n)
    residuals = difference - mean * units
    square = max(n / (n - 1) * (residuals @ residuals), higher @ higher / np.count_nonzero(units))
    return PairedGain(mean, math.sqrt(square) / float(units.sum()), n)


@dataclass(frozen=True)
class Interval:
    """A difference between two models, with its 95 % interval for these two models."""

    value: float  # Difference of a metric, in its unit.
    low: float
    high: float
    cases: int  # Number of independent cases.

    def text(self, scale: float = 1.0) -> str:
        """Return "-0.4, -2.1 to +1.3" with typographic signs.

        Args:
            scale: Factor on the numbers; 100 prints a share in points.
        """
        decimals = 1 if scale == 100 else 4
        value, low, high = (
            signed_number(scale * each, decimals) for each in (self.value, self.low, self.high)
        )
        return f"{value}, {low} to {high}"


def paired_interval(metric: Metric, sums: CaseSums, other: CaseSums) -> Interval | None:
    """Return `metric` of the first model minus that of the other one, with its interval.

    The standard error is the jackknife's over cases, at least the effect of one changed case, with
    Student's t. Where few cases differ it is too small, and the half-width is at least the effect
    of the share of cases that can differ without one of n doing so, 1 - 0.05^(1/n) (the rule of
    three).

    Args:
        metric: A function of sums over cases.
        sums: Sums of the n cases with the first model.

    Returns:
        The interval; None if there are fewer than two cases, or the metric is undefined.
    """
    from scipy.special import stdtrit

    n, value = len(sums), metric.value(sums) - metric.value(other)
    if n < 2 or not math.isfinite(value):
        return None
    left_out = metric.leave_one_out(sums)[sums.pattern_of]
    left_out = left_out - metric.leave_one_out(other)[other.pattern_of]
    error = math.sqrt((n - 1) / n * float(((left_out - left_out.mean()) ** 2).sum()))
    effect = metric.effect_of_changed_case(sums)
    unseen = n * effect * (1 - LEVEL ** (1 / n))
    half = max(float(stdtrit(n - 1, 1 - LEVEL / 2)) * max(error, effect), unseen)
    if not math.isfinite(half):
        return None
    most = metric.largest_difference
    return Interval(value, max(value - half, -most), min(value + half, most), n)
