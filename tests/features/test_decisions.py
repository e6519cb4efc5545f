"""Decisions fitted on validation: what they change, what they say, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.metrics import log_loss, precision_score, recall_score

from ampft.arguments import parse_classify_arguments
from ampft.decision import Abstention, Decisions
from ampft.errors import InputError
from ampft.features.decision_figures import FittedPart, abstention_sentence
from ampft.features.decisions import FittedDecisions
from ampft.labels.multi_label import MultiLabelPredictions
from ampft.metrics.abstention import rows_needed, split_in_halves
from ampft.metrics.targets import ThresholdTarget, parse_threshold_target
from ampft.tasks.loss_settings import ValidationFitSettings
from ampft.tasks.single_label import Predictions, SingleLabel
from ampft.tasks.task_settings import check_data_for_decisions
from ampft.tasks.tuning import best_threshold
from ampft.text.json_io import from_json, json_values

TWO, FOUR = ("ham", "spam"), ("a", "b", "c", "d")


def single(split: str, n: int, seed: int, names=TWO, sharpness: float = 3.0) -> Predictions:
    """Return predictions whose logits are too large by the factor `sharpness`."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (n, len(names)))
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (rng.random(n)[:, None] > shares.cumsum(axis=1)).sum(axis=1)
    sharp = (sharpness * logits).astype(np.float32)
    powers = np.exp(sharp - sharp.max(axis=1, keepdims=True))
    probabilities = powers / powers.sum(axis=1, keepdims=True)
    return Predictions(np.arange(n), labels, probabilities, names, split, logits=sharp)


def several(split: str, n: int, seed: int) -> MultiLabelPredictions:
    rng = np.random.default_rng(seed)
    logits = rng.normal(-2, 4, (n, 4))
    has = rng.random((n, 4)) < 1 / (1 + np.exp(-logits))
    sharp = (2 * logits).astype(np.float32)
    shares = 1 / (1 + np.exp(-sharp))
    return MultiLabelPredictions(has, shares, FOUR, split, logits=sharp)


def feature_of(settings: ValidationFitSettings, validation, monkeypatch) -> FittedDecisions:
    """Return the feature of a run whose rows are all independent."""
    monkeypatch.setattr("ampft.features.decisions.dependent_groups", lambda *_: None)
    data = SimpleNamespace(splits={"validation": validation.truth})
    task = SimpleNamespace(data=data, label_names=validation.label_names, class_weights=None)
    return FittedDecisions(settings, task)


def fitted(settings, validation, test, monkeypatch):
    feature = feature_of(settings, validation, monkeypatch)
    outcome = feature.decided(test, lambda: feature.decided(validation, lambda: validation))
    part = feature.record()["decisions"]
    again = from_json(FittedPart, json.loads(json.dumps(json_values(part))))
    assert again == part, "run.json keeps it"
    return outcome, part, feature


@pytest.mark.parametrize("make", [single, several])
def test_calibration_improves_the_probabilities_and_no_decision_of_two_classes(make, monkeypatch):
    validation, test = make("validation", 600, 0), make("test", 500, 1)
    outcome, part, _ = fitted(ValidationFitSettings(calibrate=True), validation, test, monkeypatch)
    assert part.temperature == pytest.approx(3 if make is single else 2, rel=0.25)
    if make is single:
        assert np.array_equal(outcome.predicted, test.predicted)
        figure = part.figures["log_loss"]
        assert figure.fitted == pytest.approx(log_loss(test.labels, outcome.probabilities))
        assert figure.untouched == pytest.approx(log_loss(test.labels, test.probabilities))
    for name in ("log_loss", "brier", "expected_calibration_error"):
        figure = part.figures[name]
        assert figure.fitted < figure.untouched
        low, high = figure.difference_interval
        assert low < figure.fitted - figure.untouched < high < 0
    reported = outcome.metrics()["expected_calibration_error"]
    assert part.figures["expected_calibration_error"].fitted == pytest.approx(reported)


def test_the_calibration_error_beside_thresholds_says_that_it_is_without_them(monkeypatch):
    validation, test = several("validation", 600, 0), several("test", 500, 1)
    settings = ValidationFitSettings(calibrate=True, tune_thresholds="recall=0.99")
    outcome, part, _ = fitted(settings, validation, test, monkeypatch)
    figure = part.figures["expected_calibration_error"]
    assert figure.fitted != pytest.approx(outcome.metrics()["expected_calibration_error"])
    assert figure.title == "expected calibration error (15 bins), threshold 0.5"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "target", ["f1", "precision=0.9", "recall=0.95", "cost=10:1", "cost=1:10", "precision=1"]
)
def test_a_threshold_is_the_best_of_all(target, seed):
    rng = np.random.default_rng(seed)
    scores = rng.random(60).astype(np.float32).round(2)
    has = rng.random(60) < scores
    aim = parse_threshold_target(target)
    found = best_threshold(has, scores, 0.5, aim)

    def goodness(threshold):
        predicted = scores >= np.float32(threshold)
        right, alarms = (has & predicted).sum(), (predicted & ~has).sum()
        misses = (has & ~predicted).sum()
        precision = right / predicted.sum() if predicted.any() else 1
        recall = right / has.sum()
        if aim.name == "f1":
            return 2 * right / (2 * right + alarms + misses)
        if aim.name == "precision":
            return recall if precision >= aim.least else -1
        if aim.name == "recall":
            return precision if recall >= aim.least else -1
        return -aim.miss * misses - aim.false_alarm * alarms

    best = max(goodness(t) for t in [*scores, 2.0])
    assert goodness(found) == pytest.approx(best)


def test_a_precision_that_is_never_reached_predicts_nothing():
    scores = np.array([1.0, 0.5], dtype=np.float32)
    threshold = best_threshold(
        np.array([False, True]), scores, 0.5, ThresholdTarget("precision", 0.9)
    )
    assert not (scores >= np.float32(threshold)).any()


@pytest.mark.parametrize("positive", [None, "ham"])
def test_the_threshold_of_two_classes_is_for_the_positive_one(positive, monkeypatch):
    settings = ValidationFitSettings(tune_thresholds="recall=0.99", positive_label=positive)
    validation, test = single("validation", 600, 0), single("test", 500, 1)
    outcome, part, feature = fitted(settings, validation, test, monkeypatch)
    column = TWO.index(positive or "spam")
    (label,) = part.labels
    assert label.label == TWO[column]
    decided = test.probabilities[:, column] >= np.float32(label.threshold)
    assert np.array_equal(outcome.predicted == column, decided)
    assert label.right / label.predicted == pytest.approx(
        precision_score(test.labels, outcome.predicted, pos_label=column)
    )
    recall = recall_score(test.labels, outcome.predicted, pos_label=column)
    assert label.right / label.labelled == pytest.approx(recall)
    assert label.recall_interval[0] < recall < label.recall_interval[1]
    tuned = feature.decided(validation, lambda: validation)
    assert recall_score(tuned.labels, tuned.predicted, pos_label=column) >= 0.99
    assert "the best precision with a recall of at least 99 %" in part.text()


def test_costs_are_per_example(monkeypatch):
    settings = ValidationFitSettings(tune_thresholds="cost=10:1")
    outcome, part, _ = fitted(settings, several("validation", 300, 0), several("test", 200, 1),
                              monkeypatch)  # fmt: skip
    misses, alarms = outcome.labels & ~outcome.predicted, outcome.predicted & ~outcome.labels
    cost = (10 * misses.sum() + alarms.sum()) / 200
    assert part.figures["cost"].fitted == pytest.approx(cost)
    assert part.figures["cost"].fitted < part.figures["cost"].untouched
    assert len(part.labels) == 4


def test_where_nothing_changes_there_is_no_interval_of_the_change(monkeypatch):
    settings = ValidationFitSettings(tune_thresholds="f1")
    test = single("test", 3, 1)
    _, part, _ = fitted(settings, single("validation", 600, 0), test, monkeypatch)
    assert part.figures["accuracy"].difference_interval is None
    assert "no row changes" in part.text()


@pytest.mark.slow
@pytest.mark.parametrize("make", [single, several])
def test_the_promise_is_proven_on_rows_that_nothing_else_uses(make, monkeypatch):
    validation, test = make("validation", 3000, 0), make("test", 2000, 1)
    settings = ValidationFitSettings(calibrate=True, abstain=0.2)
    outcome, part, feature = fitted(settings, validation, test, monkeypatch)
    promise = split_in_halves(3000, None).promise
    spoiled = validation.logits.copy()
    spoiled[promise] *= -1  # all wrong: what is fitted must not notice
    powers = np.exp(spoiled)
    sums = powers.sum(axis=1, keepdims=True) if make is single else 1 + powers
    other = replace(validation, logits=spoiled, probabilities=powers / sums)
    one, two = (feature.decided(each, lambda: validation) for each in (validation, other))
    assert np.array_equal(one.probabilities, two.probabilities)
    assert one.decisions == two.decisions
    found = part.abstention
    answered = outcome.confidence >= np.float32(found.least_confidence)
    assert (found.answered, found.rows) == (answered.sum(), 2000)
    assert found.wrong == (~outcome.correct[answered]).sum()
    assert 0 < found.wrong / found.answered < 0.2 < found.wrong_of_all / 2000
    assert f"{found.answered:,} are answered" in part.text()
    assert "answered" in outcome.columns(slice(0, 5))
    sentence = abstention_sentence(outcome, None)
    assert sentence.startswith(f"{found.answered:,} of 2,000 labelled rows are answered, and ")
    assert sentence.endswith("promised at most 20.0 %).")
    of_artifact = abstention_sentence(outcome, "the model that was exported")
    assert of_artifact.endswith("promised at most 20.0 % for the model that was exported).")
    _, none, feature = fitted(settings, other, test, monkeypatch)
    assert none.abstention.least_confidence is None
    assert none.abstention.answered == 0
    assert "so no row is answered" in none.text()
    assert "--abstain 0.2" in feature.warnings()["abstention"]


def test_a_model_without_errors_keeps_its_probabilities_and_says_so(monkeypatch):
    validation = single("validation", 50, 0)
    right = replace(validation, labels=validation.predicted)
    settings = ValidationFitSettings(calibrate=True)
    outcome, part, feature = fitted(settings, right, single("test", 50, 1), monkeypatch)
    assert part.temperature is None
    assert outcome.decisions == Decisions()
    assert "unchanged" in feature.warnings()["temperature"]


DECISIONS = (
    Decisions(),
    Decisions(temperature=1.5, positive=1, positive_threshold=0.25),
    Decisions(abstention=Abstention(0.02, 0.75)),
    Decisions(thresholds=(0.1, 0.9), abstention=Abstention(0.02, None)),
)


@pytest.mark.parametrize("decisions", DECISIONS)
def test_a_configuration_keeps_decisions(decisions):
    entries = json.loads(json.dumps(decisions.entries(TWO)))
    assert Decisions.from_entries({"other": 1, **entries}, TWO) == decisions


def test_a_saved_model_decides_as_the_run_did(monkeypatch):
    import torch

    settings = ValidationFitSettings(calibrate=True, tune_thresholds="f1", abstain=0.2)
    validation, test = single("validation", 2000, 0), single("test", 300, 1)
    outcome, _, _ = fitted(settings, validation, test, monkeypatch)
    entries = outcome.decisions.entries(TWO)
    problem = SingleLabel.from_arguments(TWO, {**entries, "label_thresholds": None})
    decoded = problem.decode(torch.tensor(test.logits))
    assert np.allclose(decoded["probabilities"], outcome.probabilities, atol=1e-6)
    names, confidence = zip(*problem.predicted(decoded), strict=True)
    assert list(names) == [TWO[k] for k in outcome.predicted]
    assert np.allclose(confidence, outcome.confidence, atol=1e-6)


def test_a_file_of_predictions_keeps_the_decisions(tmp_path):
    from ampft.runs.predictions import read_predictions, write_predictions

    decisions = Decisions(1.5, None, 1, 0.25, Abstention(0.02, 0.75))
    outcome = replace(single("test", 40, 0), decisions=decisions)
    write_predictions(tmp_path / "p.parquet", outcome, lambda rows: {})
    again = read_predictions(tmp_path / "p.parquet")
    assert again.decisions == decisions
    assert np.array_equal(again.predicted, outcome.predicted)


# Refusals


def arguments(*words: str) -> ValidationFitSettings:
    return parse_classify_arguments(["--dataset_name", "x", *words])


def test_flags_with_and_without_a_value(tmp_path):
    assert arguments().tune_thresholds is None
    assert arguments("--tune_thresholds").tune_thresholds == "f1"
    assert arguments("--tune_thresholds", "--calibrate").tune_thresholds == "f1"
    assert arguments("--tune_thresholds", "cost=10:1").tune_thresholds == "cost=10:1"
    assert arguments("--no-tune_thresholds").tune_thresholds is None
    path = tmp_path / "settings.yaml"
    for text, value in {"true": "f1", "false": None, "recall=0.9": "recall=0.9"}.items():
        path.write_text(f"tune_thresholds: {text}\n")
        assert arguments("--config", str(path)).tune_thresholds == value


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["--tune_thresholds", "accuracy"], r"received 'accuracy'\. Use f1, precision=0\.95"),
        (["--tune_thresholds", "precision=1.5"], "received 'precision=1.5'"),
        (["--tune_thresholds", "cost=10"], "received 'cost=10'"),
        (["--tune_thresholds", "cost=0:1"], "received 'cost=0:1'"),
        (["--tune_thresholds", "recall=nan"], "received 'recall=nan'"),
        (["--positive_label", "spam"], "no effect without --tune_thresholds"),
        (["--abstain", "0"], "--abstain: received 0.0; it must be at least 0.001 and below 0.5"),
        (["--calibrate", "--task", "tokens"], r"--calibrate: the flag is for .* task is tokens\."),
        (["--abstain", "0.1", "--task", "pixels"], r"--abstain: the flag .* task is pixels\."),
    ],
)
def test_refused_before_anything_is_loaded(words, match):
    with pytest.raises(InputError, match=match):
        arguments(*words)


ROWS = {"train": 10, "validation": 500, "test": 10}


@pytest.mark.parametrize(
    ("settings", "task", "names", "rows", "match"),
    [
        ({"calibrate": True}, "text", TWO, {"train": 1, "test": 1}, "data have only train, test"),
        ({"tune_thresholds": "f1"}, "text", FOUR, ROWS, "one of 4 classes"),
        ({"tune_thresholds": "f1", "positive_label": "x"}, "text", TWO, ROWS, "the classes are 'h"),
        (
            {"tune_thresholds": "f1", "positive_label": "a"}, "multi-label", FOUR, ROWS,
            "--positive_label is for two classes",
        ),
        ({"calibrate": True}, "tokens", FOUR, ROWS, "the task is tokens"),
        (
            {"abstain": 0.01}, "text", TWO, ROWS,
            r"--abstain 0\.01: the promise needs 598 independent validation rows \(299 to choose "
            r"what is answered, 299 to prove it\), but only 250 of the 500 can prove it\. Use "
            r"more validation rows \(--validation_fraction\), or a promise of at least 0\.012\.",
        ),
    ],
)  # fmt: skip
def test_refused_before_the_training(settings, task, names, rows, match):
    with pytest.raises(InputError, match=match):
        check_data_for_decisions(ValidationFitSettings(**settings), task, names, rows, 250)


def test_what_the_data_can_fulfil_is_accepted():
    check_data_for_decisions(ValidationFitSettings(), "pixels", FOUR, {"train": 1}, 0)
    check_data_for_decisions(
        ValidationFitSettings(calibrate=True, abstain=0.05), "images", FOUR, ROWS, 250
    )
    check_data_for_decisions(
        ValidationFitSettings(abstain=0.02), "text", TWO, ROWS, rows_needed(0.02)
    )


def test_a_label_without_a_validation_row_is_said_to_keep_its_threshold(monkeypatch):
    validation, test = several("validation", 200, 0), several("test", 100, 1)
    labels = validation.labels.copy()
    labels[:, 1] = False
    labels[:, 2] = False
    labels[:3, 2] = True
    validation = replace(validation, labels=labels)
    settings = ValidationFitSettings(tune_thresholds="f1")
    outcome, part, _ = fitted(settings, validation, test, monkeypatch)
    assert [each.validation_rows for each in part.labels] == labels.sum(axis=0).tolist()
    assert outcome.decisions.thresholds[1] == 0.5
    note = part.tables()[-1].note
    assert "'b' has no validation row, so no threshold was chosen: it keeps 0.5." in note
    assert "'c' has fewer than 5 validation rows, so its threshold may be far from" in note
    assert "'a'" not in note
    assert "'d'" not in note
    assert "if that has rows of the label" in outcome.report().text().replace("\n", " ")


def test_with_abstention_only_the_rows_that_choose_are_counted(monkeypatch):
    validation, test = single("validation", 600, 0), single("test", 500, 1)
    settings = ValidationFitSettings(tune_thresholds="f1", abstain=0.3)
    _, part, feature = fitted(settings, validation, test, monkeypatch)
    halves = split_in_halves(600, None)
    assert part.labels[0].validation_rows == (validation.labels[halves.fit] == 1).sum()
    assert feature.record()["decisions"].fitted_rows == len(halves.fit)


def test_the_rows_that_a_promise_cannot_use_are_counted(monkeypatch):
    """A pair of copies takes part in the proof twice as often as a single row."""
    groups = np.repeat(np.arange(400), np.r_[np.full(200, 2), np.full(200, 1)])
    validation, test = single("validation", 600, 0), single("test", 500, 1)
    feature = feature_of(ValidationFitSettings(abstain=0.3), validation, monkeypatch)
    monkeypatch.setattr(
        "ampft.features.decisions.dependent_groups",
        lambda _, split: SimpleNamespace(ids=groups) if split == "validation" else None,
    )
    feature.decided(test, lambda: feature.decided(validation, lambda: validation))
    (promise, *_) = (part := feature.record()["decisions"]).sentences()
    halves = split_in_halves(600, groups)
    assert part.abstention.set_apart == 600 - len(halves.fit)
    left_out = part.abstention.set_apart - len(halves.promise)
    assert left_out > 100
    assert f"{left_out} of the {part.abstention.set_apart} that were set apart" in promise


@pytest.mark.parametrize("has_copies", [False, True])
def test_halves_count_what_is_set_apart(has_copies):
    groups = np.r_[np.zeros(2, dtype=int), np.arange(1, 599)] if has_copies else None
    halves = split_in_halves(600, groups)
    assert halves.set_apart + len(halves.fit) == 600
    if not has_copies:
        assert halves.set_apart == len(halves.promise)


@pytest.mark.parametrize(("miss", "false_alarm"), [(10, 1), (1, 10), (2.5, 4)])
def test_a_cost_has_two_numbers_of_which_the_first_is_for_a_miss(miss, false_alarm):
    found = parse_threshold_target(f"cost={miss}:{false_alarm}")
    assert found == ThresholdTarget("cost", miss=miss, false_alarm=false_alarm)
    assert found.rule == (f"the lowest cost, {miss} for a miss and {false_alarm} for a false alarm")
