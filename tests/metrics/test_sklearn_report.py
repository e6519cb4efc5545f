"""The report that is printed and stored comes from scikit-learn's `classification_report`."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as sk

from ampft.labels.multi_label import MultiLabelPredictions
from ampft.labels.ordinal import OrdinalPredictions
from ampft.media.pixel_labels import PixelLabels
from ampft.media.pixel_outcome import PixelPredictions
from ampft.metrics.scores import report_scores
from ampft.tasks.single_label import Predictions, SingleLabel
from ampft.words.token_labels import TokenPredictions

NAMES = ("a", "b", "c")


def probabilities(seed: int, n: int, classes: int = 3) -> np.ndarray:
    values = np.random.default_rng(seed).random((n, classes)).astype(np.float32)
    return values / values.sum(axis=1, keepdims=True)


def single(seed: int = 0, kind: type[Predictions] = Predictions) -> Predictions:
    labels = np.random.default_rng(seed + 100).integers(0, 2, 50)  # the third class is absent
    return kind(np.arange(50), labels, probabilities(seed, 50), NAMES, split="test")


def several(seed: int = 0) -> MultiLabelPredictions:
    labels = np.random.default_rng(seed + 100).random((50, 3)) < 0.3
    return MultiLabelPredictions(labels, probabilities(seed, 50), NAMES, "test", 0.4)


def words() -> TokenPredictions:
    tags = ("O", "B-PER", "I-PER")
    labels = np.random.default_rng(1).integers(0, 3, 50)
    return TokenPredictions(labels, np.full(10, 5), probabilities(0, 50), tags, "test")


def pixels() -> PixelPredictions:
    import torch

    logits = torch.randn(3, 3, 8, 12, generator=torch.Generator().manual_seed(0))
    labels = torch.randint(0, 3, (3, 8, 12), generator=torch.Generator().manual_seed(1))
    inputs = {"labels": labels, "label_sizes": torch.tensor([(8, 12)] * 3)}
    problem = PixelLabels(SingleLabel(NAMES))
    return problem.outcome("test", None, problem.decode(logits, inputs))


@pytest.mark.parametrize("seed", range(5))
def test_a_report_is_scikit_learns_dictionary_bit_for_bit(seed):
    found = single(seed)
    expected = sk.classification_report(
        found.labels, found.predicted, labels=range(3), target_names=NAMES,
        output_dict=True, zero_division=0,
    )  # fmt: skip
    assert found.report().output_dict() == expected
    assert expected["c"]["support"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_report_of_several_labels_is_scikit_learns_dictionary_bit_for_bit(seed):
    found = several(seed)
    expected = sk.classification_report(
        found.labels, found.predicted, target_names=NAMES, output_dict=True, zero_division=0
    )
    assert found.report().output_dict() == expected


def test_weights_count_and_supports_are_examples():
    found = single()
    weights = np.random.default_rng(5).random(50)
    rows, averages = report_scores(found.labels, found.predicted, 3, weights)
    expected = sk.precision_recall_fscore_support(
        found.labels, found.predicted, labels=range(3), sample_weight=weights, zero_division=0
    )
    assert [row.f1 for row in rows] == expected[2].tolist()
    assert [row.support for row in rows] == np.bincount(found.labels, minlength=3).tolist()
    assert averages["weighted"].f1 == np.average(expected[2], weights=expected[3])
    assert averages["macro"].f1 != report_scores(found.labels, found.predicted, 3)[1]["macro"].f1


@pytest.mark.parametrize(
    "make", [single, lambda: single(0, OrdinalPredictions), several, words, pixels]
)
def test_every_task_with_such_a_report_asks_scikit_learn(make, monkeypatch):
    asked, ask = [], sk.classification_report

    def count(*arguments, **options):
        asked.append(arguments)
        return ask(*arguments, **options)

    outcome = make()
    monkeypatch.setattr(sk, "classification_report", count)
    before = outcome.report()
    assert asked
    monkeypatch.setattr(sk, "precision_recall_fscore_support", None)
    assert outcome.report() == before
