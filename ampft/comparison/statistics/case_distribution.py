"""The differences of cases between two arms, and the test that allows for rare losses.

`ampft.metrics.rare_losses` explains the test and gives its sources.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from ampft.metrics.rare_losses import FloatArray, IntArray, tail_of_sum, tilted_shares

GRID_ERROR = 0.01  # relative, in the mean square of the differences
MAX_HALVINGS = 8  # of the grid's step
LIMIT_BISECTIONS = 20  # to a millionth of the distance to the limit


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
