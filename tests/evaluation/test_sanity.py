"""The rules that say that a training was worth nothing, on predictions whose worth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from sklearn.metrics import recall_score

from ampft.data.dataset import ClassificationData
from ampft.data.splits import Groups
from ampft.errors import TrainingStopped
from ampft.evaluation.sanity import (
    chance_loss,
    constant_outcome,
    is_destroyed,
    loss_warnings,
    outcome_warnings,
    result_warnings,
    stop_if_far_above_chance,
    validation_warnings,
    youden_j_values,
)
from ampft.tasks.task import make_task
from ampft.tasks.task_settings import TaskSettings
from ampft.text.warning_names import EXPLODED, NEAR_CHANCE, NEVER_MOVED, NOT_BETTER, ONE_PREDICTION

NAMES = ["common", "less", "rare"]


def made(labels, **settings):
    """A task whose `train` and `test` have these labels."""
    several = isinstance(labels[0], list)
    names = ClassLabel(names=NAMES)
    features = Features({"text": Value("string"), "label": List(names) if several else names})
    texts = [f"text {i}" for i in range(len(labels))]
    part = Dataset.from_dict({"text": texts, "label": labels}, features=features)
    splits = DatasetDict({"train": part, "test": part})
    task = "multi-label" if several else None
    return make_task(
        ClassificationData(splits, ("text",), "text", "made", {}, ()),
        TaskSettings(task=task, **settings),
    )


def predicted(task, choices, sure=0.8):
    """The outcome of predicting these classes, or 0/1 rows of labels, with one confidence."""
    choices = np.asarray(choices)
    if choices.ndim == 2:
        probabilities = np.where(choices, sure, 1 - sure)
    else:
        rest = (1 - sure) / (len(NAMES) - 1)
        probabilities = np.full((len(choices), len(NAMES)), rest)
        probabilities[np.arange(len(choices)), choices] = sure
    return task.outcome("test", {"probabilities": probabilities.astype(np.float32)})


def rules(task, choices, **settings):
    constant = constant_outcome(task, "test")
    return set(outcome_warnings(predicted(task, choices, **settings), constant))


LABELS = [0] * 60 + [1] * 30 + [2] * 10


@pytest.mark.slow
def test_the_constant_outcome_are_the_majority_class_with_the_entropy_of_the_labels():
    task = made(LABELS)
    constant = constant_outcome(task, "test")
    entropy = -sum(p * math.log(p) for p in (0.6, 0.3, 0.1))
    assert constant.metrics()["accuracy"] == 0.6
    assert constant.metrics()["log_loss"] == pytest.approx(entropy)
    assert chance_loss(task) == pytest.approx(entropy)
    assert constant.only_prediction == "common"


@pytest.mark.slow
def test_chance_of_several_labels_is_the_entropy_of_each():
    task = made([[0, 1]] * 30 + [[0]] * 50 + [[]] * 20)
    entropy = [-p * math.log(p) - (1 - p) * math.log(1 - p) for p in (0.8, 0.3)]
    assert chance_loss(task) == pytest.approx(sum(entropy) / 3, rel=1e-4)


@pytest.mark.parametrize(
    ("losses", "rule"),
    [
        ([1.0] * 20 + [0.3] * 20, None),
        ([0.9, 4.0, 8.0] + [5.0] * 20, EXPLODED),
        ([0.1] * 20 + [0.2] * 20, None),  # overfits a little, still far below chance
        ([0.9] * 40, NEAR_CHANCE),
        ([0.9] * 30 + [0.88] * 10, NEAR_CHANCE),
        ([], None),
    ],
)
def test_losses(losses, rule):
    assert list(loss_warnings(losses, chance=0.9)) == ([rule] if rule else [])


def test_few_steps_with_a_row_of_a_rare_class_are_no_explosion():
    """Half of these steps have a row of a class at 1:30, which weighs as much as the others."""
    losses = [0.7, 0.5, 0.02, 5.4, 0.01, 4.9, 5.2]
    assert float(np.mean(losses[-5:])) > 1.5 * 1.73
    assert NEAR_CHANCE in loss_warnings(losses, chance=1.73)
    assert EXPLODED in loss_warnings([0.7, 0.5, *[5.1, 4.9, 5.4, 5.0, 5.2] * 2], chance=1.73)


def test_truncated_texts_are_named_only_where_there_are_some():
    (text,) = loss_warnings([0.9] * 40, chance=0.9).values()
    assert text.endswith("Train longer, or change --learning_rate.")
    (text,) = loss_warnings([0.9] * 40, chance=0.9, truncated=2).values()
    assert text.endswith("or, as 2 training texts are truncated, let the model read more of them.")


RARE = [0] * 290 + [1] * 10


def sure_of_the_frequent(task, rare):
    """Return the outcome of a model that gives the rows of the rare class these probabilities."""
    rng = np.random.default_rng(0)
    of_rare = rng.uniform(1e-8, 1e-7, len(RARE))
    of_rare[290:] = rare
    probabilities = np.stack([1 - of_rare, of_rare, np.full(len(RARE), 1e-12)], 1)
    return task.outcome("test", {"probabilities": probabilities.astype(np.float32)})


@pytest.mark.slow
def test_a_model_that_ranks_is_not_destroyed_however_sure_it_is():
    task = made(RARE)
    constant = constant_outcome(task, "test")
    found = sure_of_the_frequent(task, 1e-6)  # all above the others: a threshold finds them
    assert {ONE_PREDICTION, NOT_BETTER} == {*outcome_warnings(found, constant)}
    assert not is_destroyed(found, constant, None)
    stop_if_far_above_chance(task, found, [0.02, *[1.0] * 5], [])


@pytest.mark.slow
def test_a_model_that_is_sure_and_ranks_nothing_is_destroyed():
    task = made(RARE)
    constant = constant_outcome(task, "test")
    of_rare = np.random.default_rng(1).uniform(1e-8, 1e-7, 10)
    found = sure_of_the_frequent(task, of_rare)
    assert is_destroyed(found, constant, None)
    with pytest.raises(TrainingStopped, match="training destroyed the model"):
        stop_if_far_above_chance(task, found, [0.02, *[1.0] * 5], [])


@pytest.mark.slow
def test_a_model_that_is_not_worse_than_the_class_frequencies_is_not_destroyed():
    task = made(RARE)
    assert not is_destroyed(constant_outcome(task, "test"), constant_outcome(task, "test"), None)


def test_losses_that_exploded_in_the_first_steps():
    """The first window of steps is high already: the first loss and chance are what counts."""
    assert EXPLODED in loss_warnings([2.48, 9.1, 8.3, 5.9, 6.1, 4.7, 4.6, 4.5], chance=2.45)


RANDOM = np.random.default_rng(0).permutation([0, 1, 2] * 40)[:100]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("choices", "sure", "losses", "earlier", "stops"),
    [
        (RANDOM, 0.9999, [1.1], [], True),
        (RANDOM, 0.9999, [1.1], [{"log_loss": 1.2}, {"log_loss": None}], True),
        (RANDOM, 0.9, [1.1], [], False),  # certain, and still below three times chance
        (RANDOM, 0.9999, [1.1], [{"log_loss": 0.5}], False),  # there is a useful model
        (RANDOM, 0.9999, [8.0], [], False),  # it began far above chance
        (RANDOM, 0.9999, [], [], False),  # no step was applied
        (RANDOM, 0.9999, [1.1, *[0.01] * 5], [], False),  # it fits the training rows
        (RANDOM, 0.9999, [1.1, *[9.0] * 5], [], True),
        # Errors lose much, but the predictions are better than chance.
        ("half", 1 - 1e-9, [1.1], [], False),
    ],
)
def test_a_loss_far_above_chance_stops_the_training(choices, sure, losses, earlier, stops):
    task = made(LABELS)
    if isinstance(choices, str):
        choices = np.where(np.arange(100) % 2, LABELS, RANDOM)
    outcome = predicted(task, choices, sure)
    if stops:
        with pytest.raises(TrainingStopped, match=r"loss is [3-9]\.\d+, .* gives 0\.\d+: training"):
            stop_if_far_above_chance(task, outcome, losses, earlier)
    else:
        stop_if_far_above_chance(task, outcome, losses, earlier)


@pytest.mark.slow
def test_one_prediction_for_every_example():
    assert rules(made(LABELS), [0] * 100) == {ONE_PREDICTION, NOT_BETTER}


@pytest.mark.slow
def test_random_predictions_are_of_no_use():
    choices = np.random.default_rng(0).integers(0, 3, 100)
    assert rules(made(LABELS), choices) == {NOT_BETTER}


@pytest.mark.slow
def test_good_predictions_pass():
    choices = np.array(LABELS)
    choices[::10] = 2
    assert rules(made(LABELS), choices) == set()


@pytest.mark.slow
def test_an_overconfident_model_passes_if_its_choices_inform():
    choices = np.array(LABELS)
    choices[::3] = 0
    assert predicted(made(LABELS), choices, sure=0.9999).metrics()["log_loss"] > 1.3
    assert rules(made(LABELS), choices, sure=0.9999) == set()


@pytest.mark.slow
def test_a_model_for_rare_classes_passes_below_the_majority_class():
    """Balanced weights cost accuracy: 0.55 here, where always "common" has 0.6."""
    choices = np.array([0] * 15 + [1] * 25 + [2] * 20 + [1] * 30 + [2] * 10)
    assert np.mean(choices == LABELS) < 0.6
    assert rules(made(LABELS), choices) == set()


@pytest.mark.slow
def test_informedness_is_youdens_j_of_each_class():
    choices = np.random.default_rng(1).integers(0, 3, 100)
    found = youden_j_values(predicted(made(LABELS), choices))
    hit = recall_score(LABELS, choices, average=None)
    false = [np.mean(choices[np.array(LABELS) != k] == k) for k in range(3)]
    assert found.shape == (100,)
    assert found.mean() == pytest.approx(np.sum(hit - false))


@pytest.mark.slow
def test_several_labels():
    labels = [[0, 1]] * 30 + [[0]] * 50 + [[]] * 20
    task = made(labels)
    right = task.labels["test"].astype(int)
    assert rules(task, right) == set()
    assert rules(task, np.zeros_like(right)) == {ONE_PREDICTION, NOT_BETTER}
    constant = constant_outcome(task, "test")
    assert constant.only_prediction == "common"


def test_validations_that_never_moved():
    same = [{"accuracy": 0.25, "log_loss": 1.5}] * 2
    assert list(validation_warnings(same)) == [NEVER_MOVED]
    assert validation_warnings([*same, {"accuracy": 0.25, "log_loss": 1.4}]) == {}
    assert validation_warnings(same[:1]) == {}


@pytest.mark.parametrize(("right", "wanted"), [(150, set()), (125, {NEAR_CHANCE, NOT_BETTER})])
def test_a_loss_near_chance_is_no_problem_if_the_predictions_are_better(right, wanted):
    """150 of 240 beside 125 by the majority: 3 standard errors, which a loss does not show."""
    labels = np.array([0] * 125 + [1] * 115)
    task = made(labels)
    choices = labels.copy()
    choices[np.random.default_rng(0).permutation(240)[right:]] ^= 1
    outcome = predicted(task, choices, sure=0.55)
    constant = constant_outcome(task, "test")
    assert set(result_warnings([0.69] * 40, 0.69, outcome, constant)) == wanted


def test_rows_of_a_group_are_one_case():
    """A model that is right in seven of ten authors is not shown to be better than chance."""
    labels = np.arange(200) % 2
    task = made(labels)
    authors = Groups(np.arange(200) // 20, "author")
    choices = np.where(authors.ids < 7, labels, 1 - labels)
    outcome, constant = predicted(task, choices, sure=0.6), constant_outcome(task, "test")
    assert outcome_warnings(outcome, constant) == {}
    found = outcome_warnings(outcome, constant, authors)
    assert list(found) == [NOT_BETTER]
    assert "on 200 examples in 10 groups" in found[NOT_BETTER]
    right = predicted(task, labels, sure=0.6)
    assert outcome_warnings(right, constant, authors) == {}


def test_groups_of_other_sizes_do_not_hide_that_a_model_is_better():
    labels = np.arange(200) % 2
    task = made(labels)
    right, constant = predicted(task, labels, sure=0.6), constant_outcome(task, "test")
    one_large = Groups(np.maximum(np.arange(200) - 100, 0), "author")
    assert outcome_warnings(right, constant, one_large) == {}
