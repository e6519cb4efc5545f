"""Class weights in all that is fitted by a loss, and what is said of rare classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from tiny_text import tiny_task
from torch.nn import functional

from ampft.checks.baseline import bag_of_words_model
from ampft.data.dataset import ClassificationData
from ampft.evaluation.probe import Rows, fit_regression, with_probed_head
from ampft.evaluation.sanity import never_predicted_warnings
from ampft.evaluation.simple_methods import FREQUENCIES, FROZEN, SimpleMethodResult, answer
from ampft.metrics.calibration import fit_temperature
from ampft.metrics.paired import Interval
from ampft.metrics.ranking import class_ranking_metrics, positive_class
from ampft.metrics.scores import weighted_log_losses
from ampft.tasks.loss_settings import ValidationFitSettings
from ampft.tasks.rare_classes import rare_classes_text
from ampft.tasks.single_label import Predictions, SingleLabel
from ampft.tasks.task import make_task
from ampft.tasks.task_settings import TaskSettings
from ampft.tasks.tuning import fit_decisions
from ampft.text.warning_names import NEVER_PREDICTED

CPU = torch.device("cpu")
WEIGHTS = np.array([0.5, 1.0, 6.0], dtype=np.float32)
draw = np.random.default_rng(0)
RARE_LABELS = np.array([0] * 60 + [1] * 30 + [2] * 6)
FEATURES = draw.normal(size=(96, 5)) + np.eye(3, 5)[RARE_LABELS]


def test_the_probe_equals_scikit_learns_with_weights_of_classes():
    given = torch.from_numpy(WEIGHTS)
    rows = Rows(torch.tensor(FEATURES), torch.tensor(RARE_LABELS), class_weights=given)
    weight, bias, strength, _ = fit_regression(rows, 3)
    scale = np.sqrt((FEATURES**2).sum(1).mean())
    twin = LogisticRegression(
        C=strength, tol=1e-8, max_iter=1000, class_weight=dict(enumerate(WEIGHTS.tolist()))
    ).fit(FEATURES / scale, RARE_LABELS)
    found = (torch.tensor(FEATURES) @ weight.T + bias).log_softmax(1).numpy()
    np.testing.assert_allclose(found, twin.predict_log_proba(FEATURES / scale), atol=2e-3)
    plain = fit_regression(rows._replace(class_weights=None), 3)[0]
    assert (plain - weight).abs().max() > 0.1


def test_the_probe_weights_rows_with_a_label_as_scikit_learn_does():
    has = np.eye(3, dtype=bool)[RARE_LABELS]
    given = torch.from_numpy(WEIGHTS)
    rows = Rows(torch.tensor(FEATURES), torch.tensor(has), class_weights=given)
    weight, bias, strength, _ = fit_regression(rows, 3)
    scale = np.sqrt((FEATURES**2).sum(1).mean())
    for k, factor in enumerate(WEIGHTS.tolist()):
        twin = LogisticRegression(
            C=strength, tol=1e-8, max_iter=1000, class_weight={False: 1.0, True: factor}
        ).fit(FEATURES / scale, has[:, k])
        logits = FEATURES @ weight[k].numpy() + bias[k].item()
        np.testing.assert_allclose(
            expit(logits), twin.predict_proba(FEATURES / scale)[:, 1], atol=2e-3
        )


@pytest.mark.slow
def test_a_head_begins_at_a_probe_with_the_weights_of_the_loss(tiny_bert):
    heads = [
        with_probed_head(tiny_task(tiny_bert, train=40, class_weights=weights), loaded, CPU).probe
        for weights in (None, "1,1,1", "1,1,9")
        for loaded in (tiny_task(tiny_bert, train=40).load_model(),)
    ]
    assert torch.equal(heads[0][0], heads[1][0])
    assert (heads[2][1] - heads[0][1])[2] > 0.1, "the weighted class is more probable"


@pytest.mark.parametrize("several", [False, True])
def test_tf_idf_has_the_weights_of_classes(several):
    texts = ["red apple", "green pear", "red cherry", "green lime", "blue plum", "red pear"] * 4
    labels = np.array([0, 1, 0, 1, 2, 0] * 4)
    targets = np.eye(3, dtype=bool)[labels] if several else labels
    found = bag_of_words_model(texts, targets, 3, "--baseline", class_weights=WEIGHTS)(texts)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True).fit_transform(texts)
    if several:
        weights = {0: 1.0, 1: 6.0}
        twin = LogisticRegression(C=10.0, solver="newton-cg", class_weight=weights)
        expected = twin.fit(words, labels == 2).predict_proba(words)[:, 1]
        np.testing.assert_allclose(found[:, 2], expected, atol=1e-4)
    else:
        weights = dict(enumerate(WEIGHTS.tolist()))
        twin = LogisticRegression(C=10.0, solver="newton-cg", class_weight=weights)
        np.testing.assert_allclose(found, twin.fit(words, labels).predict_proba(words), atol=1e-4)


@pytest.mark.parametrize("several", [False, True])
def test_the_temperature_has_the_lowest_weighted_log_loss(several):
    logits = 3 * (draw.normal(size=(96, 3)) + np.eye(3)[RARE_LABELS])
    has = np.eye(3, dtype=bool)[RARE_LABELS]

    def loss(log_temperature):
        rows = torch.tensor(logits / math.exp(log_temperature))
        weights = torch.tensor(WEIGHTS, dtype=torch.float64)
        if several:
            target = torch.tensor(has, dtype=torch.float64)
            return float(
                functional.binary_cross_entropy_with_logits(rows, target, pos_weight=weights)
            )
        return float(functional.cross_entropy(rows, torch.tensor(RARE_LABELS), weight=weights))

    found = fit_temperature(logits, has, several=several, class_weights=WEIGHTS)
    assert math.log(found) == pytest.approx(minimize_scalar(loss).x, abs=1e-4)
    assert found != pytest.approx(fit_temperature(logits, has, several=several), rel=1e-3)


@pytest.mark.parametrize("several", [False, True])
def test_weighted_log_losses_are_those_of_torch(several):
    logits = draw.normal(size=(96, 3))
    weights = torch.tensor(WEIGHTS, dtype=torch.float64)
    if several:
        has = np.eye(3, dtype=bool)[RARE_LABELS]
        losses, of_rows = weighted_log_losses(has, expit(logits).astype(np.float32), WEIGHTS)
        expected = functional.binary_cross_entropy_with_logits(
            torch.tensor(logits), torch.tensor(has, dtype=torch.float64), pos_weight=weights,
            reduction="none",
        ).sum(1)  # fmt: skip
        assert of_rows[-1] == 6 + 2
    else:
        shares = np.exp(log_softmax(logits, axis=1)).astype(np.float32)
        losses, of_rows = weighted_log_losses(RARE_LABELS, shares, WEIGHTS)
        expected = functional.cross_entropy(
            torch.tensor(logits), torch.tensor(RARE_LABELS), weight=weights, reduction="none"
        )
        assert of_rows[-1] == 6
    np.testing.assert_allclose(losses, expected.numpy(), rtol=1e-5)


def of_two(rare_first: bool, found: int = 0) -> Predictions:
    """Return predictions of 100 rows, 4 of a rare class; `found` of them are right."""
    labels = np.array([0] * 4 + [1] * 96) if rare_first else np.array([1] * 4 + [0] * 96)
    share = np.linspace(0.4, 0.1, 100)
    share[:found] = 0.9
    rare = 0 if rare_first else 1
    table = np.empty((100, 2), dtype=np.float32)
    table[:, rare], table[:, 1 - rare] = share, 1 - share
    return Predictions(np.arange(100), labels, table, ("a", "b"), "test")


@pytest.mark.parametrize("rare_first", [False, True])
def test_of_two_classes_the_rare_one_is_ranked_and_has_the_threshold(rare_first):
    outcome = of_two(rare_first)
    rare = 0 if rare_first else 1
    found = class_ranking_metrics(outcome.labels, outcome.probabilities)
    expected = average_precision_score(outcome.labels == rare, outcome.probabilities[:, rare])
    assert found["average_precision"] == pytest.approx(expected)
    said = f"average precision of {'a' if rare_first else 'b'!r} {expected:.4f}"
    assert said in " ".join(outcome.report().text().split())
    fitted = fit_decisions(outcome, ValidationFitSettings(tune_thresholds="f1"))
    assert fitted.decisions.positive == rare
    assert (fitted.predicted == rare).sum() == 4
    named = ValidationFitSettings(tune_thresholds="f1", positive_label="b")
    assert fit_decisions(outcome, named).decisions.positive == 1
    assert positive_class(np.array([40, 60])) == 1


def test_the_scores_of_a_rare_class_are_said_first():
    text = rare_classes_text(of_two(rare_first=True, found=3).report())
    assert text.startswith("Rare class: 'a' (4 of 100 examples), recall 0.750, precision 1.000, ")
    assert "average precision" in text
    assert "(0.040 by chance)" in text
    balanced = SingleLabel(("a", "b")).outcome(
        "test", np.arange(40) % 2, {"probabilities": np.full((40, 2), 0.5, dtype=np.float32)}
    )
    assert rare_classes_text(balanced.report()) == ""


def made(labels, **settings):
    several = isinstance(labels[0], list)
    names = ClassLabel(names=["common", "rare"])
    features = Features({"text": Value("string"), "label": List(names) if several else names})
    table = {"text": [f"text {i}" for i in range(len(labels))], "label": labels}
    part = Dataset.from_dict(table, features=features)
    data = ClassificationData(
        DatasetDict({"train": part, "test": part}), ("text",), "text", "made", {}, ()
    )
    return make_task(data, TaskSettings(task="multi-label" if several else None, **settings))


def warned(task, predicts_rare=False):
    rows = len(task.labels["test"])
    shares = np.tile(np.array([[0.9, 0.1]], dtype=np.float32), (rows, 1))
    if predicts_rare:
        shares[0] = shares[0][::-1]
    return never_predicted_warnings(task, task.outcome("test", {"probabilities": shares}))


RARE = [0] * 97 + [1] * 3


def test_where_no_label_is_predicted_at_all_a_remedy_is_named():
    """With several labels, frequent ones too may stay below their thresholds."""
    task = made([[0]] * 60 + [[0, 1]] * 40)
    low = np.full((100, 2), 0.4, dtype=np.float32)
    found = never_predicted_warnings(task, task.outcome("test", {"probabilities": low}))
    assert "are never predicted" in found[NEVER_PREDICTED]
    assert "--tune_thresholds" in found[NEVER_PREDICTED]
    some = np.where(np.arange(2) == 0, 0.9, low)
    found = never_predicted_warnings(task, task.outcome("test", {"probabilities": some}))
    assert found[NEVER_PREDICTED] == (
        "'rare' is never predicted, although it is not rare (40 of 100 training rows). Train "
        "longer, or pass --tune_thresholds."
    )


def test_a_class_with_many_rows_that_is_never_predicted_is_named():
    """Beside a rare one, too; a model that predicts one class only has another warning."""
    names = ["a", "b", "c", "d"]
    labels = [0] * 50 + [1] * 30 + [2] * 17 + [3] * 3
    features = Features({"text": Value("string"), "label": ClassLabel(names=names)})
    table = {"text": [f"text {i}" for i in range(len(labels))], "label": labels}
    part = Dataset.from_dict(table, features=features)
    splits = DatasetDict({"train": part, "test": part})
    task = make_task(ClassificationData(splits, ("text",), "text", "made", {}, ()), TaskSettings())

    def warning(predicted):
        shares = np.full((len(labels), 4), 0.1, dtype=np.float32)
        shares[np.arange(len(labels)), predicted] = 0.7
        return never_predicted_warnings(task, task.outcome("test", {"probabilities": shares}))

    without_c = np.where(np.arange(len(labels)) < 50, 0, 1)
    text = warning(without_c)[NEVER_PREDICTED]
    assert text.startswith("'d' is never predicted (3 of 100 training rows). ")
    assert text.endswith(
        " 'c' is never predicted, although it is not rare (17 of 100 training rows). Train longer."
    )
    assert "although" not in warning(np.zeros(len(labels), dtype=int))[NEVER_PREDICTED]
    assert not warning(np.array(labels))


def test_a_rare_class_that_is_never_predicted_has_a_remedy():
    text = warned(made(RARE))[NEVER_PREDICTED]
    assert text.startswith(
        "'rare' is never predicted (3 of 100 training rows). What helps: "
        "--class_weights balanced, about 77 more rows of 'rare'. "
    )
    assert text.endswith("--metric_for_best_model average_precision.")
    weighted = warned(made(RARE, class_weights="balanced", tune_thresholds="f1"))[NEVER_PREDICTED]
    assert "What helps: about 77 more rows of 'rare'. " in weighted
    assert not warned(made(RARE), predicts_rare=True)
    assert not warned(made([0] * 60 + [1] * 40)), "a class that is not rare has another problem"
    assert "balanced, --tune_thresholds, about 50 more" in warned(made(RARE * 10))[NEVER_PREDICTED]
    several = [[0]] * 97 + [[0, 1]] * 3
    assert "--tune_thresholds" in warned(made(several * 10))[NEVER_PREDICTED]


def result(name, accuracy, difference):
    interval = Interval(difference, difference - 0.01, difference + 0.01, 400)
    return SimpleMethodResult(name=name, metrics={"accuracy": accuracy}, difference=interval)


def test_an_interval_is_in_points_or_in_the_unit_of_its_metric():
    interval = Interval(-0.01234, -0.02, 0.0345, 400)
    assert interval.text(100) == "−1.2, −2.0 to +3.5"
    assert interval.text() == "−0.0123, −0.0200 to +0.0345"


def test_nothing_that_beats_the_frequencies_is_not_called_cheaper():
    problem = SingleLabel(("common", "rare"))
    constant = result(FREQUENCIES, 0.98, 0.0)
    text = answer(problem, [result(FROZEN, 0.98, 0.0), constant])
    assert text.startswith("nothing here beats the class frequencies (0.9800 in accuracy). ")
    assert "compare macro F1" in text
    better = answer(problem, [result(FROZEN, 0.985, 0.005), constant])
    assert better.startswith("400 independent rows do not show whether")
    ours = answer(problem, [result(FROZEN, 0.97, -0.02), result(FREQUENCIES, 0.96, -0.03)])
    assert ours.startswith("fine-tuning is worth it")
