"""ROC AUC and average precision against scikit-learn, and where they are undefined."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from ampft.metrics.ranking import RANKING, class_ranking_metrics, ranking_values
from ampft.tasks.single_label import Predictions

EQUAL = partial(pytest.approx, rel=1e-12)  # sums in another order


def predictions(classes: int, seed: int, rows: int = 60) -> Predictions:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, rows)
    logits = generator.normal(size=(rows, classes)) + 2 * (labels[:, None] == np.arange(classes))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    names = tuple(map(str, range(classes)))
    return Predictions(np.arange(rows), labels, shares.astype(np.float32), names, "test")


@pytest.mark.parametrize("seed", range(5))
def test_two_classes(seed):
    outcome = predictions(2, seed)
    scores = outcome.probabilities[:, 1]
    found = outcome.report().metrics()
    assert found["roc_auc"] == EQUAL(roc_auc_score(outcome.labels, scores))
    assert found["average_precision"] == EQUAL(average_precision_score(outcome.labels, scores))
    assert "macro_roc_auc" not in found
    swapped = class_ranking_metrics(1 - outcome.labels, outcome.probabilities[:, ::-1])
    assert swapped["roc_auc"] == pytest.approx(found["roc_auc"])  # either class gives the same
    assert swapped["average_precision"] != found["average_precision"]


@pytest.mark.parametrize("average", ["macro", "weighted"])
@pytest.mark.parametrize("seed", range(5))
def test_one_against_the_rest(seed, average):
    outcome = predictions(4, seed)
    # As float64 rows that sum to one, which scikit-learn demands of several classes.
    scores = outcome.probabilities.astype(np.float64)
    scores /= scores.sum(axis=1, keepdims=True)
    expected = roc_auc_score(outcome.labels, scores, multi_class="ovr", average=average)
    has = outcome.labels[:, None] == np.arange(4)
    precision = average_precision_score(has, outcome.probabilities, average=average)
    report = outcome.report()
    found = report.metrics()
    assert found[f"{average}_roc_auc"] == pytest.approx(expected, abs=1e-6)
    assert found[f"{average}_average_precision"] == pytest.approx(precision)
    assert "ROC AUC" in report.text()


def test_several_labels():
    generator = np.random.default_rng(0)
    has, scores = generator.random((50, 3)) < 0.4, generator.random((50, 3))
    found = ranking_values(has, scores)
    for average in ("macro", "weighted"):
        assert found[f"{average}_roc_auc"] == EQUAL(roc_auc_score(has, scores, average=average))


@pytest.mark.parametrize("average", ["macro", "weighted"])
def test_a_label_that_all_rows_have_counts_as_in_scikit_learn(average):
    generator = np.random.default_rng(1)
    has, scores = generator.random((30, 3)) < 0.4, generator.random((30, 3))
    has[:, 1] = True  # its average precision is 1, and it has no ROC AUC
    found = ranking_values(has, scores)
    expected = average_precision_score(has, scores, average=average)
    assert found[f"{average}_average_precision"] == EQUAL(expected)
    others = roc_auc_score(has[:, ::2], scores[:, ::2], average=average)
    assert found[f"{average}_roc_auc"] == EQUAL(others)


@pytest.mark.parametrize("seed", range(20))
def test_equal_probabilities_are_one_step(seed):
    generator = np.random.default_rng(seed)
    has = generator.random(40) < 0.4
    scores = generator.integers(0, 6, 40) / 5  # few different ones
    for weights in (None, generator.random(40)):
        found = ranking_values(has[:, None], scores[:, None], weights)
        expected = roc_auc_score(has, scores, sample_weight=weights)
        assert found["roc_auc"] == EQUAL(expected)
        expected = average_precision_score(has, scores, sample_weight=weights)
        assert found["average_precision"] == EQUAL(expected)


def test_classes_that_cannot_be_ranked_do_not_count():
    scores = np.random.default_rng(0).random((6, 3))
    labels = np.array([0, 1, 0, 1, 1, 0])  # class 2 has no example
    has = labels[:, None] == np.arange(2)
    expected = ranking_values(has, scores[:, :2])
    assert class_ranking_metrics(labels, scores) == expected
    assert class_ranking_metrics(np.zeros(6, int), scores[:, :2]) == {}
    assert class_ranking_metrics(labels, np.ones((6, 201))) == {}
    assert expected.keys() <= RANKING.keys()
