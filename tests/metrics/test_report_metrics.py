"""The report equals scikit-learn's functions and formulas written out by hand."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn_metrics

from ampft.metrics.calibration import expected_calibration_error
from ampft.runs.run_text import report_with_heading
from ampft.tasks.report import report_from_json
from ampft.tasks.single_label import ClassificationReport, Predictions, classification_report

# The same float64 formulas in another order of summation.
REORDERED = {"rel": 1e-12, "abs": 1e-12}
# float32 probabilities against the same divided by their sum in float64.
NORMALISED = {"rel": 1e-5, "abs": 1e-6}


def make(labels: list[int], predicted: list[int], classes: int, *, seed: int = 0) -> Predictions:
    """Predictions with given winners and random probabilities, none below 2^-24."""
    scores = np.random.default_rng(seed).uniform(0.1, 1, (len(labels), classes))
    scores[np.arange(len(labels)), predicted] = 1.1
    probabilities = (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32)
    names = tuple(f"class {i}" for i in range(classes))
    return Predictions(np.arange(len(labels)), np.array(labels), probabilities, names, split="test")


@st.composite
def any_predictions(draw: st.DrawFn) -> Predictions:
    classes = draw(st.integers(2, 5))
    n = draw(st.integers(1, 12))
    index = st.integers(0, classes - 1)
    labels, predicted = (draw(st.lists(index, min_size=n, max_size=n)) for _ in range(2))
    return make(labels, predicted, classes, seed=draw(st.integers(0, 99)))


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(any_predictions())
def test_metrics_equal_scikit_learn(predictions: Predictions):
    labels, predicted = predictions.labels, predictions.predicted
    report = classification_report(predictions)
    with warnings.catch_warnings():
        # scikit-learn warns about absent classes, which the report handles by construction
        warnings.simplefilter("ignore")
        expected = {
            "accuracy": sklearn_metrics.accuracy_score(labels, predicted),
            "balanced_accuracy": sklearn_metrics.balanced_accuracy_score(labels, predicted),
            "cohen_kappa": sklearn_metrics.cohen_kappa_score(labels, predicted),
            "matthews": sklearn_metrics.matthews_corrcoef(labels, predicted),
        }
        for average in ("macro", "weighted"):
            options = {
                "labels": range(len(predictions.label_names)),
                "average": average,
                "zero_division": 0,
            }
            for name in ("precision", "recall", "f1"):
                score = getattr(sklearn_metrics, f"{name}_score")
                expected[f"{average}_{name}"] = score(labels, predicted, **options)
    found = report.metrics()
    for name, value in expected.items():
        assert found[name] == (None if np.isnan(value) else pytest.approx(value, **REORDERED)), name
    assert np.sum(report.confusion_matrix) == len(predictions)
    assert [row.support for row in report.per_class] == np.bincount(
        labels, minlength=len(predictions.label_names)
    ).tolist()


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(any_predictions())
def test_probability_metrics_equal_their_definitions(predictions: Predictions):
    report = classification_report(predictions)
    rows = predictions.probabilities.astype(np.float64)
    one_hot = np.eye(rows.shape[1])[predictions.labels]
    own = rows[np.arange(len(rows)), predictions.labels]
    assert report.log_loss == pytest.approx(-np.log(own).mean(), **NORMALISED)
    assert report.brier == pytest.approx(((rows - one_hot) ** 2).sum(axis=1).mean(), **NORMALISED)
    total = 0.0
    for m in range(1, 16):
        inside = (predictions.confidence > (m - 1) / 15) & (predictions.confidence <= m / 15)
        if inside.any():
            right = (predictions.predicted == predictions.labels)[inside].mean()
            mean_confidence = predictions.confidence[inside].astype(np.float64).mean()
            total += inside.mean() * abs(right - mean_confidence)
    assert report.expected_calibration_error == pytest.approx(total, **REORDERED)


def test_log_loss_of_a_certain_mistake_is_finite():
    probabilities = np.array([[1, 0], [0, 1]], dtype=np.float32)
    wrong = Predictions(np.arange(2), np.array([1, 0]), probabilities, ("a", "b"), "test")
    report = classification_report(wrong)
    assert report.log_loss == pytest.approx(52 * np.log(2), abs=1e-6)
    assert report.brier == 2
    assert report.expected_calibration_error == 1


def test_two_classes_keep_the_sum_of_squares():
    predictions = make([0, 1, 1, 0], [0, 0, 1, 1], 2)
    halved = sklearn_metrics.brier_score_loss(predictions.labels, predictions.probabilities[:, 1])
    assert classification_report(predictions).brier == pytest.approx(2 * halved, **NORMALISED)


def test_calibration_bins_matter():
    """Negative control: one bin for all hides what fifteen find."""
    confidence = np.array([0.6] * 10 + [0.9] * 10, dtype=np.float32)
    right = np.array([True] * 9 + [False] + [True] * 6 + [False] * 4)
    assert expected_calibration_error(confidence, right) == pytest.approx(0.3, abs=1e-6)
    assert expected_calibration_error(confidence, right, bins=1) == pytest.approx(0, abs=1e-6)


def test_a_confidence_between_two_bins_is_in_the_lower_one():
    confidence, right = np.array([0.5, 0.4], dtype=np.float32), np.array([True, False])
    error = expected_calibration_error(confidence, right, bins=2)
    assert error == pytest.approx((0.5 - 0.4) / 2, abs=1e-6)


def test_an_absent_class_has_support_zero():
    report = classification_report(make([0, 0, 2], [0, 1, 2], 4))
    assert [row.support for row in report.per_class] == [2, 0, 1, 0]
    assert report.per_class[3].f1 == 0
    assert report.balanced_accuracy == 0.75
    assert report.macro_avg.recall == 1.5 / 4


def test_one_class_in_all_has_no_kappa_and_no_nan():
    report = classification_report(make([1, 1], [1, 1], 3))
    assert report.cohen_kappa is None
    assert report.matthews == 0
    assert "null" in json.dumps(report.as_dict(), allow_nan=False)


@pytest.mark.slow
@given(any_predictions())
@settings(max_examples=20, deadline=None)
def test_json_round_trip_is_exact(predictions: Predictions):
    report = classification_report(predictions)
    read = report_from_json(
        ClassificationReport, json.loads(json.dumps(report.as_dict(), allow_nan=False))
    )
    assert read == report
    assert read.text() == report.text()


def test_top_5_accuracy_above_ten_classes():
    random = np.random.default_rng(0)
    for classes in (10, 12):
        scores = random.random((200, classes)).round(1).astype(np.float32) + 0.1
        probabilities = scores / scores.sum(axis=1, keepdims=True)
        labels = random.integers(0, classes, 200)
        names = tuple(map(str, range(classes)))
        report = Predictions(np.arange(200), labels, probabilities, names, "test").report()
        if classes == 10:
            assert report.top5_accuracy is None
            assert "top5_accuracy" not in report.as_dict()
            continue
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, :5]
        expected = (order == labels[:, None]).any(axis=1).mean()
        assert report.top5_accuracy == expected != report.accuracy
        assert (
            report_from_json(ClassificationReport, json.loads(json.dumps(report.as_dict())))
            == report
        )
        assert f"top-5 accuracy {expected:.4f}" in report_with_heading(report, selected=False)
