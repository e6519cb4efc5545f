"""The difference of a metric at every seed, and how it varies with the examples.

A difference is (mode - baseline). Leaving one example out changes a metric by an amount that
depends on the example's label and prediction alone, so one table of classes x classes per seed
and side holds every leave-one-out value, exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampft.errors import InputError, nearest

IntArray = npt.NDArray[np.integer]
FloatArray = npt.NDArray[np.float64]

CHUNK = 1 << 16  # examples at a time: the memory beside the predictions is S x CHUNK floats


@dataclass(frozen=True)
class JackknifeDifferences:
    """Differences of one metric between two modes, in the metric's unit (1 = 100 points).

    Attributes:
        per_seed: Difference mode - baseline at each seed, shape (S,), float64.
        variance: J, the jackknife variance of a difference over examples, mean over seeds.
        covariance: C, the jackknife covariance of the differences at two seeds, mean over the
            pairs of seeds; may be negative. 0 with one seed.
        examples: n.
        one_example: What one changed prediction is worth: see `one_example`.
    """

    per_seed: FloatArray
    variance: float
    covariance: float
    examples: int
    one_example: float


def jackknife_differences(
    labels: IntArray, predicted: IntArray, baseline: IntArray, *, metric: str, classes: int
) -> JackknifeDifferences:
    """Return the difference at each seed with its jackknife variance and covariance.

    With d_s(-i) the difference at seed s without example i,

        cov(s, t) = (n - 1) / n * sum over i of (d_s(-i) - mean d_s) (d_t(-i) - mean d_t),

    as Obuchowski and Rockette (1995) and Hillis, Obuchowski, Schartz and Berbaum (Statistics in
    Medicine 24, 2005, doi:10.1002/sim.2024) use it. Time O(S n + S^2 n), memory O(S) per example
    of a chunk.

    Args:
        labels: True classes 0..classes-1, shape (n,), n >= 2.
        predicted: Predictions of the mode, shape (S, n).
        baseline: Predictions of the baseline at the same seeds and examples, shape (S, n).
        metric: One of `METRICS`.
        classes: Number of classes of the label map; classes that are absent count, as in
            `ampft.metrics.scores`.

    Raises:
        InputError: `metric` is unknown, or there are fewer than two examples.
        ValueError: Shapes disagree, or a class is outside the label map.
    """
    if metric not in METRICS:
        allowed = ", ".join(METRICS)
        raise InputError(f"metric {metric!r}: allowed are {allowed}.{nearest(metric, METRICS)}")
    _check(labels, predicted, baseline, classes)
    sides = [[_confusion(labels, row, classes) for row in rows] for rows in (predicted, baseline)]
    measure = METRICS[metric]
    values = np.array([[measure(table)[0] for table in side] for side in sides])
    tables = np.array([[measure(table)[1] for table in side] for side in sides])
    covariances = _covariances(labels, (predicted, baseline), tables, classes)
    seeds = len(predicted)
    diagonal = float(np.trace(covariances))
    pairs = seeds * (seeds - 1)
    return JackknifeDifferences(
        per_seed=values[0] - values[1],
        variance=diagonal / seeds,
        covariance=(float(covariances.sum()) - diagonal) / pairs if pairs else 0.0,
        examples=len(labels),
        one_example=one_example(np.bincount(labels, minlength=classes), metric),
    )


def one_example(support: IntArray, metric: str) -> float:
    """Return the change of a metric, root mean square over examples, when one prediction flips.

    Accuracy: 1/n. Macro F1: an example of class k is worth about 1 / (K support_k), so

        sqrt( sum over classes present of support_k / n * (1 / (K support_k))^2 ),

    which is 1/n where the classes are balanced.

    Args:
        support: Examples of each class, shape (K,).
        metric: One of `METRICS`.
    """
    n = int(support.sum())
    if metric == "accuracy":
        return 1 / n
    present = support[support > 0]
    return float(np.sqrt(np.sum(1 / present) / n) / len(support))


def _check(labels: IntArray, predicted: IntArray, baseline: IntArray, classes: int) -> None:
    if labels.ndim != 1 or predicted.ndim != 2:
        raise ValueError(f"labels {labels.shape} must be (n,), predicted {predicted.shape} (S, n)")
    if predicted.shape != baseline.shape or predicted.shape[1:] != labels.shape:
        raise ValueError(
            f"labels {labels.shape}, predicted {predicted.shape} and baseline {baseline.shape} "
            "are not (n,), (S, n) and (S, n)"
        )
    if len(labels) < 2:
        raise InputError(
            f"a comparison needs at least 2 test examples, got {len(labels)}: name a larger split"
        )
    for name, array in (("labels", labels), ("predicted", predicted), ("baseline", baseline)):
        if array.size and (int(array.min()) < 0 or int(array.max()) >= classes):
            raise ValueError(
                f"{name} holds classes {array.min()} to {array.max()}, outside 0..{classes - 1}"
            )


def _cells(labels: IntArray, predicted: IntArray, classes: int) -> npt.NDArray[np.intp]:
    """Number the cells of the confusion matrix: row = label, column = prediction."""
    return labels.astype(np.intp) * classes + predicted


def _confusion(labels: IntArray, predicted: IntArray, classes: int) -> FloatArray:
    counts = np.bincount(_cells(labels, predicted, classes), minlength=classes * classes)
    return counts.reshape(classes, classes).astype(np.float64)


def _accuracy(confusion: FloatArray) -> tuple[float, FloatArray]:
    """Return the accuracy, and the accuracy without one example of each cell."""
    n, right = confusion.sum(), np.trace(confusion)
    return float(right / n), (right - np.eye(len(confusion))) / (n - 1)


def _macro_f1(confusion: FloatArray) -> tuple[float, FloatArray]:
    """Return macro F1, and macro F1 without one example of each cell.

    F1_k = 2 TP_k / D_k with D_k = (examples of k) + (predictions of k), and 0 where D_k = 0, over
    all classes of the label map. A wrong example takes 1 from D of its label and of its
    prediction; a right one takes 1 from TP and 2 from D of its class.
    """
    right = np.diagonal(confusion)
    mass = confusion.sum(axis=0) + confusion.sum(axis=1)
    f1 = _ratio(2 * right, mass)
    after_wrong = _ratio(2 * right, mass - 1) - f1
    after_right = _ratio(2 * (right - 1), mass - 2) - f1
    change = after_wrong[:, None] + after_wrong[None, :]
    np.fill_diagonal(change, after_right)
    return float(f1.mean()), (f1.sum() + change) / len(f1)


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Divide, with 0 where the denominator is not positive (no example, or an empty cell)."""
    filled = denominator > 0
    return np.where(filled, numerator, 0.0) / np.where(filled, denominator, 1.0)


METRICS: dict[str, Callable[[FloatArray], tuple[float, FloatArray]]] = {
    "accuracy": _accuracy,
    "macro_f1": _macro_f1,
}


def _covariances(
    labels: IntArray, sides: tuple[IntArray, IntArray], tables: FloatArray, classes: int
) -> FloatArray:
    """Return the jackknife covariances between seeds, shape (S, S).

    Args:
        labels: Shape (n,).
        sides: Predictions of the mode and of the baseline, each (S, n).
        tables: Leave-one-out values by side, seed, label and prediction, (2, S, K, K).
        classes: K.
    """
    n, seeds = len(labels), len(sides[0])
    flat = tables.reshape(2, seeds, classes * classes)
    # Taken off first so that the sums are of small numbers: variances of 1e-7 beside values of 1.
    level = flat.mean(axis=2, keepdims=True)
    flat = flat - level
    total, products = np.zeros(seeds), np.zeros((seeds, seeds))
    for start in range(0, n, CHUNK):
        part = slice(start, start + CHUNK)
        left_out = np.empty((seeds, len(labels[part])))
        for seed in range(seeds):
            mode, base = (_cells(labels[part], side[seed, part], classes) for side in sides)
            np.subtract(flat[0, seed][mode], flat[1, seed][base], out=left_out[seed])
        total += left_out.sum(axis=1)
        products += left_out @ left_out.T
    return (n - 1) / n * (products - np.outer(total, total) / n)
