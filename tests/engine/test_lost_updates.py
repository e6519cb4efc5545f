"""The share of weight updates that rounding loses, against known counts."""

import math

import pytest
import torch
from torch import nn

from ampft.engine import bfloat16_adamw
from ampft.engine.bfloat16_adamw import MEASURED_EVERY, STRIDE, step_measuring_lost_updates
from ampft.engine.optimizer import OptimizerSettings, make_optimizer
from ampft.precision.resolve import resolve

BF16, CPU = torch.bfloat16, torch.device("cpu")
RATE = 2.0**-9


def planted(mode, *, decay=0.0, rate=RATE, dtype=BF16):
    """Four weights, of which the first three have updates of 2^-9: 1 loses it, 2^-6 and 0 do not.

    The gap below 1 is 2^-8, and half of it is rounded to 1, which is even. The fourth weight has a
    gradient of zero.
    """
    model = nn.Linear(4, 1, bias=False).to(BF16).to(dtype)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, 2.0**-6, 0.0, 512.0]]))
    settings = OptimizerSettings(learning_rate=rate, weight_decay=decay, seed=0)
    optimizer = make_optimizer(model, settings, resolve(mode, CPU))
    model.weight.grad = torch.tensor([[1.0, 1.0, 1.0, 0.0]], dtype=dtype)
    return model, optimizer


@pytest.mark.parametrize(
    ("mode", "decay", "expected"),
    [
        ("bf16-true", 0.0, 1 / 3),
        # With decay, the update of the first exceeds half its gap. The fourth has an update only
        # from decay, 2^-9 * 2^-4 * 512, which is below half its gap of 2.
        ("bf16-true", 2.0**-4, 1 / 4),
        ("bf16-true-kahan", 0.0, 0.0),
        ("bf16-true-kahan", 2.0**-4, 0.0),
    ],
)
def test_the_share_is_as_expected(mode, decay, expected):
    _, optimizer = planted(mode, decay=decay)
    assert step_measuring_lost_updates(optimizer, step=MEASURED_EVERY) == pytest.approx(expected)


def test_stochastic_rounding_loses_updates_at_random():
    shares = set()
    for seed in range(20):
        _, optimizer = planted("bf16-true-stochastic")
        optimizer._seed = seed
        shares.add(round(3 * step_measuring_lost_updates(optimizer, step=MEASURED_EVERY)))
    assert shares == {0, 1}


def test_a_learning_rate_of_zero_is_not_measured():
    _, optimizer = planted("bf16-true", rate=0.0)
    assert step_measuring_lost_updates(optimizer, step=MEASURED_EVERY) is None


@pytest.mark.parametrize("step", [1, MEASURED_EVERY - 1, MEASURED_EVERY + 1])
def test_other_steps_are_applied_but_not_measured(step):
    model, optimizer = planted("bf16-true")
    before = model.weight.detach().clone()
    assert step_measuring_lost_updates(optimizer, step=step) is None
    assert not torch.equal(model.weight, before)


def test_float32_weights_are_not_measured():
    _, optimizer = planted("bf16", dtype=torch.float32)
    assert step_measuring_lost_updates(optimizer, step=MEASURED_EVERY) is None


@pytest.mark.parametrize("mode", ["bf16-true", "bf16-true-kahan", "bf16-true-stochastic"])
def test_measuring_changes_no_bit(mode):
    ends = []
    for step in (1, MEASURED_EVERY):
        model, optimizer = planted(mode)
        step_measuring_lost_updates(optimizer, step=step)
        ends.append(model.weight.detach())
    assert torch.equal(*ends)


def test_the_share_in_a_large_model_is_estimated_from_a_sample(monkeypatch):
    shares = []
    for sampled_from in (math.inf, 1000):
        monkeypatch.setattr(bfloat16_adamw, "MIN_SAMPLED_WEIGHTS", sampled_from)
        generator = torch.Generator().manual_seed(0)
        model = nn.Linear(384, 384).to(BF16)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
                parameter.grad = torch.randn(parameter.shape, generator=generator).to(BF16)
        settings = OptimizerSettings(learning_rate=2.0**-9)
        optimizer = make_optimizer(model, settings, resolve("bf16-true", CPU))
        shares.append(step_measuring_lost_updates(optimizer, step=MEASURED_EVERY))
    exact, sampled = shares
    # Five standard errors of the sampled share.
    deviation = 5 * math.sqrt(exact * (1 - exact) / (384 * 385 / STRIDE))
    assert 0.1 < exact < 0.9
    assert exact != sampled
    assert sampled == pytest.approx(exact, abs=deviation)
