"""Every number of a report, computed from the predictions alone by scikit-learn and scipy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn import metrics

from oracle.cases import Case, Disagreement, compare
from oracle.draw import Drawn
from oracle.product import RunFolder
from oracle.read import kept_rows, weights_of

Numbers = dict[str, Any]
AVERAGES = ("macro", "weighted")


def single_label(
    truth: np.ndarray, shares: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None
) -> Numbers:
    """Return the metrics of one class per row.

    Args:
        truth: (n,) classes.
        shares: (n, K) probabilities.
        predicted: (n,) classes.
        weights: (n,) weights of the rows; None for 1.
    """
    classes, rows = range(shares.shape[1]), np.arange(len(truth))
    w = {"sample_weight": weights}
    count = np.ones(len(truth)) if weights is None else weights
    by_class = metrics.precision_recall_fscore_support(
        truth, predicted, labels=classes, zero_division=0, **w
    )
    numbers: Numbers = {"accuracy": metrics.accuracy_score(truth, predicted, **w)}
    present = sorted(set(truth[count > 0]))
    recalls = by_class[1]
    numbers["balanced_accuracy"] = float(np.mean(recalls[present]))
    for average in AVERAGES:
        values = metrics.precision_recall_fscore_support(
            truth, predicted, labels=classes, average=average, zero_division=0, **w
        )
        for name, value in zip(("precision", "recall", "f1"), values, strict=False):
            numbers[f"{average}_{name}"] = value
    numbers["matthews"] = metrics.matthews_corrcoef(truth, predicted, **w)
    numbers["cohen_kappa"] = _or_none(metrics.cohen_kappa_score(
        truth, predicted, labels=list(classes), **w))  # fmt: skip
    of_truth = shares[rows, truth].astype(float)
    numbers["log_loss"] = float(np.average(-np.log(np.maximum(of_truth, 1e-45)), weights=weights))
    one_hot = np.eye(shares.shape[1])[truth]
    numbers["brier"] = float(np.average(((shares - one_hot) ** 2).sum(1), weights=weights))
    confidence = shares[rows, predicted]
    numbers["expected_calibration_error"] = calibration_error(confidence, predicted == truth, count)
    numbers |= ranking(np.eye(shares.shape[1], dtype=bool)[truth], shares, weights)
    return numbers


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else value


def calibration_error(confidence: np.ndarray, correct: np.ndarray, count: np.ndarray) -> float:
    """Return the expected calibration error with 15 bins ((m - 1) / 15, m / 15]."""
    total = 0.0
    for m in range(1, 16):
        inside = (confidence.astype(float) > (m - 1) / 15) & (confidence.astype(float) <= m / 15)
        if m == 1:
            inside |= confidence == 0
        if (own := count[inside]).sum() > 0:
            gap = np.average(correct[inside], weights=own) - np.average(
                confidence[inside].astype(float), weights=own
            )
            total += own.sum() / count.sum() * abs(gap)
    return total


def ranking(
    has: np.ndarray, shares: np.ndarray, weights: np.ndarray | None, *, several: bool = False
) -> Numbers:
    """Return areas under curves: means over the classes that have rows, of ROC both kinds."""
    count = np.ones(len(has)) if weights is None else weights
    areas: dict[int, float] = {}
    precisions: dict[int, float] = {}
    for k in range(has.shape[1]):
        truth, scores, counted = has[:, k], shares[:, k], count > 0
        if truth[counted].any():
            precisions[k] = metrics.average_precision_score(truth, scores, sample_weight=weights)
            if not truth[counted].all():
                areas[k] = metrics.roc_auc_score(truth, scores, sample_weight=weights)
    if not areas:
        return {}
    if has.shape[1] == 2 and not several:  # of the second of two classes, or of a rare first one
        chosen = 0 if 3 * count[has[:, 1]].sum() > 2 * count.sum() else 1
        return {"roc_auc": areas[1], "average_precision": precisions[chosen]}
    numbers = {}
    for name, values in (("roc_auc", areas), ("average_precision", precisions)):
        supports = [count[has[:, k]].sum() for k in values]
        numbers[f"macro_{name}"] = float(np.mean([*values.values()]))
        numbers[f"weighted_{name}"] = float(np.average([*values.values()], weights=supports))
    return numbers


def check_single_label(case: Case, drawn: Drawn, run: RunFolder) -> list[Disagreement]:
    """Hold the report of one class per row against the predictions."""
    rows, names = run.predictions, run.record["label_names"]
    truth = np.array([names.index(row["label"]) for row in rows])
    predicted = np.array([names.index(row["prediction"]) for row in rows])
    shares = np.array([row["probabilities"] for row in rows], dtype=np.float32)
    weights = _weights(case, drawn)
    found = compare("label_id", [row["label_id"] for row in rows], truth.tolist())
    found += compare("prediction_id", [r["prediction_id"] for r in rows], predicted.tolist())
    confidence = shares[np.arange(len(rows)), predicted]
    found += compare("confidence", [r["confidence"] for r in rows], confidence.tolist(), 1e-7)
    numbers = single_label(truth, shares, predicted, weights)
    if case.task == "ordinal":
        numbers |= _ordinal(truth, predicted, weights, len(names))
    found += check_numbers(run, numbers)
    matrix = metrics.confusion_matrix(truth, predicted, labels=range(len(names)))
    found += compare("confusion_matrix", run.report["confusion_matrix"], matrix.tolist())
    by_class = metrics.precision_recall_fscore_support(
        truth, predicted, labels=range(len(names)), zero_division=0, sample_weight=weights
    )
    for index, name in enumerate(names):
        keys = ("precision", "recall", "f1")
        got = {key: run.report["per_class"][index][key] for key in keys}
        oracle = {key: float(by_class[i][index]) for i, key in enumerate(keys)}
        found += compare(f"per_class[{name}]", got, oracle, 1e-9)
        support = int((truth == index).sum())
        found += compare(f"support[{name}]", run.report["per_class"][index]["support"], support)
    return found + check_table(run, by_class, names)


def _ordinal(
    truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray | None, classes: int
) -> Numbers:
    kappa = metrics.cohen_kappa_score(
        truth, predicted, labels=range(classes), weights="quadratic", sample_weight=weights
    )
    return {
        "quadratic_kappa": _or_none(kappa),
        "mae": metrics.mean_absolute_error(truth, predicted, sample_weight=weights),
    }


def _weights(case: Case, drawn: Drawn) -> np.ndarray | None:
    if not case.settings.get("weighted_metrics"):
        return None
    return np.array(weights_of(case, kept_rows(case, drawn, "test")))


def check_numbers(
    run: RunFolder, numbers: Mapping[str, Any], tolerance: float = 1e-6
) -> list[Disagreement]:
    """Hold numbers against the report and the record, in which a metric may be one level down."""
    found = []
    reported = {
        **run.report,
        **{each["name"]: each["value"] for each in run.report.get("added", ())},
    }
    for name, value in numbers.items():
        value = None if value is None else float(value)
        if name in reported:
            found += compare(f"report.json: {name}", reported[name], value, tolerance)
        if name in run.record["metrics"]:
            found += compare(
                f"run.json: metrics.{name}", run.record["metrics"][name], value, tolerance
            )
        if name not in reported and name not in run.record["metrics"]:
            found.append(Disagreement(f"report.json: {name}", "nothing", value))
    known = {*numbers, "split", "selected"}
    for name in set(run.record["metrics"]) - known:
        found.append(Disagreement(f"run.json: metrics.{name}", "a number", "no formula for it"))
    return found


def check_table(run: RunFolder, by_class: Any, names: list[str]) -> list[Disagreement]:
    """Hold the table of `report.txt` against scikit-learn's numbers."""
    text = (run.folder / "report.txt").read_text(encoding="utf-8")
    found = []
    for index, name in enumerate(names):
        cells = " ".join(f"{by_class[i][index]:.3f}" for i in range(3))
        lines = [" ".join(line.split()) for line in text.splitlines()]
        if (
            len(name.split()) == 1
            and name.isascii()
            and not any(line.startswith(f"{name} {cells}") for line in lines)
        ):
            found.append(Disagreement(f"report.txt: {name}", text, cells))
    return found


def check_multi_label(case: Case, drawn: Drawn, run: RunFolder) -> list[Disagreement]:
    """Hold the report of several labels per row against the predictions."""
    rows, names = run.predictions, run.record["label_names"]
    truth = np.array([[name in row["label"] for name in names] for row in rows])
    predicted = np.array([[name in row["prediction"] for name in names] for row in rows])
    shares = np.array([row["probabilities"] for row in rows], dtype=np.float32)
    weights = _weights(case, drawn)
    numbers: Numbers = {}
    for average in ("micro", "macro", "weighted", "samples"):
        values = metrics.precision_recall_fscore_support(
            truth, predicted, average=average, zero_division=0, sample_weight=weights
        )
        for name, value in zip(("precision", "recall", "f1"), values, strict=False):
            numbers[f"{average}_{name}"] = value
    numbers["subset_accuracy"] = metrics.accuracy_score(truth, predicted, sample_weight=weights)
    numbers["hamming_loss"] = metrics.hamming_loss(truth, predicted, sample_weight=weights)
    p = np.clip(np.where(truth, shares, 1 - shares.astype(float)), 1e-45, 1)
    numbers["log_loss"] = float(np.average(-np.log(p).mean(1), weights=weights))
    numbers["brier"] = float(np.average(((shares - truth) ** 2).mean(1), weights=weights))
    numbers |= ranking(truth, shares, weights, several=True)
    return check_some(run, numbers)


def check_some(run: RunFolder, numbers: Numbers) -> list[Disagreement]:
    """Hold those numbers that the run reports against it; at least half of them must be there."""
    reported = {
        **run.report, **run.record["metrics"],
        **{each["name"]: each["value"] for each in run.report.get("added", ())},
    }  # fmt: skip
    shared = {name: float(value) for name, value in numbers.items() if name in reported}
    found = compare("metrics", {name: reported[name] for name in shared}, shared, 1e-6)
    if 2 * len(shared) < len(numbers):
        found.append(Disagreement("metrics", sorted(reported), sorted(numbers)))
    return found


def check_regression(case: Case, drawn: Drawn, run: RunFolder) -> list[Disagreement]:
    """Hold the report of numbers against the predictions."""
    from scipy import stats

    rows = run.predictions
    truth = np.array([row["label"] for row in rows], dtype=float)
    predicted = np.array([row["prediction"] for row in rows], dtype=float)
    weights = _weights(case, drawn)
    w = {"sample_weight": weights}
    squared = metrics.mean_squared_error(truth, predicted, **w)
    numbers: Numbers = {
        "mse": squared, "rmse": squared**0.5,
        "mae": metrics.mean_absolute_error(truth, predicted, **w),
    }  # fmt: skip
    if len(rows) > 1:
        numbers["r2"] = metrics.r2_score(truth, predicted, **w)
    if len(rows) > 2 and weights is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            numbers["pearson"] = stats.pearsonr(truth, predicted)[0]
            numbers["spearman"] = stats.spearmanr(truth, predicted)[0]
    mean = float(np.average(truth, weights=weights))
    described = {"name": "label", "examples": len(rows), "label_mean": mean}
    found = compare("report.json", {k: run.report.get(k) for k in described}, described, 1e-6)
    text = (run.folder / "report.txt").read_text(encoding="utf-8")
    for name in ("mse", "rmse", "mae"):
        found += compare(f"report.txt: {name}", f"{run.report[name]:.4f}" in text, True)
    return found + check_some(run, {k: v for k, v in numbers.items() if v == v})


def check_tokens(case: Case, drawn: Drawn, run: RunFolder) -> list[Disagreement]:
    """Hold the report of words against the predictions, by seqeval."""
    from seqeval.metrics import f1_score, precision_score, recall_score
    from seqeval.scheme import IOB2

    scores = {"precision": precision_score, "recall": recall_score, "f1": f1_score}
    rows = run.predictions
    truth = [list(row["labels"] if "labels" in row else row["label"]) for row in rows]
    predicted = [
        list(row["predictions"] if "predictions" in row else row["prediction"]) for row in rows
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        numbers = {
            f"{average}_{name}": score(
                truth, predicted, average=average, zero_division=0, mode="strict", scheme=IOB2
            )
            for average in ("micro", "macro", "weighted")
            for name, score in scores.items()
        }
    # A type of the label map that does not occur counts as 0, and seqeval does not know it.
    types = {name[2:] for name in run.record["label_names"] if name != "O"}
    occurring = {tag[2:] for tags in (*truth, *predicted) for tag in tags if tag != "O"}
    for name in scores:
        value = numbers[f"macro_{name}"]  # not a number if neither has an entity
        is_known = occurring and value == value
        numbers[f"macro_{name}"] = value * len(occurring) / len(types) if is_known else 0.0
    flat = [tag for tags in truth for tag in tags], [tag for tags in predicted for tag in tags]
    numbers["token_accuracy"] = metrics.accuracy_score(*flat)
    return check_some(run, numbers)


CHECKS: dict[str, Callable[[Case, Drawn, RunFolder], list[Disagreement]]] = {
    "text": check_single_label, "pairs": check_single_label, "ordinal": check_single_label,
    "images": check_single_label, "sounds": check_single_label,
    "multi-label": check_multi_label, "columns": check_multi_label,
    "regression": check_regression, "tokens": check_tokens,
}  # fmt: skip


def check(case: Case, drawn: Drawn, run: RunFolder) -> list[Disagreement]:
    """Hold the report of a run against its predictions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CHECKS[case.task](case, drawn, run)
