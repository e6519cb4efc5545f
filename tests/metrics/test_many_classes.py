"""With thousands of classes the report stays small, and its file has everything."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
from sklearn import metrics as sklearn_metrics

from ampft.metrics.scores import MAX_MATRIX_CLASSES, confusion_counts, scalar_scores
from ampft.tasks.report import report_from_json
from ampft.tasks.single_label import ClassificationReport, Predictions, classification_report
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
