"""Which weights are kept: the last ones, unless earlier ones are better by more than chance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import nn

from ampft.data.splits import Groups
from ampft.features.early_stopping import EarlyStopping
from ampft.features.validations import LOSS, Validations
from ampft.features.weights import BestModel
from ampft.metrics.paired import PairedGain, paired_gain, paired_interval
from ampft.metrics.sums import ACCURACY, single_label_sums
from ampft.ownership import PrivateFolder
from ampft.tasks.single_label import METRICS, Predictions

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


@pytest.fixture(autouse=True)
def private_folder(tmp_path):
    folder = PrivateFolder(tmp_path)
    yield folder
    folder.close()


def validations(tmp_path, rows: int, lines: list[str], *, named: str | None = None, patience=None):
    """Return the evaluations of a run of one step per epoch, whose model is one weight."""
    metric = METRICS[named or "accuracy"]
    best = BestModel(tmp_path, metric if named else METRICS[LOSS], EarlyStopping(patience))
    model = nn.Linear(1, 1, bias=False)
    lowest = None if named else torch.zeros(rows, dtype=torch.float64)
    return Validations(
        best, {"accuracy": "accuracy"}, Accelerator(cpu=True), model,
        lambda line: lines.append(" ".join(line.split())), 1, metric=metric, lowest=lowest,
    )  # fmt: skip


def outcome(probabilities) -> Predictions:
    """Return predictions that give the correct class of each row a probability."""
    correct = np.asarray(probabilities, dtype=np.float32)
    labels = np.arange(len(correct)) % 2
    table = np.stack([1 - correct, correct], axis=1).astype(np.float32)
    table[labels == 0] = table[labels == 0][:, ::-1]
    return Predictions(np.arange(len(correct)), labels, table, ("a", "b"), "validation")


def train(run: Validations, epochs) -> tuple[int, Any]:
    """Evaluate after each epoch; return the number of the epoch whose weight is kept, and why."""
    for number, probabilities in enumerate(epochs, 1):
        nn.init.constant_(run.model.weight, number)
        run.at_validation(number, outcome(probabilities))
        if run.should_stop:
            break
    steps = len(run.parts)
    last = run.model.weight.item()
    run.choose_weights()
    kept = round(run.model.weight.item())
    assert run.replaces_weights(steps) == (kept != last)
    part = run.record()["best"]
    assert (part.step, part.epoch) == (kept, kept)
    return kept, part


def test_rows_of_a_group_are_one_case(tmp_path):
    # The log loss of the first epoch is lower in three groups of ten rows, and higher in one.
    first, last = np.exp(-np.repeat([0.2, 0.2, 0.2, 0.6], 10)), np.full(40, np.exp(-0.5))
    lines: list[str] = []
    independent = validations(tmp_path, 40, lines)
    assert train(independent, [first, last])[0] == 1
    grouped = validations(tmp_path, 40, lines)
    grouped.groups = Groups(np.repeat(np.arange(4), 10), "author")
    assert train(grouped, [first, last])[0] == 2
    assert [line.rpartition(" (")[2] for line in lines if line.startswith("chosen")] == [
        "40 validation rows)",
        "4 independent validation rows)",
    ]


GOOD, BAD = [0.9] * 3, [0.9, 0.9, 0.4]


def noisy(mean: float, rows: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.clip(mean + 0.1 * random.normal(size=rows), 0.01, 0.99)


def test_three_rows_do_not_choose(tmp_path):
    lines: list[str] = []
    kept, part = train(validations(tmp_path, 3, lines), [GOOD, BAD, BAD])
    assert (kept, part.by, part.rows) == (3, "last", 3)
    assert part.value == pytest.approx(2 / 3)
    assert "epoch 3, the last, because no other is better by more than chance" in lines[-1]
    assert "(3 validation rows)" in lines[-1]


def test_a_named_metric_chooses_on_three_rows_and_says_that_they_are_few(tmp_path):
    lines: list[str] = []
    kept, part = train(validations(tmp_path, 3, lines, named="accuracy"), [GOOD, BAD, BAD])
    assert (kept, part.by, part.value) == (1, "metric", 1.0)
    assert "(3 validation rows). They are too few to choose by a metric: remove --m" in lines[-1]


def test_equal_values_of_a_named_metric_are_decided_by_the_log_loss(tmp_path):
    run = validations(tmp_path, 3, [], named="accuracy")
    assert train(run, [[0.6] * 3, [0.9] * 3, [0.8] * 3])[0] == 2


def test_earlier_weights_are_kept_if_they_are_better_by_more_than_chance(tmp_path):
    lines: list[str] = []
    epochs = [noisy(0.6, 100, 1), noisy(0.8, 100, 2), noisy(0.5, 100, 3)]
    kept, part = train(validations(tmp_path, 100, lines), epochs)
    assert (kept, part.by) == (2, "log_loss")
    assert part.gain > 3 * part.gain_error > 0
    assert "epoch 2, whose log loss is lower than the last one's by more than chance" in lines[-1]


def test_a_lower_accuracy_is_not_kept_for_a_lower_log_loss(tmp_path):
    last = np.where(np.arange(100) < 85, 0.7, 0.001)  # overconfident, with a high log loss
    earlier = np.where(np.arange(100) < 84, 0.68, 0.45)
    assert outcome(earlier).metrics()[LOSS] < outcome(last).metrics()[LOSS]
    run = validations(tmp_path, 100, [])
    kept, part = train(run, [earlier, last])
    assert run.gain is not None
    assert run.gain.is_beyond_chance
    assert (kept, part.by, part.value) == (2, "last", 0.85)


def test_a_last_log_loss_that_is_undefined_is_never_kept(tmp_path, monkeypatch):
    run = validations(tmp_path, 3, [])
    usual = Predictions.metrics
    monkeypatch.setattr(
        Predictions,
        "metrics",
        lambda self: usual(self) | ({LOSS: math.nan} if self.probabilities[0, 0] > 0.95 else {}),
    )
    assert train(run, [GOOD, [0.99] * 3])[0] in (1, 2)


@pytest.mark.parametrize(("patience", "stops"), [(1, 4), (2, 5), (9, 6)])
def test_patience_counts_validations_since_the_lowest_log_loss(tmp_path, patience, stops):
    means = [0.6, 0.7, 0.8, 0.5, 0.5, 0.5]  # the accuracy is best in the first epoch already
    run = validations(tmp_path, 100, [], patience=patience)
    kept, _ = train(run, [np.full(100, mean) + 0.001 * noisy(0, 100, 1) for mean in means])
    assert len(run.parts) == stops
    assert kept == 3


def test_the_gain_is_a_paired_t_test():
    from scipy.stats import ttest_rel

    random = np.random.default_rng(0)
    ones, found, expected = np.ones(12), [], []
    for _ in range(200):
        first, second = random.normal(0.4, 1, 12), random.normal(0, 1, 12)
        found.append(paired_gain(first, second, ones).is_beyond_chance)
        test = ttest_rel(first, second)
        expected.append(test.pvalue < 0.05 and test.statistic > 0)
    assert found == expected
    assert 10 < sum(found) < 100


def test_units_of_a_case_are_not_independent():
    random = np.random.default_rng(1)
    units = random.integers(1, 9, 40).astype(float)
    sums = random.normal(0.1, 1, 40) * units
    whole = paired_gain(sums, np.zeros(40), units)
    means = [
        sums[chosen].sum() / units[chosen].sum()
        for chosen in (random.integers(0, 40, 40) for _ in range(2000))
    ]
    assert whole.error == pytest.approx(np.std(means), rel=0.15)
    assert not PairedGain(1.0, 0.0, 1).is_beyond_chance, "one case shows nothing"


@pytest.mark.parametrize("cases", [2, 3])
def test_a_few_cases_that_agree_show_nothing(cases, tmp_path):
    """Their gains do not vary, so that the usual standard error is 0."""
    run = validations(tmp_path, cases, [])
    kept, part = train(run, [np.full(cases, 0.9), np.full(cases, 0.6)])
    assert part.gain == pytest.approx(np.log(0.9 / 0.6))
    assert (kept, part.by) == (2, "last")
    many = validations(tmp_path, 100, [])
    assert train(many, [np.full(100, 0.9), np.full(100, 0.6)])[0] == 1


def test_an_interval_of_two_cases_that_agree_contains_0():
    labels = np.zeros(2, dtype=np.int64)
    right, wrong = (single_label_sums(labels, labels + shift, 2) for shift in (0, 1))
    found = paired_interval(ACCURACY, right, wrong)
    assert found is not None
    assert found.value == 1
    assert found.low < 0


def test_weights_of_classes_choose_the_epoch(tmp_path):
    """The first epoch is better for the second class and worse for the other."""
    is_second = np.arange(40) % 2 == 1
    epochs = [np.where(is_second, 0.8, 0.55), np.where(is_second, 0.6, 0.95)]
    plain, weighted = (validations(tmp_path, 40, []) for _ in range(2))
    weighted.class_weights = np.array([0.1, 8.0], dtype=np.float32)
    assert train(plain, epochs)[0] == 2
    kept, part = train(weighted, epochs)
    assert (kept, part.by) == (1, LOSS)
