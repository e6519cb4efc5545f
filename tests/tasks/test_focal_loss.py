"""The focal loss against its definition in float64, where it is easy and where it is extreme."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from ampft.labels.multi_label import MultiLabel
from ampft.tasks.loss import summed_binary_cross_entropy, summed_cross_entropy
from ampft.tasks.single_label import SingleLabel

GAMMAS = (0.5, 2.0, 5.0)
FLOAT32_TOLERANCE = 2e-5


def gradient(loss, logits):
    leaf = logits.clone().requires_grad_()
    value = loss(leaf)
    value.backward()
    return value.detach(), leaf.grad


def naive(logits, labels, gamma, weights=None):
    """The definition, which is inexact where p is near 1."""
    p = logits.softmax(1).gather(1, labels[:, None])[:, 0]
    factors = 1.0 if weights is None else weights[labels]
    return (-((1 - p) ** gamma) * p.log() * factors).sum()


def naive_binary(logits, targets, gamma, weights=None):
    p = torch.where(targets, logits.sigmoid(), 1 - logits.sigmoid())
    factors = 1.0 if weights is None else torch.where(targets, weights, torch.ones_like(weights))
    return (-((1 - p) ** gamma) * p.log() * factors).sum()


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("weighted", [False, True])
def test_the_focal_loss_and_its_gradient_are_those_of_the_definition(gamma, weighted):
    torch.manual_seed(0)
    logits, labels = 2 * torch.randn(30, 4), torch.randint(4, (30,))
    weights = torch.tensor([1.0, 2.0, 0.5, 3.0]) if weighted else None
    double = None if weights is None else weights.double()
    value, ours = gradient(
        lambda z: summed_cross_entropy(z, labels, class_weights=weights, focal_gamma=gamma), logits
    )
    expected, theirs = gradient(lambda z: naive(z, labels, gamma, double), logits.double())
    assert value.dtype == torch.float32
    torch.testing.assert_close(value.double(), expected, rtol=FLOAT32_TOLERANCE, atol=0)
    torch.testing.assert_close(ours.double(), theirs, rtol=FLOAT32_TOLERANCE, atol=1e-6)
    targets = torch.rand(30, 4) < 0.3
    value, ours = gradient(
        lambda z: summed_binary_cross_entropy(
            z, targets, positive_weights=weights, focal_gamma=gamma
        ),
        logits,
    )
    expected, theirs = gradient(lambda z: naive_binary(z, targets, gamma, double), logits.double())
    torch.testing.assert_close(value.double(), expected, rtol=FLOAT32_TOLERANCE, atol=0)
    torch.testing.assert_close(ours.double(), theirs, rtol=FLOAT32_TOLERANCE, atol=1e-6)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("margin", [0.0, 20.0, -20.0, 90.0, -90.0, 500.0, -500.0])
def test_extreme_logits_have_finite_and_exact_gradients(gamma, margin):
    """Where p rounds to 1 in float32, the definition has no digits left, and NaN for gamma < 1."""
    logits, labels = torch.tensor([[margin, 0.0, -1.0]]), torch.tensor([0])
    targets = labels[:, None] == torch.arange(3)
    for loss in (
        lambda z: summed_cross_entropy(z, labels, focal_gamma=gamma),
        lambda z: summed_binary_cross_entropy(z, targets, focal_gamma=gamma),
    ):
        value, ours = gradient(loss, logits)
        expected, theirs = gradient(loss, logits.double())
        assert value.isfinite()
        assert ours.isfinite().all()
        torch.testing.assert_close(value.double(), expected, rtol=1e-4, atol=1e-9)
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-9)
    if margin == 90 and gamma == 0.5:
        assert not gradient(lambda z: naive(z, labels, gamma), logits)[1].isfinite().all()


def test_gamma_zero_is_cross_entropy_and_ignored_labels_do_not_count():
    torch.manual_seed(1)
    logits, labels = torch.randn(2, 5, 3, 3), torch.randint(5, (2, 3, 3))
    labels[0, 0, 0] = 255
    plain = functional.cross_entropy(logits, labels, ignore_index=255, reduction="sum")
    assert torch.equal(summed_cross_entropy(logits, labels, ignore_index=255), plain)
    flat, kept = logits.movedim(1, -1).reshape(-1, 5), labels.flatten()
    counted = kept != 255
    torch.testing.assert_close(
        summed_cross_entropy(logits, labels, focal_gamma=2.0, ignore_index=255),
        summed_cross_entropy(flat[counted], kept[counted], focal_gamma=2.0),
    )


def test_the_tasks_use_it():
    names = ("a", "b", "c")
    logits = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 3.0]])
    labels, targets = torch.tensor([0, 1]), torch.tensor([[True, False, True]] * 2)
    weights = np.array([1, 2, 3], dtype=np.float32)
    single = SingleLabel(names, weights, focal_gamma=2.0).loss(logits, labels)
    assert single == pytest.approx(float(naive(logits, labels, 2.0, torch.tensor(weights))))
    several = MultiLabel(names, weights, focal_gamma=2.0).loss(logits, targets)
    expected = naive_binary(logits, targets, 2.0, torch.tensor(weights))
    assert several == pytest.approx(float(expected))


def test_smoothed_labels_are_refused():
    labels = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="cannot be combined"):
        summed_cross_entropy(torch.zeros(2, 3), labels, focal_gamma=2.0, label_smoothing=0.1)
