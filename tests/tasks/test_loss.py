"""The summed loss against `torch.nn.CrossEntropyLoss`, and the balanced weights."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from sklearn.utils.class_weight import compute_class_weight
from tiny_text import tiny_task
from torch import nn

from ampft.data.step_batches import MicroBatch
from ampft.engine.step import backward, synchronized_last
from ampft.tasks.loss import balanced_class_weights, summed_cross_entropy
from ampft.tasks.single_label import SingleLabel

CLASSES = 5


def example_weights(labels, weights):
    array = None if weights is None else np.array(weights, dtype=np.float32)
    return SingleLabel(tuple("abcde"), array).weights(labels)


def logits_and_labels(n=37):
    generator = torch.Generator().manual_seed(n)
    logits = torch.randn(n, CLASSES, generator=generator) * 3
    return logits.requires_grad_(), torch.randint(CLASSES, (n,), generator=generator)


@pytest.mark.parametrize("weights", [None, [0.1, 1.0, 2.0, 30.0, 0.5]])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
@pytest.mark.parametrize("cuts", [[37], [1, 36], [12, 12, 13], [5, 1, 1, 30]])
def test_parts_add_up_to_the_mean_of_torch(weights, smoothing, cuts):
    logits, labels = logits_and_labels()
    weight = None if weights is None else torch.tensor(weights)
    function = nn.CrossEntropyLoss(weight=weight, label_smoothing=smoothing)
    expected = function(logits, labels)
    (expected_gradient,) = torch.autograd.grad(expected, logits)
    whole = float(example_weights(labels.numpy(), weights).sum())
    total = sum(
        summed_cross_entropy(part, target, class_weights=weight, label_smoothing=smoothing) / whole
        for part, target in zip(logits.split(cuts), labels.split(cuts), strict=True)
    )
    (gradient,) = torch.autograd.grad(total, logits)
    assert math.isclose(total.item(), expected.item(), rel_tol=1e-6)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("weights", [None, [0.1, 1.0, 2.0, 30.0, 0.5]])
def test_the_mean_of_means_is_another_loss(weights):
    # Negative control: the same parts, each divided by its own weight.
    logits, labels = logits_and_labels()
    function = nn.CrossEntropyLoss(weight=None if weights is None else torch.tensor(weights))
    cuts = [5, 1, 1, 30]
    pairs = zip(logits.split(cuts), labels.split(cuts), strict=True)
    naive = torch.stack([function(part, target) for part, target in pairs]).mean()
    assert abs(naive.item() / function(logits, labels).item() - 1) > 0.01


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_loss_is_computed_in_float32(dtype):
    logits, labels = logits_and_labels()
    low = logits.detach().to(dtype)
    with torch.autocast("cpu", dtype=dtype):
        loss = summed_cross_entropy(low, labels)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, nn.functional.cross_entropy(low.float(), labels, reduction="sum"))


@pytest.mark.parametrize("counts", [[1, 2, 3], [10, 10], [1, 1000, 7, 90]])
def test_balanced_weights_are_those_of_scikit_learn(counts):
    labels = np.repeat(np.arange(len(counts)), counts)
    expected = compute_class_weight("balanced", classes=np.arange(len(counts)), y=labels)
    found = balanced_class_weights(np.array(counts))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert math.isclose(example_weights(labels, found).mean(), 1.0, rel_tol=1e-6)


@pytest.mark.usefixtures("fresh_accelerate")
def test_a_dummy_counts_zero_times_and_has_a_finite_gradient(tiny_bert):
    task = tiny_task(tiny_bert, train=8, class_weights="1,2,3", label_smoothing_factor=0.1)
    model = task.load_model().model
    inputs = task.examples("train").collate(np.array([0]))
    dummy = MicroBatch(np.array([0]), inputs, counted=False, is_last=True)
    accelerator = Accelerator(cpu=True)
    with synchronized_last(accelerator, model, dummy):
        assert backward(accelerator, task.loss(model, dummy)).item() == 0.0
    assert all(not parameter.grad.any() for parameter in model.parameters())
    counted = task.loss(model, replace(dummy, counted=True))  # negative control
    assert counted.item() > 0
