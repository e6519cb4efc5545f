"""Any number of labels per text: each metric against scikit-learn, each loss against torch."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn import metrics as sk

from ampft.errors import InputError
from ampft.labels.multi_label import METRICS, MultiLabel, MultiLabelPredictions, MultiLabelReport
from ampft.runs.predictions import read_predictions, write_predictions
from ampft.tasks.report import report_from_json
from ampft.tasks.task_settings import TaskSettings
from ampft.text.json_io import json_text

NAMES = ("joy", "fear", "love", "pride", "grief")
SEEDS = range(8)


def predictions(seed: int, n: int = 60, *, threshold: float = 0.4) -> MultiLabelPredictions:
    """Return predictions in which "grief" is absent and the first example has no label."""
    rng = np.random.default_rng(seed)
    labels = rng.random((n, len(NAMES))) < (0.5, 0.3, 0.2, 0.1, 0)
    labels[0] = False
    noise = rng.random(labels.shape)
    probabilities = np.where(labels, noise**0.5, noise**2).astype(np.float32)
    return MultiLabelPredictions(labels, probabilities, NAMES, "test", threshold)


def expected_metrics(found: MultiLabelPredictions) -> dict[str, float]:
    truth, predicted, scores = found.labels, found.predicted, found.probabilities
    present = truth.any(axis=0)
    averages = {
        f"{average}_{name}": function(truth, predicted, average=average, zero_division=0)
        for average in ("micro", "macro", "weighted", "samples")
        for name, function in (
            ("precision", sk.precision_score), ("recall", sk.recall_score), ("f1", sk.f1_score),
        )
    }  # fmt: skip
    per_label = [
        sk.log_loss(column, score.astype(np.float64), labels=[False, True])
        for column, score in zip(truth.T, scores.T, strict=True)
    ]
    precision = sk.average_precision_score
    return {
        **averages,
        "subset_accuracy": sk.accuracy_score(truth, predicted),
        "hamming_loss": sk.hamming_loss(truth, predicted),
        "log_loss": float(np.mean(per_label)),
        "micro_average_precision": precision(truth, scores, average="micro"),
        "macro_average_precision": precision(truth[:, present], scores[:, present]),
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_every_metric_is_scikit_learns(seed):
    found = predictions(seed)
    report = found.report().metrics()
    expected = expected_metrics(found)
    assert {name: report[name] for name in expected} == pytest.approx(expected, abs=1e-12)
    ranking = {"macro_roc_auc", "weighted_roc_auc", "weighted_average_precision"}
    assert set(report) == {*expected, "expected_calibration_error", *ranking}
    compared = found.metrics()
    assert {name: compared[name] for name in METRICS} == pytest.approx(
        {name: expected[name] for name in METRICS}, abs=1e-12
    )
    assert compared["expected_calibration_error"] == report["expected_calibration_error"]


@pytest.mark.parametrize("name", METRICS)
def test_leaving_a_case_out_is_a_subtraction(name):
    found = predictions(3, n=25)
    sums, metric = found.sums(name), METRICS[name]
    without = metric.leave_one_out(sums)[sums.pattern_of]
    for case in range(len(found)):
        rest = np.arange(len(found)) != case
        again = MultiLabelPredictions(
            found.labels[rest], found.probabilities[rest], NAMES, "test", found.threshold
        )
        assert without[case] == pytest.approx(again.metrics()[name], abs=1e-12)


def test_the_scores_of_a_label_are_those_of_a_binary_problem():
    found = predictions(5)
    for column, scores in enumerate(found.scores()):
        truth, predicted = found.labels[:, column], found.predicted[:, column]
        assert scores.support == truth.sum()
        assert scores.f1 == pytest.approx(sk.f1_score(truth, predicted, zero_division=0))


def test_a_report_survives_json_and_says_what_an_absent_label_has():
    report = predictions(1).report()
    values = json.loads(json_text(report.as_dict()))
    assert report_from_json(MultiLabelReport, values) == report
    assert values["micro_f1"] == report.averages["micro"].f1
    assert values["macro_f1"] == report.averages["macro"].f1
    assert report.per_label_average_precision[NAMES.index("grief")] is None
    text = report.text()
    for line in (*NAMES, "micro average", "macro average", "samples average"):
        assert f"\n{line} " in text
    assert "A label is predicted if its probability is at least 0.4." in " ".join(text.split())


def test_a_split_without_any_label_has_a_report():
    found = predictions(1)
    empty = MultiLabelPredictions(found.labels & False, found.probabilities, NAMES, "test")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = empty.report()
    assert report.average_precision == {"micro": None, "macro": None}
    assert report.averages["micro"].f1 == 0


def test_predictions_survive_parquet(tmp_path):
    found = predictions(2)
    path = tmp_path / "predictions.parquet"
    write_predictions(path, found, lambda rows: {"text": ["t"] * (rows.stop - rows.start)})
    again = read_predictions(path)
    assert isinstance(again, MultiLabelPredictions)
    assert (again.labels == found.labels).all()
    assert (again.probabilities == found.probabilities).all()
    assert (again.threshold, again.label_names, again.split) == (0.4, NAMES, "test")
    table = pa.parquet.read_table(path).to_pydict()
    assert table["label"][0] == []
    for row, names in enumerate(table["prediction"]):
        assert names == [n for n, has in zip(NAMES, found.predicted[row], strict=True) if has]


def test_choices_are_sets_of_labels():
    found = predictions(4, n=200)
    same_set = (found.predicted[:, None] == found.predicted[None]).all(axis=2)
    same_choice = (found.choices[:, None] == found.choices[None]).all(axis=2)
    assert (same_set == same_choice).all()
    texts = [MultiLabel.choice_text(choice, NAMES) for choice in found.choices]
    assert "(none)" in texts
    assert "joy, fear" in texts
    assert MultiLabel.truth_text(np.array([True, False, True, False, False]), NAMES) == "joy, love"
    commas = ("a, b", "c", "d; e")
    assert MultiLabel.truth_text(np.array([True, True, False]), commas) == "a, b | c"
    assert MultiLabel.truth_text(np.array([True, True]), commas[:2]) == "a, b ; c"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probabilities": np.full((2, 5), np.nan, np.float32)}, "2 of 2 examples are outside"),
        ({"probabilities": np.full((2, 5), 1.5, np.float32)}, "the first is example 0"),
        ({"labels": np.zeros((2, 5), np.int64)}, "labels must have shape"),
        ({"label_names": ("a",) * 5}, "at least two distinct"),
        ({"labels": np.zeros((0, 5), bool), "probabilities": np.zeros((0, 5), np.float32)},
         "has no examples"),
    ],
)  # fmt: skip
def test_wrong_predictions_are_refused(change, message):
    values = {
        "labels": np.zeros((2, 5), bool),
        "probabilities": np.zeros((2, 5), np.float32),
        "label_names": NAMES,
        "split": "test",
    }
    with pytest.raises(ValueError, match=message):
        MultiLabelPredictions(**(values | change))


@pytest.mark.parametrize("weights", [None, "2,0.5,1,1,4", "balanced"])
def test_the_loss_is_torchs_over_the_weight_of_the_batch(weights):
    rng = np.random.default_rng(0)
    targets = rng.random((40, 5)) < 0.4
    problem = MultiLabel.from_settings(NAMES, targets, TaskSettings(class_weights=weights))
    logits = torch.randn(40, 5, requires_grad=True)
    labels = torch.from_numpy(targets)
    (problem.loss(logits, labels) / problem.weights(targets).sum()).backward()
    own, logits.grad = logits.grad, None
    counts = targets.sum(axis=0)
    expected_weights = {
        None: None,
        "2,0.5,1,1,4": torch.tensor([2, 0.5, 1, 1, 4]),
        "balanced": torch.from_numpy(((40 - counts) / counts).astype(np.float32)),
    }[weights]
    torch.nn.BCEWithLogitsLoss(pos_weight=expected_weights)(logits, labels.float()).backward()
    assert own is not None
    assert torch.allclose(own, logits.grad, rtol=1e-6, atol=0)


def test_label_smoothing_moves_the_targets_to_one_half():
    logits, targets = torch.randn(6, 5), torch.rand(6, 5) < 0.5
    smoothed = MultiLabel(NAMES, label_smoothing=0.2).loss(logits, targets)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, targets.float() * 0.8 + 0.1, reduction="sum"
    )
    assert smoothed.item() == pytest.approx(expected.item(), rel=1e-6)


def test_balanced_weights_need_both_answers():
    targets = np.zeros((4, 5), dtype=bool)
    with pytest.raises(InputError, match="on no training example or on all"):
        MultiLabel.from_settings(NAMES, targets, TaskSettings(class_weights="balanced"))


def test_a_saved_problem_keeps_threshold_and_separator():
    problem = MultiLabel.from_arguments(NAMES, {"threshold": 0.3, "label_separator": "|"})
    logits = torch.logit(torch.tensor([[0.31, 0.9, 0.29, 0.1, 0.2], [0.1] * 5]))
    (first, sure), (second, _) = problem.predicted(problem.decode(logits))
    assert (first, second) == ("joy|fear", "")
    assert sure == pytest.approx(0.31)  # of the least certain decision


@pytest.mark.parametrize(
    ("names", "prediction"),
    [(("a", "b"), "a,b"), (("a,x", "b"), "a,x;b"), (("a,x", "b;y"), "a,x|b;y")],
)
def test_a_printed_prediction_is_unambiguous(names, prediction):
    decoded = {"probabilities": np.array([[0.9, 0.8]], dtype=np.float32)}
    assert MultiLabel(names).predicted(decoded)[0][0] == prediction


@pytest.mark.parametrize("seed", SEEDS)
def test_a_calibration_diagram_counts_every_decision(seed):
    found = predictions(seed)
    is_right = found.predicted == found.labels
    high = found.probabilities.astype(np.float64)
    confidence = np.where(found.predicted, high, 1 - high)
    edges = np.arange(11) / 10
    count, total, right = found.calibration(10)
    for index in range(10):
        inside = (edges[index] < confidence) & (confidence <= edges[index + 1])
        assert count[index] == inside.sum()
        assert right[index] == is_right[inside].sum()
        assert total[index] == pytest.approx(confidence[inside].sum(), rel=1e-6)
