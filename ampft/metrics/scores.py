"""The metrics of the report, over all classes of the label map; most are scikit-learn's.

A class that is absent from a split has support, precision, recall and F1 of 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.metrics.sums import cohen_kappa, matthews, single_label_sums

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]
Weights = npt.NDArray[np.float64] | None

MAX_MATRIX_CLASSES = 200  # with more, nothing of K x K size is stored or computed
ENTRIES_AT_A_TIME = 2**22  # of (n, K) probabilities: copies of all are the peak with many classes


@dataclass(frozen=True)
class Scores:
    """Precision, recall and F1 in [0, 1], and the number of examples."""

    precision: float
    recall: float
    f1: float
    support: int


def report_scores(
    labels: IntArray | BoolArray,
    predicted: IntArray | BoolArray,
    classes: int,
    weights: Weights = None,
) -> tuple[tuple[Scores, ...], dict[str, Scores]]:
    """Return the scores of each class and their averages: scikit-learn's classification report.

    Args:
        labels: True classes, shape (n,), or whether an example has a label, shape (n, K).
        predicted: The same of the predictions.
        classes: Number of classes of the label map, K.
        weights: Weights of the examples, shape (n,); None for 1. Support counts examples.

    Returns:
        The scores of classes 0..K-1, and the averages by name: `macro`, `weighted`, and with
        several labels also `micro` and `samples`. Absent classes count too.
    """
    from sklearn.metrics import classification_report

    found = classification_report(
        labels,
        predicted,
        labels=np.arange(classes),
        sample_weight=weights,
        output_dict=True,
        zero_division=0,
    )
    several = labels.ndim == 2
    support = labels.sum(axis=0) if several else np.bincount(labels, minlength=classes)

    def scores(name: str, count: Any) -> Scores:
        row = found[name]
        return Scores(row["precision"], row["recall"], row["f1-score"], int(count))

    names = ("micro", "macro", "weighted", "samples") if several else ("macro", "weighted")
    return (
        tuple(scores(str(index), count) for index, count in enumerate(support)),
        {name: scores(f"{name} avg", support.sum()) for name in names},
    )


def output_dict(rows: Mapping[str, Scores]) -> dict[str, Any]:
    """Return scores by name in the form of scikit-learn's classification report."""
    names = {"precision": "precision", "recall": "recall", "f1-score": "f1", "support": "support"}
    return {
        name: {theirs: getattr(scores, ours) for theirs, ours in names.items()}
        for name, scores in rows.items()
    }


def flat_averages(averages: Mapping[str, Scores]) -> dict[str, float]:
    """Return the parts of averaged scores under names such as `macro_f1`."""
    return {
        f"{name}_{part}": getattr(scores, part)
        for name, scores in averages.items()
        for part in ("precision", "recall", "f1")
    }


def scalar_scores(
    labels: IntArray,
    predicted: IntArray,
    classes: int,
    weights: Weights = None,
    scores: tuple[tuple[Scores, ...], Mapping[str, Scores]] | None = None,
) -> dict[str, float]:
    """Return the metrics that need no probabilities, by name.

    `balanced_accuracy` is the mean recall of the classes that the split has (Brodersen et al.,
    2010), as in scikit-learn. If all labels and predictions are the same class, `cohen_kappa` is
    undefined and NaN, and `matthews` is 0, as in scikit-learn.

    Args:
        labels: True classes, shape (n,).
        predicted: Predicted classes, shape (n,).
        classes: Number of classes of the label map.
        weights: Weights of the examples, shape (n,); None for 1.
        scores: What `report_scores` returns for them; None computes it.
    """
    rows, averages = scores or report_scores(labels, predicted, classes, weights)
    of_class = None if weights is None else np.bincount(labels, weights, minlength=classes)
    kappa, correlation = _agreement(labels, predicted, classes, weights)
    present = range(classes) if of_class is None else np.flatnonzero(of_class)
    return {
        "accuracy": float(np.average(labels == predicted, weights=weights)),
        # scikit-learn's warns if a class that the split lacks is predicted, which is normal here.
        "balanced_accuracy": float(np.mean([rows[k].recall for k in present if rows[k].support])),
        **flat_averages(averages),
        "cohen_kappa": kappa,
        "matthews": correlation,
    }


def _agreement(
    labels: IntArray, predicted: IntArray, classes: int, weights: Weights
) -> tuple[float, float]:
    """Return Cohen's kappa and the Matthews correlation; NaN and 0 if there is only one class."""
    if weights is not None:
        counted = weights > 0
        labels, predicted, weights = labels[counted], predicted[counted], weights[counted]
    if len(np.unique(np.concatenate([labels, predicted]))) == 1:  # scikit-learn warns
        return float("nan"), 0.0
    if classes > MAX_MATRIX_CLASSES:
        totals = single_label_sums(labels, predicted, classes).weighted(weights).totals()
        return float(cohen_kappa(totals)), float(matthews(totals))
    from sklearn.metrics import cohen_kappa_score, matthews_corrcoef

    kappa, correlation = (
        f(labels, predicted, sample_weight=weights) for f in (cohen_kappa_score, matthews_corrcoef)
    )
    return float(kappa), float(correlation)


def confusion(labels: IntArray, predicted: IntArray, classes: int) -> IntArray:
    """Return (K, K) int64 counts, row = true class, column = predicted class; they sum to n."""
    from sklearn.metrics import confusion_matrix

    matrix: IntArray = confusion_matrix(labels, predicted, labels=np.arange(classes))
    return matrix.astype(np.int64)


def confusion_counts(labels: IntArray, predicted: IntArray) -> IntArray:
    """Return (m, 3) int64 label, prediction and count of each pair that occurs, ascending."""
    pairs, counts = np.unique(np.stack([labels, predicted], axis=1), axis=0, return_counts=True)
    return np.column_stack([pairs, counts]).astype(np.int64)


def case_log_losses(labels: IntArray, probabilities: FloatArray) -> npt.NDArray[np.float64]:
    """Return -ln p(label) of each example in nats, shape (n,), float64.

    As in scikit-learn's `log_loss`, p is clipped to [2^-52, 1 - 2^-52].

    Args:
        labels: True classes, shape (n,).
        probabilities: Shape (n, K). Each row is divided by its sum, because a float32 softmax sums
            to one only within 1e-7.
    """
    epsilon = np.finfo(np.float64).eps
    likelihood = np.empty(len(labels))
    for part in row_blocks(*probabilities.shape):
        rows = _normalized(probabilities[part])
        likelihood[part] = rows[np.arange(len(rows)), labels[part]]
    return -np.log(likelihood.clip(epsilon, 1 - epsilon))


def case_brier_scores(labels: IntArray, probabilities: FloatArray) -> npt.NDArray[np.float64]:
    """Return the sum over classes of (p - y)^2 of each example, in [0, 2], shape (n,), float64.

    Source: Brier, "Verification of forecasts expressed in terms of probability", Monthly Weather
    Review 78, 1950. Unlike in some definitions, it is not halved for two classes.

    Args:
        labels: True classes, shape (n,).
        probabilities: Shape (n, K); each row is divided by its sum as in `case_log_losses`.
    """
    scores = np.empty(len(labels))
    for part in row_blocks(*probabilities.shape):
        rows = _normalized(probabilities[part])
        rows[np.arange(len(rows)), labels[part]] -= 1
        scores[part] = (rows**2).sum(axis=1)
    return scores


def case_binary_log_losses(labels: BoolArray, probabilities: FloatArray) -> npt.NDArray[np.float64]:
    """Return the mean of -ln p over the K decisions of each example, nats, shape (n,), float64.

    As in scikit-learn's `log_loss`, p is clipped to [2^-52, 1 - 2^-52].

    Args:
        labels: (n, K) whether an example has a label.
        probabilities: (n, K) probability of each label.
    """
    rows = probabilities.astype(np.float64)
    epsilon = np.finfo(np.float64).eps
    likelihood = np.where(labels, rows, 1 - rows).clip(epsilon, 1 - epsilon)
    return -np.log(likelihood).mean(axis=1)


def decision_weights(
    labels: npt.NDArray[Any], class_weights: npt.NDArray[np.floating]
) -> npt.NDArray[np.float64]:
    """Return the weights of the decisions of each example in the loss, float64.

    Args:
        labels: (n,) true classes, or (n, K) whether an example has a label.
        class_weights: (K,) weights of the classes, or of examples that have a label.

    Returns:
        (n, 1) weights of the classes, or (n, K) weights of the labels.
    """
    factors = class_weights.astype(np.float64)
    return np.where(labels, factors, 1.0) if labels.ndim == 2 else factors[labels][:, None]


def weighted_log_losses(
    labels: npt.NDArray[Any], probabilities: FloatArray, class_weights: npt.NDArray[np.floating]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the (n,) sums of the weighted log losses of examples, and of their weights.

    Args:
        labels: (n,) true classes, or (n, K) whether an example has a label.
        probabilities: (n, K) probabilities.
        class_weights: As in `decision_weights`.
    """
    weights = decision_weights(labels, class_weights)
    if labels.ndim == 1:
        losses = case_log_losses(labels, probabilities)[:, None]
    else:
        pairs = zip(labels.T[..., None], probabilities.T[..., None], strict=True)
        losses = np.column_stack([case_binary_log_losses(*pair) for pair in pairs])
    return (weights * losses).sum(axis=1), weights.sum(axis=1)


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Yield the slices of rows in which an array of (rows, columns) is gone through.

    What is computed per row has the same bits as if it were computed of all rows together.
    """
    length = max(1, ENTRIES_AT_A_TIME // max(1, columns))
    yield from (slice(start, min(start + length, rows)) for start in range(0, rows, length))


def _normalized(probabilities: FloatArray) -> npt.NDArray[np.float64]:
    # Row by row in memory, so that a view whose rows are equal has the same sums as a copy of it.
    rows: npt.NDArray[np.float64] = probabilities.astype(np.float64, order="C")
    rows /= rows.sum(axis=1, keepdims=True)
    return rows


def top_accuracy(
    labels: IntArray, probabilities: FloatArray, k: int, weights: Weights = None
) -> float:
    """Return the share of examples whose label is among the k most probable classes.

    Of equally probable classes, those with the lowest index come first, as in `argmax`.

    Args:
        labels: (n,) class indices.
        probabilities: (n, K) probabilities.
        k: Number of classes that count as correct.
        weights: (n,) weights of the examples; None for 1.
    """
    ahead = np.empty(len(labels), dtype=np.int64)
    for part in row_blocks(*probabilities.shape):
        rows, of_rows = probabilities[part], labels[part][:, None]
        own = np.take_along_axis(rows, of_rows, axis=1)
        is_before = np.arange(rows.shape[1]) < of_rows
        ahead[part] = ((rows > own) | ((rows == own) & is_before)).sum(axis=1)
    return float(np.average(ahead < k, weights=weights))
