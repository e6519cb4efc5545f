"""Values of a wrong type, shape or content in a loop of one's own."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import cross_entropy

import ampft

EXAMPLES = [(torch.full((4,), float(i)), i % 2) for i in range(12)]
MODEL = torch.nn.Linear(4, 2)


def trained(tmp_path, loss=None, examples=None, **settings):
    """Train for an epoch; `loss` takes the model and a batch. Return the training."""
    model = settings.pop("model", torch.nn.Linear(4, 2))
    optimizer = settings.pop("optimizer", None)
    if optimizer is None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    examples = EXAMPLES if examples is None else examples
    settings = {"batch_size": 4, "epochs": 1, "output_dir": tmp_path / "o", **settings}
    training = ampft.Training(model, optimizer, examples, **settings)

    def summed(batch):
        if loss is not None:
            return loss(model, batch)
        return cross_entropy(model(batch[0]), batch[1], reduction="sum")

    with training:
        for _ in training:
            training.step(summed)
    return training


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"model": torch.nn.Linear, "optimizer": [1]}, "model: received the <class"),
        ({"model": "bert", "optimizer": [1]}, "model: received str. Pass a torch.nn.Module"),
        ({"optimizer": torch.optim.SGD}, "optimizer: received the <class"),
        ({"optimizer": "adam"}, "optimizer: received str. Pass an optimizer"),
        ({"batch_size": None}, "batch_size: received None"),
        ({"batch_size": True}, "batch_size: received True"),
        ({"epochs": None}, "epochs: received None"),
        ({"seed": "a"}, "seed: received 'a'"),
        ({"seed": None}, "seed: received None"),
        ({"ema_decay": "a"}, "ema_decay: received 'a'. Pass a number"),
        ({"max_grad_norm": "1"}, "max_grad_norm: received '1'. Pass a number"),
        ({"schedule": "cosine"}, "schedule: received str. Pass a schedule"),
        ({"checkpointed": [1]}, "checkpointed: received list. Pass objects by name"),
        ({"hyperparameters": [1]}, r"hyperparameters: received \[1\]. Pass values by name"),
        ({"hyperparameters": {"a": {1}}}, "hyperparameters: 'a' is a set"),
        ({"collate": "x"}, "collate: received 'x'. Pass a function"),
        ({"weights": ["a"] * 12}, "weights: received .* Pass 12 finite numbers"),
        ({"weights": {"a": 1}}, "weights: received .* Pass 12 finite numbers"),
        ({"weights": [0.0] * 12}, "at least one of them above 0"),
        ({"examples": pd.DataFrame({"x": range(12)})}, "Pass datasets.Dataset.from_pandas"),
        ({"examples": "abc"}, "examples: received str. Pass a list of examples"),
        ({"examples": {"x": [1, 2]}}, "Pass tensors by name"),
        ({"examples": {"x": torch.tensor(1.0)}}, "Pass tensors by name"),
        # Two arrays of 12 rows would be two examples.
        ({"examples": (np.zeros((12, 4)), np.zeros(12))}, "In a tuple, each item would be"),
    ],
)
def test_arguments_of_another_kind(tmp_path, settings, match) -> None:
    with pytest.raises(ampft.InputError, match=match):
        trained(tmp_path, **settings)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("loss", "match"),
    [
        (lambda model, batch: torch.tensor(1.0) * len(batch[1]), "without a gradient"),
        (lambda model, batch: model(batch[0]).sum().detach(), "without a gradient"),
        (lambda model, batch: torch.tensor(3), "tensor of torch.int64"),
        (lambda model, batch: (model(batch[0]).sum(), "a"), "weight that it returned is str"),
        (lambda model, batch: (model(batch[0]).sum(), torch.ones(4)), r"returned is \(4,\)"),
        (lambda model, batch: (model(batch[0]).sum(), float("nan")), "is nan for a step"),
        (lambda model, batch: (model(batch[0]).sum(), 0), "with the weight 0"),
    ],
)
@pytest.mark.parametrize("check_loss", [True, False])
def test_losses_of_another_kind(tmp_path, loss, match, check_loss) -> None:
    if match == "with the weight 0" and not check_loss:
        return
    with pytest.raises(ampft.InputError, match=match):
        trained(tmp_path, loss, check_loss=check_loss)


def test_steps_outside_of_the_loop(tmp_path) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = ampft.Training(model, optimizer, EXAMPLES, output_dir=tmp_path / "o")
    with pytest.raises(ampft.InputError, match="the training has not begun"):
        training.step(lambda batch: model(batch[0]).sum())
    with pytest.raises(ampft.InputError, match="the training has not begun"):
        next(iter(training))
    with pytest.raises(ampft.InputError, match="step: no batch is being trained"), training:
        training.step(lambda batch: model(batch[0]).sum())


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda t: t.validated(), "validated: no metric was passed"),
        (lambda t: t.validated(loss=None), "validated: received None as loss"),
        (lambda t: t.validated(loss=torch.ones(2)), "validated: received tensor"),
        (lambda t: t.finish(accuracy="good"), "finish: received 'good' as accuracy"),
        (lambda t: t.finish([1, 2]), "finish: received list as predictions"),
    ],
)
def test_metrics_of_another_kind(tmp_path, call, match) -> None:
    optimizer = torch.optim.SGD(MODEL.parameters(), lr=0.1)
    training = ampft.Training(MODEL, optimizer, EXAMPLES, output_dir=tmp_path / "o", epochs=1)
    with training:
        for _ in training:
            training.step(lambda b: cross_entropy(MODEL(b[0]), b[1], reduction="sum"))
        with pytest.raises(ampft.InputError, match=match):
            call(training)


@pytest.mark.parametrize("size", [0, -3, 1.5, "4", True, None])
def test_batch_sizes_of_the_exact_gradient(size) -> None:
    examples = ampft.TensorExamples({"x": torch.zeros(8, 4)})
    accelerator = ampft.make_accelerator("fp32")
    with pytest.raises(ampft.InputError, match=f"batch_size: received {re.escape(repr(size))}"):
        ampft.StepBatches.for_process(accelerator, examples, batch_size=size)


def test_tensors_and_weights_of_the_exact_gradient() -> None:
    with pytest.raises(ampft.InputError, match=r"different numbers of rows \(x 3, y 4\)"):
        assert len(ampft.TensorExamples({"x": torch.zeros(3), "y": torch.zeros(4)}).weights)
    with pytest.raises(ampft.InputError, match="has only zeros"):
        assert len(ampft.TensorExamples({"x": torch.zeros(3)}, torch.zeros(3)).weights)


def test_predictions_are_read_from_lists_and_arrays() -> None:
    logits, labels = [[2.0, 0.0], [0.0, 1.0]], [0, 1]
    for form in (list, np.array, torch.tensor):
        found = ampft.Predictions.from_logits(form(logits), form(labels), label_names=["a", "b"])
        assert found.predicted.tolist() == labels


def test_smoothing_beyond_its_range() -> None:
    with pytest.raises(ValueError, match="label_smoothing must be 0 to 1"):
        ampft.summed_cross_entropy(torch.zeros(2, 3), torch.zeros(2).long(), label_smoothing=-0.1)
