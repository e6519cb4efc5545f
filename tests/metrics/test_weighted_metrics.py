"""Metrics by weight: scikit-learn's `sample_weight`, and a case twice for a weight of two."""

import json
from dataclasses import replace

import numpy as np
import pytest
import sklearn.metrics as sk

from ampft.comparison.statistics.interval import estimate_of_sums
from ampft.labels.multi_label import METRICS as MULTI
from ampft.labels.multi_label import MultiLabelPredictions
from ampft.metrics.paired import paired_interval
from ampft.tasks.report import report_from_json
from ampft.tasks.single_label import METRICS, Predictions

NAMES = ("a", "b", "c", "d")
N = 200


def outcome(weights, rows=None, seed=0):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, N)  # no example of the last class
    logits = random.normal(size=(N, 4)) + 1.5 * np.eye(4)[labels]
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    chosen = np.arange(N) if rows is None else rows
    return Predictions(
        np.arange(len(chosen)), labels[chosen], shares[chosen].astype(np.float32), NAMES, "test",
        weights=weights,
    )  # fmt: skip


def several(weights, rows=None):
    random = np.random.default_rng(1)
    labels = random.random((N, 3)) < 0.3
    shares = np.clip(0.3 + 0.4 * labels + random.normal(scale=0.2, size=(N, 3)), 0.01, 0.99)
    chosen = np.arange(N) if rows is None else rows
    return MultiLabelPredictions(
        labels[chosen], shares[chosen].astype(np.float32), NAMES[:3], "test", weights=weights
    )


WEIGHTS = np.random.default_rng(5).exponential(3, N)
WEIGHTS[::7] = 0


def test_metrics_are_those_of_scikit_learn():
    found = outcome(WEIGHTS)
    truth, predicted, shares = found.labels, found.predicted, found.probabilities
    every = {"sample_weight": WEIGHTS, "labels": range(4), "zero_division": 0}
    by_hand = {
        "accuracy": sk.accuracy_score(truth, predicted, sample_weight=WEIGHTS),
        "macro_f1": sk.f1_score(truth, predicted, average="macro", **every),
        "weighted_f1": sk.f1_score(truth, predicted, average="weighted", **every),
        "weighted_precision": sk.precision_score(truth, predicted, average="weighted", **every),
        "matthews": sk.matthews_corrcoef(truth, predicted, sample_weight=WEIGHTS),
        "cohen_kappa": sk.cohen_kappa_score(truth, predicted, sample_weight=WEIGHTS),
        "log_loss": sk.log_loss(
            truth, shares / shares.sum(1, keepdims=True), labels=range(4), sample_weight=WEIGHTS
        ),
    }
    report = found.report()
    reported, compared = report.metrics(), found.metrics()
    for name, value in by_hand.items():
        assert reported[name] == pytest.approx(value, rel=1e-6), name
        if name in compared:
            assert compared[name] == pytest.approx(value, rel=1e-6), name
    kept = truth[WEIGHTS > 0], predicted[WEIGHTS > 0]
    balanced = sk.recall_score(
        *kept, average="macro", sample_weight=WEIGHTS[WEIGHTS > 0], labels=range(3)
    )
    assert compared["balanced_accuracy"] == pytest.approx(balanced)
    assert outcome(None).metrics()["accuracy"] != pytest.approx(by_hand["accuracy"])
    assert "Metrics count rows by their weights." in report.tables()[0].note
    assert report_from_json(type(report), json.loads(json.dumps(report.as_dict()))) == report
    assert "is_weighted" not in outcome(None).report().as_dict()


def test_metrics_of_several_labels_are_those_of_scikit_learn():
    found = several(WEIGHTS)
    for average in ("micro", "macro", "weighted", "samples"):
        value = sk.f1_score(
            found.labels, found.predicted, average=average, sample_weight=WEIGHTS, zero_division=0
        )
        assert found.report().metrics()[f"{average}_f1"] == pytest.approx(value)
        assert found.metrics()[f"{average}_f1"] == pytest.approx(value)
    value = sk.average_precision_score(
        found.labels, found.probabilities, average="micro", sample_weight=WEIGHTS
    )
    assert found.report().metrics()["micro_average_precision"] == pytest.approx(value)


@pytest.mark.parametrize(("make", "metrics"), [(outcome, METRICS), (several, MULTI)])
def test_a_weight_of_two_is_the_case_twice(make, metrics):
    repeats = np.arange(N) % 3
    rows = np.repeat(np.arange(N), repeats)
    one, other = make(repeats.astype(np.float64)), make(None, rows)
    for name in (*metrics, "expected_calibration_error"):
        assert one.metrics()[name] == pytest.approx(other.metrics()[name], rel=1e-6), name
    theirs = other.report().metrics()
    for name, value in one.report().metrics().items():
        assert value == pytest.approx(theirs[name], rel=1e-6), name


def test_equal_weights_change_neither_metrics_nor_intervals():
    for weights in (np.ones(N), np.full(N, 0.25)):
        for name, metric in METRICS.items():
            plain = paired_interval(
                metric, outcome(None).sums(name), outcome(None, seed=3).sums(name)
            )
            same = paired_interval(
                metric, outcome(weights).sums(name), outcome(weights, seed=3).sums(name)
            )
            for part in ("value", "low", "high"):
                assert getattr(same, part) == pytest.approx(getattr(plain, part), rel=1e-9), name


@pytest.mark.parametrize(("make", "metrics"), [(outcome, METRICS), (several, MULTI)])
def test_a_row_of_weight_0_changes_no_uncertainty(make, metrics):
    """Otherwise a difference by chance has an interval of NaN, and a p-value of 2e-15."""
    weights = np.where(np.arange(N) % 7, 0.5, 0.0)
    kept = np.flatnonzero(weights)
    for name, metric in metrics.items():
        expected = metric.effect_of_changed_case(make(None, kept).sums(name))
        found = metric.effect_of_changed_case(make(weights).sums(name))
        assert found == pytest.approx(expected, rel=1e-9), name
    truth = outcome(weights)
    sums = [
        replace(truth, probabilities=outcome(None, seed=seed).probabilities).sums("macro_f1")
        for seed in range(6)
    ]
    estimate = estimate_of_sums(sums[:3], sums[3:], METRICS["macro_f1"])
    assert np.isfinite(estimate.interval(0.95)).all()
    assert estimate.p_difference() > 0.05


def test_weights_survive_the_predictions_file():
    import pyarrow as pa

    for found in (outcome(WEIGHTS), several(WEIGHTS)):
        columns = {"example_id": pa.array(np.arange(N)), **found.columns(slice(None))}
        back = type(found).from_table(pa.table(columns), found.metadata())
        np.testing.assert_array_equal(back.weights, WEIGHTS)
        assert back.metrics() == found.metrics()


def test_wrong_weights_are_refused():
    for weights in (np.zeros(N), -WEIGHTS, WEIGHTS[1:], np.full(N, np.nan)):
        with pytest.raises(ValueError, match="weights must be 200 finite numbers"):
            outcome(weights)
