"""The optimizer holds every trained parameter, and its first update moves them."""

from __future__ import annotations

import copy
import inspect
import math

import pytest
import torch
from torch import nn

from ampft.engine import trained_parameters
from ampft.engine.bfloat16_adamw import BFloat16AdamW
from ampft.engine.trained_parameters import check_optimizer_updates_parameters
from ampft.errors import PrecisionContradicted


def network(dtype=torch.float32, weight=None):
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).to(dtype)
    for parameter in model.parameters() if weight is not None else ():
        nn.init.constant_(parameter, weight)
    return model


def update(model, optimizer, *, gradient=1.0):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, gradient)
    optimizer.step()


class Forgetful(torch.optim.AdamW):
    """Its step leaves the first tensor as it was."""

    @torch.no_grad()
    def step(self, closure=None):
        first = self.param_groups[0]["params"][0]
        before = first.clone()
        # torch puts the hooks around the inherited step too, once an AdamW has been made.
        inspect.unwrap(torch.optim.AdamW.step)(self, closure)
        first.copy_(before)


def test_a_tensor_that_stays_stops_the_run():
    model = network()
    optimizer = Forgetful(model.parameters(), lr=1e-3)
    check_optimizer_updates_parameters(model, optimizer)
    with pytest.raises(PrecisionContradicted, match=r"left 1 of 4 .* unchanged, among them 0\.wei"):
        update(model, optimizer)


def test_a_step_without_learning_rate_postpones_the_check():
    model = network()
    optimizer = Forgetful(model.parameters(), lr=0.0)
    check_optimizer_updates_parameters(model, optimizer)
    update(model, optimizer)
    optimizer.param_groups[0]["lr"] = 1e-3
    with pytest.raises(PrecisionContradicted, match="left 1 of 4"):
        update(model, optimizer)


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_that_the_scaler_skips_postpones_the_check(fused):
    model = network()
    optimizer = Forgetful(model.parameters(), lr=1e-3, fused=fused)
    check_optimizer_updates_parameters(model, optimizer)
    scaler = torch.amp.GradScaler("cpu")
    for entry in (torch.inf, 1.0):
        scaler.scale(torch.ones(()))
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, entry)
        if entry == 1.0:
            with pytest.raises(PrecisionContradicted, match="left 1 of 4"):
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
            scaler.update()


def test_a_parameter_that_is_replaced_later_stops_the_run():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    check_optimizer_updates_parameters(model, optimizer)
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())
    with pytest.raises(PrecisionContradicted, match=r"holds 3 of 4 .* 0\.weight is not"):
        update(model, optimizer)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic", "kahan", None])
def test_updates_below_the_resolution_of_the_weights_are_allowed(rounding):
    dtype = torch.float32 if rounding is None else torch.bfloat16
    model = network(dtype, weight=100.0)
    if rounding in ("kahan", "stochastic"):
        optimizer = BFloat16AdamW(model.parameters(), lr=1e-6, rounding=rounding)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    before = copy.deepcopy(model)
    check_optimizer_updates_parameters(model, optimizer)
    update(model, optimizer)
    pairs = zip(model.parameters(), before.parameters(), strict=True)
    assert all(torch.equal(now, then) for now, then in pairs)


def test_tensors_without_a_gradient_may_stay():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    check_optimizer_updates_parameters(model, optimizer)
    update(model, optimizer, gradient=0.0)


def test_the_check_removes_itself_after_the_first_update():
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    check_optimizer_updates_parameters(model, optimizer)
    update(model, optimizer)
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000, 4097])
@pytest.mark.parametrize("copied", [0, 2**20])
def test_the_sampled_weights_have_the_largest_gradient_of_their_part(size, copied, monkeypatch):
    monkeypatch.setattr(trained_parameters, "COPIED", copied)
    row = torch.randn(size, generator=torch.Generator().manual_seed(size))
    length = math.ceil(size / trained_parameters.SAMPLED)
    expected = [
        start + int(row[start : start + length].abs().numpy().argmax())
        for start in range(0, size, length)
    ]
    assert trained_parameters._largest_of_parts(row).tolist() == expected
