"""The metrics of the report, each by scikit-learn over the whole label map.

A class of the label map that is absent from a split has support 0, precision, recall and F1 of 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ampft.metrics.predictions import IntArray, Predictions


@dataclass(frozen=True)
class Scores:
    """Precision, recall and F1 in [0, 1], and the number of examples that they are over."""

    precision: float
    recall: float
    f1: float
    support: int


def class_scores(labels: IntArray, predicted: IntArray, classes: int) -> tuple[Scores, ...]:
    """Return the scores of each class 0..classes-1.

    Args:
        labels: True classes, shape (n,).
        predicted: Predicted classes, shape (n,).
        classes: Number of classes of the label map.
    """
    from sklearn.metrics import precision_recall_fscore_support

    columns = precision_recall_fscore_support(
        labels, predicted, labels=np.arange(classes), zero_division=0
    )
    return tuple(
        Scores(float(p), float(r), float(f1), int(support))
        for p, r, f1, support in zip(*columns, strict=True)
    )


def average_scores(rows: Sequence[Scores], *, weighted: bool) -> Scores:
    """Average over the classes.

    Args:
        rows: The scores of every class of the label map.
        weighted: Whether a class weighs as its support; else every class weighs the same, the
            absent ones too, as scikit-learn has it when it is given the label map.
    """
    support = [row.support for row in rows]
    weights = support if weighted else None
    precision, recall, f1 = (
        float(np.average([getattr(row, name) for row in rows], weights=weights))
        for name in ("precision", "recall", "f1")
    )
    return Scores(precision, recall, f1, sum(support))


def flat_scores(labels: IntArray, predicted: IntArray, classes: int) -> dict[str, float]:
    """Return the metrics that need no probabilities, by name.

    `balanced_accuracy` is the mean recall of the classes that the split has (Brodersen et al.,
    2010), which is what scikit-learn returns. `cohen_kappa` is NaN where it is undefined: when
    labels and predictions are all the same class. `matthews` is 0 there, as scikit-learn has it.

    Args:
        labels: True classes, shape (n,).
        predicted: Predicted classes, shape (n,).
        classes: Number of classes of the label map.
    """
    from sklearn.metrics import cohen_kappa_score, matthews_corrcoef

    rows = class_scores(labels, predicted, classes)
    macro, weighted = (average_scores(rows, weighted=flag) for flag in (False, True))
    # scikit-learn warns where a class is predicted that the split does not have, or where there
    # is one class in all; both are ordinary here.
    one_class = len(np.unique(np.concatenate([labels, predicted]))) == 1
    return {
        "accuracy": float(np.mean(labels == predicted)),
        "balanced_accuracy": float(np.mean([row.recall for row in rows if row.support])),
        "macro_precision": macro.precision,
        "macro_recall": macro.recall,
        "macro_f1": macro.f1,
        "weighted_precision": weighted.precision,
        "weighted_recall": weighted.recall,
        "weighted_f1": weighted.f1,
        "cohen_kappa": float("nan") if one_class else float(cohen_kappa_score(labels, predicted)),
        "matthews": 0.0 if one_class else float(matthews_corrcoef(labels, predicted)),
    }


def confusion(labels: IntArray, predicted: IntArray, classes: int) -> tuple[tuple[int, ...], ...]:
    """Return the confusion matrix: row = true class, column = predicted class; sums to n."""
    from sklearn.metrics import confusion_matrix

    matrix = confusion_matrix(labels, predicted, labels=np.arange(classes))
    return tuple(tuple(int(count) for count in row) for row in matrix)


def proper_scores(predictions: Predictions) -> tuple[float, float]:
    """Return the log loss and the Brier score.

    Both are computed in float64 after dividing each row by its sum, because a float32 softmax
    sums to one only within 1e-7. The log loss is the mean of -ln p(label) in nats, with p clipped
    at 2^-52 (scikit-learn, float64). The Brier score is the mean over examples of the sum over
    classes of (p - y)^2, in [0, 2] (Brier, "Verification of forecasts expressed in terms of
    probability", Monthly Weather Review 78, 1950); with two classes too, where some halve it.

    Args:
        predictions: n examples.
    """
    from sklearn.metrics import brier_score_loss, log_loss

    rows = predictions.probabilities.astype(np.float64)
    rows /= rows.sum(axis=1, keepdims=True)
    classes = np.arange(len(predictions.label_names))
    brier = brier_score_loss(predictions.labels, rows, labels=classes, scale_by_half=False)
    return float(log_loss(predictions.labels, rows, labels=classes)), float(brier)
