import math

import pytest
import torch
from tiny_encoders import right_padded, tiny
from torch import nn

import ampft
from ampft.fast.packing.cpu_kernels import (
    dropout,
    install_fast_dropout,
    keep_mask,
    realised_probability,
)
from ampft.fast.packing.install import install_packing

COUNT = 100_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_values_are_dropped_or_scaled_and_gradients_follow(dtype, p):
    torch.manual_seed(0)
    inputs = torch.rand(COUNT).add(0.5).to(dtype).requires_grad_()
    actual = dropout(inputs, p)
    kept = actual != 0
    scale = 1 / (1 - realised_probability(p))
    assert torch.equal(actual[kept], (inputs[kept].float() * scale).to(dtype))
    (gradient,) = torch.autograd.grad(actual, inputs, torch.full_like(actual, 2))
    assert torch.equal(gradient != 0, kept)
    assert torch.equal(gradient[kept], torch.full_like(gradient[kept], 2).mul(scale))


def test_the_kept_share_is_as_requested_and_neighbours_are_independent():
    torch.manual_seed(1)
    kept = keep_mask(COUNT, 0.1, torch.float32).double()
    error = math.sqrt(0.09 / COUNT)
    assert abs(float(kept.mean()) - 0.9) < 4 * error
    # Four neighbours come from one draw and must be independent.
    for distance in (1, 2, 3, 4):
        pairs = (kept[:-distance] - 0.9) * (kept[distance:] - 0.9)
        assert abs(float(pairs.mean())) < 4 * 0.09 / math.sqrt(COUNT)
    for lane in range(4):
        assert abs(float(kept[lane::4].mean()) - 0.9) < 4 * 2 * error


def test_masks_depend_on_the_seed():
    torch.manual_seed(2)
    first, second = keep_mask(64, 0.5, torch.float32), keep_mask(64, 0.5, torch.float32)
    torch.manual_seed(2)
    assert torch.equal(keep_mask(64, 0.5, torch.float32), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_infinite_and_nan_values_are_not_hidden(value):
    assert not dropout(torch.full((1000,), value), 0.5).isfinite().any()


@pytest.mark.parametrize("p", [0.0, 1.0, 1e-9])
def test_extreme_probabilities_are_handled_by_torch(p):
    inputs = torch.ones(8)
    torch.manual_seed(0)
    assert torch.equal(dropout(inputs, p), nn.functional.dropout(inputs, p) if p else inputs)


def test_nested_layers_are_changed_and_restored():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Dropout(0.5)), nn.Dropout(0.0))
    undo = install_fast_dropout(model)
    inputs = torch.ones(100, 4)
    assert torch.equal(model[2](inputs), inputs)
    assert set(model[1](inputs).unique().tolist()) == {0.0, 2.0}
    assert torch.equal(model.eval()[1](inputs), inputs)
    undo()
    assert "forward" not in vars(model[1][0])


def random_state_after_a_step(mode, *, packed):
    model = tiny("bert").train()
    if packed:
        install_packing(model)
    precision = ampft.resolve(mode, torch.device("cpu"))
    dtype = None if mode == "fp32" else precision.compute_dtype
    batch = right_padded(model, [3, 17, 17, 1, 30])
    torch.manual_seed(0)
    with ampft.numerics(precision), torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        loss = model(**batch).logits.float().sum()
    loss.backward()
    return torch.get_rng_state()


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("mode", ["bf16", "fp16"])
def test_every_precision_draws_the_same_masks(mode, packed):
    actual, expected = (random_state_after_a_step(one, packed=packed) for one in (mode, "fp32"))
    assert torch.equal(actual, expected)
    # Negative control: the state depends on how much was drawn.
    assert not torch.equal(expected, random_state_after_a_step("fp32", packed=not packed))
