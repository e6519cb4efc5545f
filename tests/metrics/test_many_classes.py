"""With thousands of classes the report stays small, and its file has everything."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from ampft.metrics import scores
from ampft.metrics.scores import (
    MAX_MATRIX_CLASSES,
    case_brier_scores,
    case_log_losses,
    confusion_counts,
    scalar_scores,
    top_accuracy,
)
from ampft.tasks.report import report_from_json
from ampft.tasks.single_label import (
    ClassificationReport,
    Predictions,
    SingleLabel,
    classification_report,
)
from ampft.text.json_io import json_text

CLASSES, EXAMPLES = 5000, 2000


@pytest.fixture(scope="module")
def predictions() -> Predictions:
    """Predictions of which 60 % are right; class i has the better chance, the larger i is."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, CLASSES, EXAMPLES)
    right = generator.random(EXAMPLES) < labels / CLASSES + 0.1
    predicted = np.where(right, labels, generator.integers(0, CLASSES, EXAMPLES))
    probabilities = np.full((EXAMPLES, CLASSES), 0.5 / (CLASSES - 1), np.float32)
    probabilities[np.arange(EXAMPLES), predicted] = 0.5
    names = tuple(f"class number {i}" for i in range(CLASSES))
    return Predictions(np.arange(EXAMPLES), labels, probabilities, names, split="test")


@pytest.fixture(scope="module")
def report(predictions) -> ClassificationReport:
    return classification_report(predictions)


@pytest.mark.full
def test_the_file_is_small_and_has_every_pair(report, predictions):
    text = json_text(report.as_dict())
    assert len(text.encode()) < 5e6
    values = json.loads(text)
    assert "confusion_matrix" not in values
    counts = np.array(values["confusion_counts"])
    expected = sklearn_metrics.confusion_matrix(
        predictions.labels, predictions.predicted, labels=np.arange(CLASSES)
    )
    assert np.array_equal(expected[counts[:, 0], counts[:, 1]], counts[:, 2])
    assert counts[:, 2].sum() == expected.sum() == EXAMPLES
    assert report_from_json(ClassificationReport, values) == report


@pytest.mark.slow
def test_the_metrics_equal_scikit_learn(report, predictions):
    labels, predicted = predictions.labels, predictions.predicted
    kappa = sklearn_metrics.cohen_kappa_score(labels, predicted)
    assert report.cohen_kappa == pytest.approx(kappa, rel=1e-12)
    correlation = sklearn_metrics.matthews_corrcoef(labels, predicted)
    assert report.matthews == pytest.approx(correlation, rel=1e-12)


def test_the_terminal_shows_the_best_and_the_worst(report):
    lines = report.text().splitlines()
    shown = [line for line in lines if "class number" in line and line.split()[-1].isdigit()]
    f1 = [score.f1 for score in report.per_class]
    assert [float(line.split()[-2]) for line in shown[:10]] == [1.0] * 10
    assert [float(line.split()[-2]) for line in shown[10:]] == [0.0] * 10
    assert "The 10 best and the 10 worst of 5,000 classes by F1. report.json has all." in lines
    # Of equal ones, those with most examples are shown.
    support = sorted((s.support for s in report.per_class if s.f1 == 1.0), reverse=True)
    assert [int(line.split()[-1]) for line in shown[:10]] == support[:10]
    macro = next(line for line in lines if "macro avg" in line)
    assert macro.split()[-2] == f"{np.mean(f1):.3f}"


def test_the_model_card_shows_the_best_and_the_worst(report):
    (table,) = report.tables()
    assert len(table.rows) == 22
    assert table.note.startswith("The 10 best and the 10 worst of 5,000 classes by F1. ")
    assert " Also: " in table.note


def test_no_matrix_of_classes_by_classes_is_computed(predictions):
    labels, predicted = predictions.labels, predictions.predicted
    tracemalloc.start()
    scalar_scores(labels, predicted, CLASSES)
    confusion_counts(labels, predicted)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * CLASSES**2 / 4
    assert predictions.confusion() is None


def test_up_to_200_classes_the_report_has_the_matrix():
    count = MAX_MATRIX_CLASSES
    labels = np.arange(count)
    probabilities = np.eye(count, dtype=np.float32)
    names = tuple(map(str, labels))
    report = classification_report(Predictions(labels, labels, probabilities, names, split="test"))
    assert np.array_equal(report.confusion_matrix, np.eye(count))
    assert "confusion_counts" not in report.as_dict()
    assert len([line for line in report.text().splitlines() if line.endswith(" 1")]) == count


def drawn(rows: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels and probabilities, some of them equal."""
    generator = np.random.default_rng(rows)
    weights = generator.integers(1, 50, (rows, classes)).astype(np.float32)
    shares = weights / weights.sum(axis=1, keepdims=True)
    return generator.integers(0, classes, rows), shares


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_parts_of_the_rows_have_the_bits_of_all_rows(rows, monkeypatch):
    labels, shares = drawn(rows, 1037)
    exact = shares.astype(np.float64)
    exact /= exact.sum(axis=1, keepdims=True)
    likelihood = exact[np.arange(rows), labels]
    expected_brier = ((exact - np.eye(1037)[labels]) ** 2).sum(axis=1)
    ranks = np.argsort(np.argsort(-shares, axis=1, kind="stable"), axis=1)
    expected_top = float(np.mean(ranks[np.arange(rows), labels] < 500))
    for entries in (1, 3 * 1037, 2**22):
        monkeypatch.setattr(scores, "ENTRIES_AT_A_TIME", entries)
        assert np.array_equal(case_log_losses(labels, shares), -np.log(likelihood))
        assert np.array_equal(case_brier_scores(labels, shares), expected_brier)
        assert top_accuracy(labels, shares, 500) == expected_top


def test_figures_take_less_memory_than_the_probabilities():
    labels, shares = drawn(4000, 10_000)
    names = tuple(map(str, range(10_000)))
    tracemalloc.start()
    try:
        predictions = Predictions(np.arange(4000), labels, shares, names, "test")
        case_log_losses(labels, predictions.probabilities)
        case_brier_scores(labels, predictions.probabilities)
        top_accuracy(labels, predictions.probabilities, 5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < shares.nbytes


def test_the_class_frequencies_are_no_copies_and_have_the_figures_of_copies():
    labels, _ = drawn(300, 1000)
    problem = SingleLabel(tuple(map(str, range(1000))))
    shares = problem.constant(labels, labels)["probabilities"]
    assert shares.strides[0] == 0
    view = problem.outcome("test", labels, {"probabilities": shares})
    copy = problem.outcome("test", labels, {"probabilities": np.ascontiguousarray(shares)})
    assert view.metrics() == copy.metrics()
    assert view.report() == copy.report()


def test_figures_are_computed_once(monkeypatch):
    labels, shares = drawn(20, 300)
    predictions = Predictions(np.arange(20), labels, shares, tuple(map(str, range(300))), "test")
    expected = predictions.metrics(), predictions.report()
    monkeypatch.setattr(scores, "_normalized", None)  # whatever needs all probabilities again
    predictions.metrics()["accuracy"] = -1.0  # a caller's copy
    assert (predictions.metrics(), predictions.report()) == expected
    assert predictions.sums("brier").totals().tolist()[0] == pytest.approx(
        20 * expected[0]["brier"]
    )
