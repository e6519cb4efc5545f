"""Intervals of statistics that are functions of sums over cases, by the paired bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
CASES_AT_A_TIME = 1 << 22  # entries of the counts that are in memory at a time
SEED = 0
Z = 1.959963984540054  # of a two-sided interval of 95 %

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
OfSums = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Statistic:
    """A function of sums over cases."""

    vectors: FloatArray  # (n, D) what each case adds to the sums, float64.
    value: OfSums  # Function of sums (..., D) that returns values (...).
    # For a value that chance makes larger on average, such as a sum of absolute gaps: another
    # function whose mean is at most the true value. None for no such bias.
    at_most: OfSums | None = None
    limits: tuple[float, float] = (-np.inf, np.inf)  # Least and largest possible value.

    def observed(self) -> float:
        """Return the value over all cases."""
        return float(self.value(self.vectors.sum(axis=0)))


def resampled_sums(
    statistics: Sequence[Statistic], groups: IntArray | None
) -> tuple[FloatArray, ...]:
    """Return (RESAMPLES, D) sums for each of several statistics of the same cases.

    All see the same resamples, so that differences are paired.

    Args:
        statistics: Statistics of the same n cases.
        groups: (n,) group of each case, 0..G-1, which are resampled as a whole; None resamples
            cases.
    """
    vectors = np.concatenate([statistic.vectors for statistic in statistics], axis=1)
    if groups is not None:
        sums = np.zeros((int(groups.max()) + 1, vectors.shape[1]))
        np.add.at(sums, groups, vectors)
        vectors = sums
    rng, n = np.random.default_rng(SEED), len(vectors)
    rows = max(1, CASES_AT_A_TIME // n)
    parts = []
    for start in range(0, RESAMPLES, rows):
        count = min(rows, RESAMPLES - start)
        drawn = rng.integers(0, n, (count, n)) + n * np.arange(count)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=count * n).reshape(count, n)
        parts.append(counts.astype(np.float64) @ vectors)
    ends = np.cumsum([statistic.vectors.shape[1] for statistic in statistics])
    return tuple(np.split(np.concatenate(parts), ends[:-1], axis=1))


def interval(statistic: Statistic, sums: FloatArray) -> tuple[float, float]:
    """Return the 95 % interval of a statistic.

    Without `at_most`, it is the basic bootstrap, which mirrors the quantiles of the resamples at
    the observed value (Davison and Hinkley, "Bootstrap Methods and their Application", 1997,
    equation 5.6). Otherwise the limits are normal: the upper one from the value, which is too large
    on average, and the lower one from `at_most`.

    Args:
        sums: Its (R, D) resampled sums.
    """
    if statistic.at_most is None:
        ends = _mirrored(statistic.observed(), statistic.value(sums))
    else:
        totals = statistic.vectors.sum(axis=0)
        least = float(statistic.at_most(totals)) - Z * float(statistic.at_most(sums).std())
        ends = least, statistic.observed() + Z * float(statistic.value(sums).std())
    low, high = np.clip(ends, *statistic.limits)
    return float(low), float(high)


def difference_interval(
    first: Statistic, first_sums: FloatArray, second: Statistic, second_sums: FloatArray
) -> tuple[float, float] | None:
    """Return the 95 % interval of the second statistic minus the first, on the same cases.

    With `at_most`, it contains the normal intervals of the differences of both functions.

    Args:
        first_sums: Its (R, D) resampled sums.
        second: A statistic with the same functions.
        second_sums: Its (R, D) resampled sums.

    Returns:
        The interval; None if no resample has a difference, which proves nothing about other cases.
    """
    differences = second.value(second_sums) - first.value(first_sums)
    observed = second.observed() - first.observed()
    if not differences.any():
        return None
    if first.at_most is None or second.at_most is None:
        return _mirrored(observed, differences)
    of_least = second.at_most(second_sums) - first.at_most(first_sums)
    least = float(second.at_most(second.vectors.sum(axis=0)))
    least -= float(first.at_most(first.vectors.sum(axis=0)))
    half = Z * float(max(differences.std(), of_least.std()))
    return min(observed, least) - half, max(observed, least) + half


def _mirrored(observed: float, values: FloatArray) -> tuple[float, float]:
    below, above = np.quantile(values, [0.025, 0.975])
    return float(2 * observed - above), float(2 * observed - below)
