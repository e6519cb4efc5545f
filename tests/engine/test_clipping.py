"""The norm of a gradient against float64, and clipping against torch's."""

import math

import pytest
import torch
from exact_step import Training, tensor_problem
from torch import nn

from ampft.engine.clipping import clip_gradient, gradient_norm, scaled_by_update
from ampft.engine.optimizer import OptimizerSettings, make_optimizer

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

FLOAT32_TOLERANCE = 1e-6  # of a norm, and of weights after a step of SGD
LIMIT = 0.05


def in_float64(gradients):
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_norm_is_that_of_float64(dtype):
    torch.manual_seed(0)
    gradients = [torch.randn(30000, 300), torch.randn(()), torch.randn(7), torch.randn(4, 3, 2, 2)]
    gradients = [gradient.to(dtype) for gradient in [*gradients, torch.randn(50, 40).mT]]
    norm, expected = gradient_norm(gradients), in_float64(gradients)
    assert norm.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert float(norm) == pytest.approx(expected, rel=FLOAT32_TOLERANCE)


def test_torchs_norm_of_a_large_gradient_is_not():
    torch.manual_seed(0)
    gradient = torch.randn(30000, 300)
    error = abs(float(torch.linalg.vector_norm(gradient)) / in_float64([gradient]) - 1)
    assert error > 10 * FLOAT32_TOLERANCE


def adamw(model):
    return make_optimizer(model, OptimizerSettings(learning_rate=0.01, weight_decay=0.1))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def sgd_fused(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, fused=True)


def adamw_of_a_part(model):
    """Return an optimizer that does not have the last parameter, which counts for the norm."""
    return torch.optim.AdamW(list(model.parameters())[:-1], lr=0.01, fused=True)


@pytest.mark.parametrize("optimizer", [adamw, sgd, sgd_fused, adamw_of_a_part])
@pytest.mark.parametrize("limit", [0.0, LIMIT, 1e6, None])
def test_a_step_equals_that_of_torchs_clipping(optimizer, limit):
    problem, twin = tensor_problem(n=12), tensor_problem(n=12)
    training = Training("fp32", problem, 12, optimizer=optimizer, max_grad_norm=limit)
    (step_batch,) = training.batches.epoch(0)
    (micro_batch,) = step_batch.micro_batches
    inputs = twin.examples.collate(micro_batch.ids)
    loss = nn.functional.cross_entropy(twin.model(inputs["x"]), inputs["labels"])
    loss.backward()
    expected = nn.utils.clip_grad_norm_(
        twin.model.parameters(), math.inf if limit is None else limit
    )
    optimizer(twin.model).step()
    (step,) = training.steps()
    assert step.outcome.grad_norm == pytest.approx(float(expected), rel=FLOAT32_TOLERANCE)
    for ours, plain in zip(problem.model.parameters(), twin.model.parameters(), strict=True):
        torch.testing.assert_close(ours, plain, rtol=FLOAT32_TOLERANCE, atol=1e-7)


class _OneProcess:
    """The parts of an Accelerator that clipping reads, without a loss scaler."""

    scaler = None
    distributed_type = "NO"


@pytest.mark.parametrize("optimizer", [adamw, sgd])
def test_the_clipped_gradient_remains_after_the_update(optimizer):
    model = nn.Linear(30, 20)
    updates = optimizer(model)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    expected = [
        parameter.grad / in_float64([p.grad for p in model.parameters()]) * LIMIT
        for parameter in model.parameters()
    ]
    _, divisor = clip_gradient(_OneProcess(), model.parameters(), LIMIT, updates)
    assert (divisor is None) == (optimizer is sgd)
    with scaled_by_update(updates, divisor):
        updates.step()
    assert not hasattr(updates, "grad_scale")
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=0)  # 1e-6 in the norm


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_is_not_scaled(bad):
    model = nn.Linear(3, 2)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, bad)
    norm, divisor = clip_gradient(_OneProcess(), model.parameters(), LIMIT, adamw(model))
    assert divisor is None
    assert not math.isfinite(norm)
