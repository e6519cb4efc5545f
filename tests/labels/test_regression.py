"""Regression: the loss, the unit of the labels, the metrics, and the head at ridge regression."""

from __future__ import annotations

import json
from dataclasses import replace

import datasets
import numpy as np
import pyarrow as pa
import pytest
import scipy.stats
import sklearn.metrics as sk
import torch
from sklearn.linear_model import Ridge
from tiny_text import tiny_texts, with_weights
from torch import nn

from ampft.data.dataset import ClassificationData
from ampft.engine.optimizer import OptimizerSettings, make_optimizer, rate_per_unit
from ampft.errors import InputError
from ampft.evaluation.probe import Rows, fit_regression
from ampft.labels.regression import METRICS, Regression, RegressionPredictions
from ampft.metrics.paired import paired_interval
from ampft.models.freezing import last_layers
from ampft.precision.float32_modules import replaced_forwards
from ampft.precision.resolve import resolve
from ampft.tasks.loss_settings import LossSettings
from ampft.tasks.report import report_from_json
from ampft.tasks.task import make_task
from ampft.tasks.task_settings import TaskSettings

N = 120
CPU = torch.device("cpu")


def outcome(seed=0, weights=None, *, unit=1.0, shift=0.0, rows=None):
    random = np.random.default_rng(9)
    labels = random.normal(size=N).round(1)
    values = labels + np.random.default_rng(seed).normal(scale=0.5, size=N)
    chosen = np.arange(N) if rows is None else rows
    return RegressionPredictions(
        shift + unit * labels[chosen], shift + unit * values[chosen], ("score",), "test", weights
    )


def regression_task(folder, *, unit=1.0, shift=0.0, name="score", **settings):
    """Return a task whose numbers are functions of the first word."""
    splits = {}
    for seed, (split, count) in enumerate({"train": 24, "validation": 8}.items()):
        texts = tiny_texts(count, seed=seed)["text"]
        numbers = [shift + unit * int(text.split()[0][1:]) for text in texts]
        splits[split] = datasets.Dataset.from_dict({"text": texts, "label": numbers}).cast_column(
            "label", datasets.Value("float64")
        )
    data = ClassificationData(
        datasets.DatasetDict(splits), ("text",), "text", "tiny", {}, (), number_name=name
    )
    return make_task(
        data, TaskSettings(model_name_or_path=str(folder), task="regression", **settings)
    )


def test_metrics_are_those_of_scikit_learn_and_scipy():
    weights = np.random.default_rng(3).exponential(1, N)
    weights[:5] = 0
    for weight in (None, weights):
        found = outcome(weights=weight)
        pair, given = (found.labels, found.values), {"sample_weight": weight}
        expected = {
            "mse": sk.mean_squared_error(*pair, **given),
            "rmse": sk.root_mean_squared_error(*pair, **given),
            "mae": sk.mean_absolute_error(*pair, **given),
            "r2": sk.r2_score(*pair, **given),
        }
        if weight is None:
            expected["pearson"] = scipy.stats.pearsonr(*pair)[0]
            expected["spearman"] = scipy.stats.spearmanr(*pair)[0]
        else:
            matrix = np.cov(np.stack(pair), aweights=weight)
            expected["pearson"] = matrix[0, 1] / np.sqrt(matrix[0, 0] * matrix[1, 1])
        reported = found.report().metrics()
        for name, value in expected.items():
            assert reported[name] == pytest.approx(value, rel=1e-9), name
            if name in METRICS:
                assert found.metrics()[name] == pytest.approx(value, rel=1e-9), name
    report = found.report()
    assert report_from_json(type(report), json.loads(json.dumps(report.as_dict()))) == report


def test_a_weight_counts_in_the_ranks_as_that_many_rows():
    whole = outcome()
    for high in (2, 4):  # weights of 0 and 1, and of 0 to 3
        weights = np.random.default_rng(high).integers(0, high, N)
        found = replace(whole, weights=weights.astype(np.float64)).report().spearman
        repeated = np.repeat(np.arange(N), weights)
        expected = scipy.stats.spearmanr(whole.labels[repeated], whole.values[repeated])[0]
        assert found == pytest.approx(expected, rel=1e-9)
    only = np.where(whole.labels == whole.labels[0], 1.0, 0.0)
    assert replace(whole, weights=only).report().spearman is None


def test_intervals_do_not_depend_on_the_unit_and_contain_the_jackknife():
    for name in ("r2", "pearson"):
        one = paired_interval(METRICS[name], outcome(0).sums(name), outcome(1).sums(name))
        far = {"unit": 1e4, "shift": 1e7}
        other = paired_interval(
            METRICS[name], outcome(0, **far).sums(name), outcome(1, **far).sums(name)
        )
        for part in ("value", "low", "high"):
            assert getattr(one, part) == pytest.approx(getattr(other, part), rel=1e-4), name
        left_out = [
            outcome(0, rows=rest).metrics()[name] - outcome(1, rows=rest).metrics()[name]
            for rest in (np.delete(np.arange(N), case) for case in range(N))
        ]
        error = np.sqrt((N - 1) / N * np.sum((left_out - np.mean(left_out)) ** 2))
        half = scipy.stats.t.ppf(0.975, N - 1) * error
        assert (one.high - one.low) / 2 >= half * (1 - 1e-6)
        if name == "r2":
            assert (one.high - one.low) / 2 == pytest.approx(half, rel=1e-6)


def test_the_interval_of_a_difference_covers_the_truth():
    """Of R², whose difference is that of squared errors over a variance, in 95 % of samples."""
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        labels = random.normal(size=80)
        one, other = (labels + random.normal(scale=scale, size=80) for scale in (0.5, 0.6))
        pair = [RegressionPredictions(labels, v, ("y",), "test") for v in (one, other)]
        found = paired_interval(METRICS["r2"], *(each.sums("r2") for each in pair))
        covered += found.low <= 0.36 - 0.25 <= found.high
    assert 0.92 < covered / 400 < 0.985


def test_undefined_metrics_are_none():
    constant = RegressionPredictions(np.ones(5), np.arange(5.0), ("y",), "test")
    metrics = constant.report().metrics()
    assert metrics["r2"] is metrics["pearson"] is metrics["spearman"] is None
    assert metrics["mse"] == pytest.approx(np.mean((np.arange(5.0) - 1) ** 2))
    flat = RegressionPredictions(np.arange(5.0), np.ones(5), ("y",), "test")
    assert flat.report().pearson is None
    assert flat.only_prediction == "1"


def test_predictions_survive_their_table():
    found = outcome(weights=np.arange(1.0, N + 1))
    back = RegressionPredictions.from_table(
        pa.table(dict(found.columns(slice(None)))), found.metadata()
    )
    assert back.metrics() == found.metrics()
    assert back.label_names == ("score",)


@pytest.mark.parametrize("delta", [None, 0.7])
def test_the_loss_is_torchs_over_the_variance(delta):
    labels = np.array([3.0, -1.0, 4.0, 1.0, 5.0])
    settings = LossSettings(huber_delta=delta)
    problem = Regression.from_settings(("y",), labels, settings)
    logits = torch.tensor([[2.0], [0.5], [9.0], [1.0], [-5.0]], requires_grad=True)
    twin = nn.MSELoss() if delta is None else nn.HuberLoss(delta=delta)
    expected = twin(logits[:, 0], torch.tensor(labels, dtype=torch.float32)) / labels.var()
    found = problem.loss(logits, torch.tensor(labels)) / 5
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    (problem.loss(logits, torch.tensor(labels)) / 5).backward()
    (gradient,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(logits.grad, gradient)
    assert problem.constant_loss(labels) == pytest.approx(
        float(twin(torch.full((5,), labels.mean()), torch.tensor(labels))) / labels.var()
    )


def test_the_mean_and_the_unit_count_rows_by_their_weights(tiny_bert):
    """A row of weight 2 counts as two rows, and one of weight 0 as none, however large it is."""
    labels, weights = np.array([3.0, -1.0, 4.0, 1.0, -1e6]), np.array([2.0, 1.0, 1.0, 3.0, 0.0])
    problem = Regression.from_settings(("y",), labels, LossSettings(), weights)
    repeated = np.repeat(labels, weights.astype(int))
    assert problem.mean == pytest.approx(repeated.mean())
    assert problem.scale == pytest.approx(repeated.std())
    constant = problem.constant(labels, labels)["values"]
    np.testing.assert_allclose(constant, repeated.mean())
    with pytest.raises(InputError, match="all 1 training labels are 3"):
        Regression.from_settings(("y",), labels, LossSettings(), np.array([2.0, 0, 0, 0, 0]))
    plain = regression_task(tiny_bert)
    of_rows = np.arange(24) % 3
    task, counted = with_weights(plain, of_rows), np.repeat(plain.labels["train"], of_rows)
    assert task.problem.scale == pytest.approx(counted.std())
    (layer,) = last_layers(task.load_model().model, 1).values()
    assert layer.bias.item() == pytest.approx(counted.mean())


def test_a_label_of_weight_0_changes_no_metric_however_large_it_is():
    weights = np.ones(N)
    weights[0] = 0
    found = outcome(weights=weights)
    far = replace(found, labels=np.append(1e9, found.labels[1:]))
    assert far.metrics() == pytest.approx(found.metrics(), rel=1e-6)
    assert far.metrics()["r2"] == pytest.approx(sk.r2_score(found.labels[1:], found.values[1:]))


def test_equal_labels_are_refused():
    with pytest.raises(InputError, match="all 3 training labels are 2"):
        Regression.from_settings(("y",), np.full(3, 2.0), LossSettings())


def test_ridge_regression_equals_scikit_learns():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(90, 5))
    labels = 1000 + 50 * (features @ rng.normal(size=5) + rng.normal(size=90))
    weights = rng.exponential(1, 90)
    for weight in (None, weights):
        given = None if weight is None else torch.tensor(weight)
        found = fit_regression(Rows(torch.tensor(features), torch.tensor(labels), given), 1)
        scale = np.sqrt((features**2).sum(1).mean())
        twin = Ridge(alpha=1 / found[2]).fit(features / scale, labels, sample_weight=weight)
        values = torch.tensor(features) @ found[0].T + found[1]
        np.testing.assert_allclose(values[:, 0], twin.predict(features / scale), rtol=1e-9)


def training(task, mode, steps=6):
    """Return the model after some steps of AdamW, and the losses."""
    torch.manual_seed(0)
    precision = resolve(mode, CPU)
    model = task.with_exact_outputs(task.load_model(), precision).model
    settings = OptimizerSettings(1e-2, weight_decay=0.1, units=task.units(model))
    optimizer = make_optimizer(model, settings)
    examples, losses = task.examples("train"), []
    inputs = examples.collate(np.arange(24))
    model.eval()
    for _ in range(steps):
        loss = task.problem.loss(task.logits(model, inputs), inputs["labels"]) / 24
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return model, losses, optimizer


def test_a_training_does_not_depend_on_the_unit(tiny_bert):
    """Kilometres or metres, and years around 0 or around 2,000."""
    _, plain, _ = training(regression_task(tiny_bert), "fp32")
    for unit, shift in ((1000.0, 0.0), (1e-3, 0.0), (1.0, 300.0)):
        task = regression_task(tiny_bert, unit=unit, shift=shift)
        _, losses, optimizer = training(task, "fp32")
        assert losses == pytest.approx(plain, rel=2e-3), (unit, shift)
        rates = [rate_per_unit(group, group["lr"]) for group in optimizer.param_groups]
        assert rates == pytest.approx([1e-2] * len(rates))
        assert "unit" in optimizer.param_groups[-1]
    assert plain[-1] < 0.9 * plain[0]


def test_a_new_head_begins_at_the_mean_and_a_trained_one_stays(tiny_bert, tmp_path):
    task = regression_task(tiny_bert, unit=100.0, shift=5000.0)
    torch.manual_seed(0)
    model = task.load_model().model
    (layer,) = last_layers(model, 1).values()
    assert layer.bias.item() == pytest.approx(task.labels["train"].mean())
    assert model.config.problem_type == "regression"
    assert model.config.id2label == {0: "score"}
    with torch.no_grad():
        layer.bias.fill_(42.0)
    model.save_pretrained(tmp_path)
    task.inputs.tokenizer.save_pretrained(tmp_path)
    again = regression_task(tmp_path, unit=100.0, shift=5000.0).load_model().model
    assert next(iter(last_layers(again, 1).values())).bias.item() == 42.0
    other = regression_task(tmp_path, unit=100.0, shift=5000.0, name="height").load_model().model
    assert next(iter(last_layers(other, 1).values())).bias.item() != 42.0


def test_16_bits_do_not_round_the_numbers(tiny_bert):
    """In bfloat16 all numbers from 1,984 to 2,000 would be multiples of 8."""
    task = regression_task(tiny_bert, unit=0.1, shift=1990.0)
    model, _, _ = training(task, "bf16", steps=1)
    assert [*replaced_forwards(model)] == ["classifier"]
    inputs = task.examples("train").collate(np.arange(24))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        values = task.logits(model, inputs)[:, 0]
        plain = nn.functional.linear(torch.ones(24, 32), torch.zeros(1, 32), torch.tensor([1990.7]))
    assert len(values.unique()) > 12
    assert plain.unique().tolist() == [1992.0]
    assert replace(task.problem).rule.numbers


def test_a_model_that_is_no_better_than_the_mean_is_named():
    from ampft.evaluation.sanity import result_warnings
    from ampft.text.warning_names import NEAR_CHANCE, NOT_BETTER

    good = outcome()
    constant = RegressionPredictions(
        good.labels, np.full(N, good.labels.mean()), ("score",), "test"
    )
    noise = RegressionPredictions(good.labels, np.roll(good.labels, 1), ("score",), "test")
    found = result_warnings([1.0] * 20, 1.0, noise, constant)
    assert set(found) == {NOT_BETTER, NEAR_CHANCE}
    assert "better than the mean of the training labels" in found[NOT_BETTER]
    assert "predicting only the mean label" in found[NEAR_CHANCE]
    assert result_warnings([1.0, *[0.2] * 20], 1.0, good, constant) == {}


@pytest.mark.parametrize(
    "weights", [None, np.full(50, 0.5), np.tile([0.2, 1.0, 0.5, 2.0, 0.0], 10)]
)
def test_the_worst_error_counts_once_whatever_the_weights(weights):
    random = np.random.default_rng(0)
    labels = random.normal(size=50)
    errors = 0.3 * random.normal(size=50)
    outcome = RegressionPredictions(labels, labels + errors, ("label",), "test", weights)
    found = METRICS["mae"].costliest_case([outcome.sums("mae")]).effect
    w = np.ones(50) if weights is None else weights
    worst = np.abs(errors[w > 0]).max()
    # The change if a row has it instead of 0, on average over the weights.
    assert found == pytest.approx(worst * (w**2).sum() / w.sum() ** 2)


def test_a_report_says_how_many_numbers_it_has_how_they_vary_and_that_weights_count():
    weights = np.random.default_rng(1).integers(0, 4, N).astype(float)
    for given in (None, weights):
        found = outcome(weights=given)
        mean = np.average(found.labels, weights=given)
        deviation = np.cov(found.labels, ddof=0, aweights=given) ** 0.5
        text = (
            f"{N} examples of score; labels have the mean {mean:z.4g} and the standard deviation "
            f"{deviation:z.4g}."
        )
        said = " ".join(found.report().text().split())
        assert text in said
        assert ("Metrics count rows by their weights." in said) == (given is not None)
