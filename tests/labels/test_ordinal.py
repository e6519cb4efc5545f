"""Ordered labels: the loss of cumulative logits, its gradient under every split, the metrics."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
import scipy.stats
import sklearn.metrics as sk
import torch
from exact_step import Training, flat_gradient, relative_error, text_problem
from tiny_text import tiny_task, with_weights
from torch.nn import functional

from ampft.kinds.logits import model_inputs
from ampft.labels.cumulative_loss import summed_cumulative_cross_entropy
from ampft.labels.ordinal import METRICS, Ordinal, OrdinalPredictions
from ampft.metrics.paired import paired_interval
from ampft.tasks.report import report_from_json

N = 90
NAMES = ("bad", "poor", "fair", "good", "best")


def outcome(seed=0, weights=None, rows=None, labels=None):
    """Return predictions that differ from the labels by some ranks."""
    random = np.random.default_rng(9)
    labels = random.integers(5, size=N) if labels is None else labels
    logits = -np.abs(np.arange(5) - labels[:, None]) + np.random.default_rng(seed).normal(
        scale=1.5, size=(N, 5)
    )
    chosen = np.arange(N) if rows is None else rows
    shares = torch.from_numpy(logits).float().softmax(1).numpy()[chosen]
    ids = np.arange(len(chosen))
    return OrdinalPredictions(ids, labels[chosen], shares, NAMES, "test", weights=weights)


def twin_losses(logits, labels):
    """Return the mean binary cross entropy of the cumulative logits, in plain torch."""
    shares = logits.softmax(1)
    above = 1 - shares.cumsum(1)[:, :-1]
    is_above = (labels[:, None] > torch.arange(logits.shape[1] - 1)).to(logits.dtype)
    return functional.binary_cross_entropy(above, is_above, reduction="none").mean(1)


def test_the_loss_is_the_binary_cross_entropy_of_cumulative_logits():
    torch.manual_seed(0)
    logits = torch.randn(40, 5, dtype=torch.float64, requires_grad=True)
    labels, weights = torch.arange(40) % 5, torch.rand(40, dtype=torch.float64)
    of_classes = np.array([1, 2, 0.5, 3, 1], np.float32)
    factors = weights * torch.from_numpy(of_classes).double()[labels]
    found = summed_cumulative_cross_entropy(
        logits, labels, class_weights=of_classes, weights=weights
    )
    expected = (twin_losses(logits, labels) * factors).sum()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    pair = [torch.autograd.grad(each, logits)[0] for each in (found, expected)]
    torch.testing.assert_close(*pair, rtol=1e-9, atol=1e-12)
    assert torch.autograd.gradcheck(lambda z: summed_cumulative_cross_entropy(z, labels), logits)
    two = torch.randn(9, 2, dtype=torch.float64)
    torch.testing.assert_close(
        summed_cumulative_cross_entropy(two, labels[:9] % 2),
        functional.cross_entropy(two, labels[:9] % 2, reduction="sum"),
    )


def test_extreme_logits_keep_loss_and_gradient_finite():
    logits = torch.tensor([[1e4, -1e4, 0.0], [-1e4, 1e4, -1e4]], requires_grad=True)
    loss = summed_cumulative_cross_entropy(logits, torch.tensor([2, 0]))
    loss.backward()
    assert loss.item() == pytest.approx(((1e4 + 1e4) / 2) + (2e4 + 0) / 2, rel=1e-6)
    assert torch.isfinite(logits.grad).all()
    half = torch.randn(4, 3).bfloat16()
    found = summed_cumulative_cross_entropy(half, torch.arange(4) % 3)
    assert found.dtype == torch.float32
    assert found == summed_cumulative_cross_entropy(half.float(), torch.arange(4) % 3)


def test_a_far_label_costs_more_and_unordered_losses_do_not_know_it():
    logits = torch.tensor([[4.0, 0.0, 0.0, 0.0]])
    losses = [float(summed_cumulative_cross_entropy(logits, torch.tensor([k]))) for k in range(4)]
    assert losses == sorted(losses)
    assert losses[3] > losses[1] + 1


@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.parametrize("remove_padding", [False, True], ids=["padded", "padding-free"])
@pytest.mark.parametrize("mode", ["fp32", "fp16"])
def test_the_gradient_is_exact_under_every_split(tiny_bert, mode, remove_padding):
    weights = np.random.default_rng(7).exponential(2, 41).astype(np.float32).astype(np.float64)
    settings = {"task": "ordinal", "class_weights": "1,2.5,0.5"}
    task, twin = (
        with_weights(tiny_task(tiny_bert, train=41, remove_padding=each, **settings), weights)
        for each in (remove_padding, False)
    )
    assert isinstance(task.problem, Ordinal)
    of_classes = torch.tensor([1, 2.5, 0.5], dtype=torch.float64)
    for k in (1, 3, 5):  # steps of 30 and 11 examples
        torch.manual_seed(0)
        problem = text_problem(task)
        run = Training(mode, problem, 30 // k, k, rate=lambda step: 0.0, loss_scale=4096.0)
        for step in run.steps():
            ids = np.array(step.effective_ids)
            inputs, model = twin.examples("train").collate(ids), twin.load_model().model.double()
            factors = torch.from_numpy(weights[ids]) * of_classes[inputs["labels"]]
            losses = twin_losses(model(**model_inputs(inputs)).logits, inputs["labels"])
            ((losses * factors).sum() / factors.sum()).backward()
            error = relative_error(step.gradient, flat_gradient(model))
            assert error <= {"fp32": 3e-6, "fp16": 5e-3}[mode], k
    plain = with_weights(tiny_task(tiny_bert, train=41, class_weights="1,2.5,0.5"), weights)
    torch.manual_seed(0)
    step = next(iter(Training("fp32", text_problem(plain), 41).steps()))
    torch.manual_seed(0)
    other = next(iter(Training("fp32", text_problem(task), 41).steps()))
    assert relative_error(step.gradient, other.gradient) > 0.05  # negative control


def test_metrics_are_those_of_scikit_learn():
    weights = np.random.default_rng(3).exponential(1, N)
    weights[:5] = 0
    for weight in (None, weights):
        found = outcome(weights=weight)
        pair, given = (found.labels, found.predicted), {"sample_weight": weight}
        expected = {
            "quadratic_kappa": sk.cohen_kappa_score(*pair, weights="quadratic", **given),
            "mae": sk.mean_absolute_error(*pair, **given),
            "accuracy": sk.accuracy_score(*pair, **given),
            "cohen_kappa": sk.cohen_kappa_score(*pair, **given),
        }
        report = found.report()
        for name, value in expected.items():
            assert report.metrics()[name] == pytest.approx(value, rel=1e-9), name
            assert found.metrics()[name] == pytest.approx(value, rel=1e-9), name
        assert report_from_json(type(report), json.loads(json.dumps(report.as_dict()))) == report
        assert "quadratic weighted kappa 0." in report.text()
    assert next(iter(METRICS)) == "quadratic_kappa"
    assert not METRICS["mae"].higher_is_better


def test_kappa_of_one_class_is_undefined():
    labels = np.zeros(N, dtype=np.int64)
    shares = np.tile(np.eye(5, dtype=np.float32)[0], (N, 1))
    found = OrdinalPredictions(np.arange(N), labels, shares, NAMES, "test")
    assert np.isnan(found.metrics()["quadratic_kappa"])
    assert "quadratic_kappa" not in found.report().metrics()
    assert found.report().metrics()["mae"] == 0


@pytest.mark.parametrize("name", ["quadratic_kappa", "mae"])
def test_paired_intervals_contain_the_jackknife(name):
    one = paired_interval(METRICS[name], outcome(0).sums(name), outcome(1).sums(name))
    left_out = [
        outcome(0, rows=rest).metrics()[name] - outcome(1, rows=rest).metrics()[name]
        for rest in (np.delete(np.arange(N), case) for case in range(N))
    ]
    error = np.sqrt((N - 1) / N * np.sum((left_out - np.mean(left_out)) ** 2))
    half = scipy.stats.t.ppf(0.975, N - 1) * error
    assert (one.high - one.low) / 2 >= half * (1 - 1e-6)
    expected = outcome(0).metrics()[name] - outcome(1).metrics()[name]
    assert abs(one.value) == pytest.approx(abs(expected))


def test_predictions_survive_their_table_and_far_mistakes_come_first():
    found = outcome(weights=np.arange(1.0, N + 1))
    table = pa.table({"example_id": found.example_ids, **found.columns(slice(None))})
    back = OrdinalPredictions.from_table(table, found.metadata())
    assert back.metrics() == found.metrics()
    mistakes = found.mistakes()
    distances = np.abs(np.arange(5)[None] - found.labels[:, None])
    np.testing.assert_allclose(mistakes.scores, (found.probabilities * distances).sum(1))
    assert "in ranks" in mistakes.ranking
