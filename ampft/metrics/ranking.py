"""ROC AUC and average precision, which rank the examples of a split by a probability.

They are no functions of sums over cases, so comparisons do not have them: leaving a case out
changes the rank of every other. A run reports them, and can keep its weights by them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampft.metrics.scores import MAX_MATRIX_CLASSES


@dataclass(frozen=True)
class Ranking:
    """A ranking metric."""

    name: str
    title: str
    higher_is_better: bool = True


AVERAGE_PRECISION = "average_precision"
F1 = "f1"  # what transformers' scripts call theirs
RANKING: Mapping[str, Ranking] = {
    name: Ranking(name, title)
    for name, title in {
        "roc_auc": "ROC AUC",
        AVERAGE_PRECISION: "average precision",  # of `positive_class`, which a report names
        "macro_roc_auc": "macro ROC AUC (one-vs-rest)",
        "weighted_roc_auc": "weighted ROC AUC (one-vs-rest)",
        "macro_average_precision": "macro average precision",
        "weighted_average_precision": "weighted average precision",
    }.items()
}


FREQUENT = 2 / 3  # share of the rows from which the other class of two is the one to find


def positive_class(counts: npt.NDArray[np.number]) -> int:
    """Return which of two classes is to be found, for its average precision and its threshold.

    It is the second one, as in scikit-learn, unless more than two thirds of the rows have it:
    finding the frequent class is easy, and says nothing about the rare one.

    Args:
        counts: (2,) rows of each class, or their weights.
    """
    return 0 if counts[1] > FREQUENT * counts.sum() else 1


def selecting_metric(name: str, metrics: Container[str]) -> str:
    """Return the metric of a task that a name of `--metric_for_best_model` means.

    `f1` is micro F1 where the task has it, as in run_ner and with several labels in
    run_classification. Otherwise it is macro F1.
    """
    if name != F1:
        return name
    return "micro_f1" if "micro_f1" in metrics else "macro_f1"


def ranking_values(
    has: npt.NDArray[np.bool_],
    probabilities: npt.NDArray[np.floating],
    weights: npt.NDArray[np.float64] | None = None,
) -> dict[str, float]:
    """Return the ranking metrics by name, equal to scikit-learn's up to rounding.

    Each class is ranked against the others. Classes that no example has do not count. Classes
    that all examples have count only in the average precision, as 1, as in scikit-learn's
    `average_precision_score`. The result is empty if no class separates the examples, and with more
    than 200 classes.

    Args:
        has: (n, K) whether an example has a class. With K = 1, it is one of two classes.
        probabilities: (n, K) probabilities of the classes.
        weights: (n,) weights of the examples; None for 1.
    """
    if weights is not None:
        counted = weights > 0
        has, probabilities, weights = has[counted], probabilities[counted], weights[counted]
    counts = has.sum(axis=0)
    support = counts if weights is None else weights @ has
    ranked = (counts > 0) & (counts < len(has))
    if not ranked.any() or has.shape[1] > MAX_MATRIX_CLASSES:
        return {}
    scores = np.array([
        _scores(has[:, k], probabilities[:, k], weights) if ranked[k] else (np.nan, 1.0)
        for k in range(has.shape[1])
    ])  # fmt: skip
    found = {}
    for name, values, of in (
        ("roc_auc", scores[:, 0], ranked), ("average_precision", scores[:, 1], counts > 0)
    ):  # fmt: skip
        if has.shape[1] == 1:
            found[name] = float(values[0])
            continue
        found[f"macro_{name}"] = float(np.mean(values[of]))
        found[f"weighted_{name}"] = float(np.average(values[of], weights=support[of]))
    return found


def _scores(
    has: npt.NDArray[np.bool_],
    probabilities: npt.NDArray[np.floating],
    weights: npt.NDArray[np.float64] | None,
) -> tuple[float, float]:
    """Return ROC AUC and average precision of one class that some, but not all, examples have.

    Examples of the same probability are one step of both curves. scikit-learn's functions check
    their arguments for longer than they compute, where examples are few.
    """
    order = np.argsort(-probabilities, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(probabilities[order])), len(order) - 1)
    counted = np.ones(len(has)) if weights is None else weights[order]
    hits = np.cumsum(counted * has[order])[ends]
    misses = np.cumsum(counted * ~has[order])[ends]
    steps = np.diff(hits, prepend=0)
    area = (np.diff(misses, prepend=0) * (hits - steps / 2)).sum() / (hits[-1] * misses[-1])
    return float(area), float((steps * hits / (hits + misses)).sum() / hits[-1])


def class_ranking_metrics(
    labels: npt.NDArray[np.integer],
    probabilities: npt.NDArray[np.floating],
    weights: npt.NDArray[np.float64] | None = None,
) -> dict[str, float]:
    """Return the ranking metrics of examples, or words, with one label each.

    Args:
        labels: (n,) indices of the labels.
        probabilities: (n, K) probabilities of the classes.
        weights: (n,) weights of the examples; None for 1.
    """
    classes = probabilities.shape[1]
    if classes > MAX_MATRIX_CLASSES:
        return {}
    ranked = np.arange(classes)
    if classes == 2:  # the ROC AUC of one class is that of the other
        ranked = ranked[[positive_class(np.bincount(labels, weights, minlength=2))]]
    return ranking_values(labels[:, None] == ranked, probabilities[:, ranked], weights)
