"""The threshold of a label: the probability from which it is predicted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ampft.metrics.targets import ThresholdTarget

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
NEVER = float(np.nextafter(np.float32(1), np.float32(2)))  # no probability reaches it


def best_threshold(
    has: BoolArray,
    probabilities: npt.NDArray[np.float32],
    default: float,
    target: ThresholdTarget | None = None,
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
    target = target or ThresholdTarget()
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
    goodness = _goodness(target, right, predicted, int(has.sum()))
    best = goodness >= goodness.max()
    if target.name == "precision" and predicted[best].max() == 0:
        return NEVER
    return float(min(thresholds[best], key=lambda threshold: abs(threshold - 0.5)))


def _goodness(
    target: ThresholdTarget, right: FloatArray, predicted: FloatArray, labelled: int
) -> FloatArray:
    """Return (m,) how good each threshold is for a target, higher is better.

    Args:
        right: (m,) number of right predictions.
        predicted: (m,) number of all predictions.
        labelled: Number of examples that have the label.
    """
    if target.name == "f1":
        return 2 * right / np.maximum(predicted + labelled, 1)
    if target.name == "cost":
        return -target.miss * (labelled - right) - target.false_alarm * (predicted - right)
    recall = right / labelled
    # Where nothing is predicted, the precision counts as 1.
    precision = np.where(predicted > 0, right / np.maximum(predicted, 1), 1.0)
    if target.name == "precision":
        return np.where(precision >= target.least, recall, -1.0)
    return np.where(recall >= target.least, precision, -1.0)
