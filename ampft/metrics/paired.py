"""Whether one model is better than another on the same cases, by a paired t-test."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
    error is that of a ratio of sums over cases (Cochran, "Sampling Techniques", 1977, chapter 6).

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
    error = math.sqrt(n / (n - 1) * float(residuals @ residuals)) / float(units.sum())
    return PairedGain(mean, error, n)
