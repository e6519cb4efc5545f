"""The threshold of a label: the probability from which it is predicted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampft.metrics.targets import Target

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
NEVER = float(np.nextafter(np.float32(1), np.float32(2)))  # no probability reaches it


@dataclass(frozen=True)
class _Counts:
    """Counts by threshold, (m,) each: right and all predictions; and how many have the label."""

    right: FloatArray
    predicted: FloatArray
    labelled: int

    def f1(self) -> FloatArray:
        return 2 * self.right / np.maximum(self.predicted + self.labelled, 1)

    def precision(self) -> FloatArray:
        """The precision; 1 where nothing is predicted."""
        return np.where(self.predicted > 0, self.right / np.maximum(self.predicted, 1), 1.0)

    def recall(self) -> FloatArray:
        return self.right / self.labelled


def best_threshold(
    has: BoolArray,
    probabilities: npt.NDArray[np.float32],
    default: float,
    target: Target | None = None,
) -> float:
    """Return the threshold of a label that is best for a target.

    Of equally good thresholds, it is the nearest to 0.5. With a precision that no prediction
    reaches, it is above 1, so that the label is never predicted.

    Args:
        has: (n,) whether an example has the label.
        probabilities: (n,) float32.
        default: Threshold if no example has the label.
        target: What is chosen; None for the best F1.
    """
    if not has.any():
        return default
    target = target or Target()
    order = np.argsort(-probabilities, kind="stable")
    scores = probabilities[order].astype(np.float64)
    following = np.append(scores[1:], 0.0 if scores[-1] > 0 else -1.0)
    # Between two probabilities, unless float32 has nothing between them.
    middles = np.float32((scores + following) / 2).astype(np.float64)
    thresholds = np.where(middles > following, middles, scores)
    is_possible = scores > following
    # First the threshold above all probabilities, at which nothing is predicted.
    none = max(float(np.float32((1 + scores[0]) / 2)), float(np.nextafter(scores[0], 2, dtype="f")))
    thresholds = np.append(none, thresholds[is_possible])
    right = np.append(0, np.cumsum(has[order])[is_possible]).astype(np.float64)
    predicted = np.append(0, np.arange(1, len(has) + 1)[is_possible]).astype(np.float64)
    goodness = _GOODNESS[target.name](_Counts(right, predicted, int(has.sum())), target)
    best = goodness >= goodness.max()
    if target.name == "precision" and predicted[best].max() == 0:
        return NEVER
    return float(min(thresholds[best], key=lambda threshold: abs(threshold - 0.5)))


_GOODNESS: Mapping[str, Callable[[_Counts, Target], FloatArray]] = {
    "f1": lambda counts, _: counts.f1(),
    "precision": lambda counts, target: np.where(
        counts.precision() >= target.least, counts.recall(), -1.0
    ),
    "recall": lambda counts, target: np.where(
        counts.recall() >= target.least, counts.precision(), -1.0
    ),
    "cost": lambda counts, target: (
        -target.miss * (counts.labelled - counts.right)
        - target.false_alarm * (counts.predicted - counts.right)
    ),
}
