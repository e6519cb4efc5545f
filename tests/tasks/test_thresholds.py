"""Thresholds of labels: the best F1 over all possible ones, and what they change."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import f1_score

from ampft.labels.multi_label import MultiLabelPredictions, MultiLabelReport
from ampft.metrics.targets import ThresholdTarget
from ampft.tasks.loss_settings import ValidationFitSettings
from ampft.tasks.report import report_from_json
from ampft.tasks.tuning import best_threshold, with_decisions
from ampft.tasks.tuning import fit_decisions as tuned_by
from ampft.words.token_labels import TokenPredictions

NAMES = ("joy", "fear", "anger")


def predictions(n=60, seed=0, **changes):
    rng = np.random.default_rng(seed)
    labels = rng.random((n, 3)) < (0.4, 0.1, 0.0)
    probabilities = (0.3 * labels + 0.15 * rng.random((n, 3))).astype(np.float32)
    return MultiLabelPredictions(labels, probabilities, NAMES, "validation", **changes)


def with_best_f1(outcome):
    return tuned_by(outcome, ValidationFitSettings(tune_thresholds="f1"))


@pytest.mark.parametrize("seed", range(20))
def test_no_threshold_has_a_better_f1(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    scores = rng.random(n).astype(np.float32).round(int(rng.integers(1, 4)))
    has = rng.random(n) < 0.3
    has[0] = True
    chosen = best_threshold(has, scores, 0.5)
    own = f1_score(has, scores >= np.float32(chosen), zero_division=0)
    others = [f1_score(has, scores >= t, zero_division=0) for t in scores]
    assert own == pytest.approx(max(others))


def test_a_better_f1_counts_more_than_a_threshold_near_one_half():
    """Above 0.55, F1 is 2/3; with all three, it is 4/5."""
    scores = np.array([0.9, 0.2, 0.1], dtype=np.float32)
    chosen = best_threshold(np.array([True, False, True]), scores, 0.5)
    assert chosen == pytest.approx(0.05)


@pytest.mark.parametrize("share", [1e-6, 0.3, 1 - 1e-6])
def test_what_only_rounding_tells_apart_is_decided_alike(share):
    """In a batch of another size, either may be the larger one."""
    high = np.float32(share)
    low = np.nextafter(high, np.float32(0))
    chosen = best_threshold(np.array([True, False]), np.array([high, low]), 0.5)
    assert chosen < 0.9 * low if share < 0.9 else chosen < low  # F1 2/3, and 0 with none
    apart = np.array([high, high * np.float32(0.99)])
    assert apart[1] < best_threshold(np.array([True, False]), apart, 0.5) < apart[0]


def test_a_label_without_examples_keeps_the_default():
    tuned = with_best_f1(predictions(threshold=0.7))
    assert tuned.thresholds[2] == 0.7
    assert len(set(tuned.thresholds)) == 3


def test_a_label_whose_precision_is_out_of_reach_is_never_predicted():
    """A new row may be more confident than every validation row, whose best is wrong."""
    scores = np.array([0.8, 0.6, 0.3], dtype=np.float32)
    has = np.array([False, True, False])
    chosen = best_threshold(has, scores, 0.5, ThresholdTarget("precision", least=1.0))
    assert not np.float32(1) >= np.float32(chosen)
    reached = best_threshold(~has, scores, 0.5, ThresholdTarget("precision", least=1.0))
    assert np.float32(0.8) >= np.float32(reached)


def test_tuned_thresholds_find_what_one_half_misses():
    before = predictions()
    tuned = with_best_f1(before)
    assert not before.predicted.any()
    assert before.metrics()["macro_f1"] == 0
    assert tuned.metrics()["macro_f1"] > 0.5
    assert tuned.metrics()["log_loss"] == before.metrics()["log_loss"]
    test = predictions(seed=1)
    assert with_decisions(test, tuned.decisions).thresholds == tuned.thresholds
    assert with_decisions(test, tuned.decisions).metrics()["macro_f1"] > 0.5


def test_the_report_and_the_file_have_the_thresholds(tmp_path):
    from ampft.runs.predictions import read_predictions, write_predictions

    tuned = with_best_f1(predictions())
    report = tuned.report()
    assert f"{tuned.thresholds[0]:.3f}" in report.text()
    assert "at least its threshold, which was chosen on the validation" in " ".join(
        report.text().split()
    )
    assert report_from_json(MultiLabelReport, json.loads(json.dumps(report.as_dict()))) == report
    write_predictions(tmp_path / "p.parquet", tuned, lambda rows: {})
    again = read_predictions(tmp_path / "p.parquet")
    assert again.thresholds == tuned.thresholds
    assert np.array_equal(again.predicted, tuned.predicted)
    plain = predictions().report()
    assert plain.label_thresholds is None
    assert "at least 0.5" in plain.text()


@pytest.mark.parametrize("count", [3, 30, 300])
def test_the_confidence_does_not_shrink_with_the_number_of_labels_or_words(count):
    """It is that of the least certain decision; the product of 300 is 0.05, or 0.000000."""
    names = tuple(f"label {i}" for i in range(count))
    probabilities = np.full((2, count), 0.01, dtype=np.float32)
    probabilities[1, 1] = 0.6
    none = np.zeros((2, count), dtype=bool)
    outcome = MultiLabelPredictions(none, probabilities, names, "test")
    assert outcome.confidence == pytest.approx([0.99, 0.6])
    shares = np.full((2 * count, 2), (0.1, 0.9), dtype=np.float32)
    shares[count + 1] = 0.4, 0.6
    counts = np.array([count, count])
    sentences = TokenPredictions(np.zeros(2 * count, np.int64), counts, shares, ("O", "X"), "test")
    assert sentences.confidence == pytest.approx([0.9, 0.6])
