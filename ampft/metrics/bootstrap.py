"""Intervals of statistics that are functions of sums over cases, by the bootstrap of cases."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ampft.metrics.tilting import TAIL, tilted_interval

RESAMPLES = 2000
CASES_AT_A_TIME = 1 << 22  # entries of the counts that are in memory at a time
CANDIDATES = 64  # cases that were not seen and are tried, the most influential first
TOLERANCE = 1e-9
HALVINGS = 20  # of the distance to an impossible case
SEED = 0
GRADUAL_SHARE = 0.5  # of the cases: if more differ, no decision has changed but probabilities have
Z = 1.959963984540054  # of a two-sided interval of 95 %

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
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

    def bounds(self, vectors: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (U, D) the least and the largest number that each case could add to each sum.

        A mean has two sums, of values and of sizes: the size of a case stays, and its value may be
        any within `limits`. Any other sum may be 0, or the largest number that one of the cases
        adds to it; if that is 0, the largest number in any sum, such as 1 for counts.
        """
        least = np.zeros_like(vectors) + np.minimum(vectors.min(axis=0), 0.0)
        highest = vectors.max(axis=0)
        most = np.zeros_like(vectors) + np.where(highest > 0, highest, np.abs(vectors).max())
        if vectors.shape[1] == 2 and (vectors[:, 1] > 0).all():
            low, high = self.limits
            least[:, 1] = most[:, 1] = vectors[:, 1]
            least[:, 0] = vectors[:, 1] * low if math.isfinite(low) else vectors[:, 0]
            if math.isfinite(high):
                most[:, 0] = vectors[:, 1] * high
            elif highest[0] > 0:
                most[:, 0] = vectors[:, 0]
        return least, most

    def is_possible(self, vectors: FloatArray) -> BoolArray:
        """Return (U,) whether the value of a case alone is within `limits`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            values = self.value(vectors)
        low, high = self.limits
        return (values >= low - TOLERANCE) & (values <= high + TOLERANCE)


def _most_influential(
    parts: Sequence[tuple[Statistic, FloatArray]], gradient: FloatArray
) -> FloatArray:
    """Return the most influential possible case that differs from a seen one in one of the sums.

    Sums that do not change the value now are as large as possible, because they limit the value
    once others change it.

    Args:
        parts: Statistics, and for each the (U, D) vectors of its cases.
        gradient: Derivative of a value with respect to the sums of all statistics.
    """
    least, most = (
        np.concatenate(ends, axis=1)
        for ends in zip(*(each.bounds(vectors) for each, vectors in parts), strict=True)
    )
    seen = np.concatenate([vectors for _, vectors in parts], axis=1)
    is_idle = np.abs(gradient) <= TOLERANCE * np.abs(gradient).max()
    cases = np.where(is_idle, most, seen)
    gains = gradient * (np.where(gradient > 0, most, least) - cases)
    influences = (cases @ gradient)[:, None] + gains
    best = np.argsort(-influences, axis=None, kind="stable")[:CANDIDATES]
    rows, columns = np.unravel_index(best, influences.shape)
    found, places = cases[rows], np.arange(len(rows))
    starts = found[places, columns]
    ends = np.where(gradient[columns] > 0, most[rows, columns], least[rows, columns])

    def moved(shares: FloatArray) -> FloatArray:
        changed = found.copy()
        changed[places, columns] = starts + shares * (ends - starts)
        return changed

    # A group cannot have more right answers than it has rows with the label: as many as possible.
    inside, outside = np.zeros(len(found)), np.ones(len(found))
    inside[_are_possible(parts, moved(outside))] = 1.0
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        is_inside = _are_possible(parts, moved(middle))
        inside, outside = np.where(is_inside, middle, inside), np.where(is_inside, outside, middle)
    changed = moved(inside)
    return np.asarray(changed[(changed @ gradient).argmax()])


def _are_possible(parts: Sequence[tuple[Statistic, FloatArray]], cases: FloatArray) -> BoolArray:
    """Return (U,) whether cases, with the sums of several statistics, are within the limits."""
    possible, start = np.ones(len(cases), dtype=bool), 0
    for statistic, vectors in parts:
        end = start + vectors.shape[1]
        possible &= statistic.is_possible(cases[:, start:end])
        start = end
    return possible


@dataclass(frozen=True)
class Resamples:
    """The independent cases of a statistic, and sums over resamples of them."""

    cases: FloatArray  # (G, D) sums of each independent case: a row, or a group of rows.

    @cached_property
    def sums(self) -> FloatArray:
        """(RESAMPLES, D) sums; statistics of the same cases have the same resamples."""
        rng, n = np.random.default_rng(SEED), len(self.cases)
        rows = max(1, CASES_AT_A_TIME // n)
        parts = []
        for start in range(0, RESAMPLES, rows):
            count = min(rows, RESAMPLES - start)
            drawn = rng.integers(0, n, (count, n)) + n * np.arange(count)[:, None]
            counts = np.bincount(drawn.ravel(), minlength=count * n).reshape(count, n)
            parts.append(counts.astype(np.float64) @ self.cases)
        return np.concatenate(parts)


def resampled_sums(
    statistics: Sequence[Statistic], groups: IntArray | None
) -> tuple[Resamples, ...]:
    """Return the resamples of each of several statistics of the same cases.

    Args:
        statistics: Statistics of the same n cases.
        groups: (n,) group of each case, 0..G-1, which are resampled as a whole; None resamples
            cases.
    """
    return tuple(Resamples(_independent(each.vectors, groups)) for each in statistics)


def _independent(vectors: FloatArray, groups: IntArray | None) -> FloatArray:
    if groups is None:
        return vectors
    sums = np.zeros((int(groups.max()) + 1, vectors.shape[1]))
    np.add.at(sums, groups, vectors)
    return sums


def interval(statistic: Statistic, resamples: Resamples) -> tuple[float, float]:
    """Return the 95 % interval of a statistic.

    Without `at_most`, it is by bootstrap tilting, see `tilting`. Otherwise the limits are normal:
    the upper one from the value, which is too large on average, and the lower one from `at_most`.
    The upper one is at least what cases that were not seen can add (the rule of three).

    Args:
        resamples: Its resamples.
    """
    low, high = statistic.limits
    if statistic.at_most is None:
        return tilted_interval(
            resamples.cases,
            statistic.value,
            statistic.limits,
            lambda vectors, gradient: _most_influential([(statistic, vectors)], gradient),
        )
    totals = statistic.vectors.sum(axis=0)
    least = float(statistic.at_most(totals)) - Z * float(statistic.at_most(resamples.sums).std())
    most = statistic.observed() + Z * float(statistic.value(resamples.sums).std())
    unseen = -math.expm1(math.log(TAIL) / len(resamples.cases))
    if math.isfinite(high):
        most = max(most, unseen * high)
    return max(least, low), min(most, high)


def difference_interval(
    first: Statistic, first_resamples: Resamples, second: Statistic, second_resamples: Resamples
) -> tuple[float, float] | None:
    """Return the 95 % interval of the second statistic minus the first, on the same cases.

    It is by bootstrap tilting. Where few cases differ, decisions have changed, and one that was not
    seen may change as much as `limits` allow. Where most differ, as by a temperature, an unseen
    case is like a seen one with the sides exchanged. With `at_most`, the interval contains the
    normal intervals of the differences of both functions.

    Args:
        second: A statistic with the same functions.

    Returns:
        The interval; None if no case differs, which proves nothing about other cases.
    """
    if np.array_equal(first_resamples.cases, second_resamples.cases):
        return None
    if first.at_most is None or second.at_most is None:
        width = first.vectors.shape[1]

        def unseen(vectors: FloatArray, gradient: FloatArray) -> FloatArray:
            parts = vectors[:, :width], vectors[:, width:]
            if not is_gradual:
                return _most_influential([(first, parts[0]), (second, parts[1])], gradient)
            exchanged = np.concatenate(parts[::-1], axis=1)
            return np.asarray(exchanged[(exchanged @ gradient).argmax()])

        differs = (first_resamples.cases != second_resamples.cases).any(axis=1)
        is_gradual = np.mean(differs) > GRADUAL_SHARE
        return tilted_interval(
            np.concatenate([first_resamples.cases, second_resamples.cases], axis=1),
            lambda sums: second.value(sums[..., width:]) - first.value(sums[..., :width]),
            (second.limits[0] - first.limits[1], second.limits[1] - first.limits[0]),
            unseen,
        )
    first_sums, second_sums = first_resamples.sums, second_resamples.sums
    differences = second.value(second_sums) - first.value(first_sums)
    observed = second.observed() - first.observed()
    of_least = second.at_most(second_sums) - first.at_most(first_sums)
    least = float(second.at_most(second.vectors.sum(axis=0)))
    least -= float(first.at_most(first.vectors.sum(axis=0)))
    half = Z * float(max(differences.std(), of_least.std()))
    return min(observed, least) - half, max(observed, least) + half
