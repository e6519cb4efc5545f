"""AdamW without decay on norms and biases, and schedules that count applied steps."""

import math
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ampft.engine.optimizer import (
    OptimizerSettings,
    ScheduleSettings,
    default_learning_rate,
    make_optimizer,
    make_schedule,
    rate_warning,
)

PEAK, STEPS = 0.5, 20


@pytest.mark.parametrize(
    ("hidden_size", "rate"), [(128, 1e-4), (512, 1e-4), (768, 5e-5), (1024, 5e-5), (None, 5e-5)]
)
def test_small_models_have_a_larger_default_learning_rate(hidden_size, rate):
    assert default_learning_rate(SimpleNamespace(hidden_size=hidden_size)) == rate
    own = SimpleNamespace(hidden_size=hidden_size, default_learning_rate=3e-3)
    assert default_learning_rate(own) == 3e-3


def test_a_head_that_begins_at_a_probe_halves_the_default_learning_rate():
    small = SimpleNamespace(hidden_size=384)
    assert default_learning_rate(small, begins_at_probe=True) == 5e-5
    assert default_learning_rate(small, begins_at_probe=True, trains_head_or_adapters=True) == 1e-3
    assert default_learning_rate(small, begins_at_probe=True, optimizer="adafactor") == 1e-3


def rates(settings, steps=STEPS):
    optimizer = make_optimizer(nn.Linear(2, 2), OptimizerSettings(learning_rate=PEAK))
    schedule = make_schedule(optimizer, steps, settings)
    values = []
    for _ in range(steps):
        values.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    return values


def linear(step, warmup, steps=STEPS):
    """The expected rate: it rises to the peak over the warm-up, then falls to zero."""
    return PEAK * (step / warmup if step < warmup else (steps - step) / (steps - warmup))


@pytest.mark.parametrize(
    ("settings", "warmup"),
    [
        ({}, 0),
        ({"warmup_ratio": 0.25}, 5),
        ({"warmup_ratio": 0.01}, 1),
        ({"warmup_ratio": 0.21}, 5),
        ({"warmup_steps": 3}, 3),
        ({"warmup_steps": 3, "warmup_ratio": 0.9}, 3),
        ({"warmup_steps": 0, "warmup_ratio": 0.9}, 0),
    ],
)
def test_the_linear_schedule_rises_over_the_warm_up_and_falls_to_zero(settings, warmup):
    expected = [linear(step, warmup) for step in range(STEPS)]
    assert rates(ScheduleSettings(**settings)) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["linear", "polynomial", "cosine", "cosine_with_restarts"])
@pytest.mark.parametrize("steps", [1, 4])
def test_a_warm_up_of_all_steps_only_rises(name, steps):
    """transformers' polynomial schedule divides by 0 after its last step."""
    expected = [PEAK * step / steps for step in range(steps)]
    assert rates(ScheduleSettings(name, warmup_ratio=1.0), steps) == pytest.approx(expected)


def test_the_cosine_schedule_is_half_a_cosine():
    expected = [PEAK * (1 + math.cos(math.pi * step / STEPS)) / 2 for step in range(STEPS)]
    assert rates(ScheduleSettings("cosine")) == pytest.approx(expected)


def test_the_constant_schedule_is_constant():
    assert rates(ScheduleSettings("constant")) == [PEAK] * STEPS


def block():
    return nn.Sequential(nn.Embedding(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))


def test_norms_and_biases_do_not_decay():
    model = block()
    for parameter in model.parameters():
        nn.init.ones_(parameter)
        parameter.grad = torch.zeros_like(parameter)  # so that only decay changes a weight
    settings = OptimizerSettings(learning_rate=0.1, weight_decay=0.5)
    make_optimizer(model, settings).step()
    decayed = {name for name, p in model.named_parameters() if not torch.equal(p, torch.ones(()))
               and torch.allclose(p, torch.tensor(1 - 0.1 * 0.5))}  # fmt: skip
    unchanged = {n for n, p in model.named_parameters() if torch.equal(p, torch.ones_like(p))}
    assert decayed == {"0.weight", "2.weight"}
    assert unchanged == {"1.weight", "1.bias", "2.bias"}


def test_frozen_parameters_are_excluded():
    model = block()
    model[0].requires_grad_(False)
    optimizer = make_optimizer(model, OptimizerSettings(learning_rate=0.1, weight_decay=0.5))
    optimized = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert optimized == {id(p) for p in model.parameters() if p.requires_grad}


def test_settings_reach_adamw():
    settings = OptimizerSettings(learning_rate=0.1, betas=(0.8, 0.95), epsilon=1e-6)
    optimizer = make_optimizer(block(), settings)
    assert len(optimizer.param_groups) == 2
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (0.1, (0.8, 0.95), 1e-6)


def test_a_rate_far_above_those_in_use_is_said():
    assert rate_warning(0.1, "adamw_torch") is None
    assert "5 is far above usual rates with AdamW" in rate_warning(5.0, "adamw_torch")
    assert "share of its size" in rate_warning(1.0, "adafactor")


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (7, 0), (7, 3), (20, 20), (20, 30), (3, 1)])
def test_the_linear_schedule_is_the_one_of_transformers_bit_for_bit(steps, warmup):
    from transformers import get_scheduler

    def states(make):
        optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(1))], lr=0.3)
        schedule, values = make(optimizer), []
        for _ in range(steps + 2):
            values.append((schedule.get_last_lr(), schedule.state_dict()))
            optimizer.step()
            schedule.step()
        return values

    own = states(lambda o: make_schedule(o, steps, ScheduleSettings(warmup_steps=warmup)))
    assert own == states(
        lambda o: get_scheduler("linear", o, num_warmup_steps=warmup, num_training_steps=steps)
    )


@pytest.mark.slow
def test_a_linear_schedule_imports_no_optional_library():
    code = (
        "import sys, torch\n"
        "from ampft.engine.optimizer import ScheduleSettings, make_schedule\n"
        "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)\n"
        "make_schedule(optimizer, 5, ScheduleSettings())\n"
        "print(sorted({'transformers.optimization', 'peft', 'bitsandbytes'} & {*sys.modules}))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
