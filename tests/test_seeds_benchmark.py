"""`benchmarks/seeds.py`: Adam without bias correction, the best of N, ratios of deviations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from seeds import UncorrectedAdamW, best_of_n, deviation_ratio, without_correction

from ampft.engine.optimizer import OptimizerSettings, make_optimizer


def trained_weights(optimizer, model, steps=12):
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        model(torch.randn(4, 3, generator=generator, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.weight.detach().clone()


def linear() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2, bias=False).double()


def test_uncorrected_adam_equals_the_rule_by_hand():
    model = linear()
    found = trained_weights(UncorrectedAdamW(model.parameters(), lr=1e-2, weight_decay=0.0), model)
    twin = linear()
    weight, generator = twin.weight.detach().clone(), torch.Generator().manual_seed(1)
    first = second = torch.zeros_like(weight)
    for _ in range(12):
        inputs = torch.randn(4, 3, generator=generator, dtype=torch.float64)
        gradient = 2 * weight @ inputs.T @ inputs
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        weight = weight - 1e-2 * first / (second.sqrt() + 1e-8)
    assert torch.allclose(found, weight, rtol=1e-12, atol=0)
    # Negative control: AdamW with the correction differs by far more than rounding.
    corrected = linear()
    other = trained_weights(
        torch.optim.AdamW(corrected.parameters(), 1e-2, weight_decay=0), corrected
    )
    assert (found - other).abs().max() > 1e-2


def test_the_table_of_optimizers_is_as_before_afterwards():
    settings = OptimizerSettings(learning_rate=1e-3)
    with without_correction(active=True):
        assert type(make_optimizer(linear(), settings)) is UncorrectedAdamW
    with without_correction(active=False):
        assert type(make_optimizer(linear(), settings)) is torch.optim.AdamW
    assert type(make_optimizer(linear(), settings)) is torch.optim.AdamW


def test_the_best_of_equal_seeds_is_worth_nothing_on_other_rows():
    generator = np.random.default_rng(0)
    found = best_of_n((generator.random((8, 400)) < 0.7).astype(float))
    assert found["shown"]["estimate"] > 0.02
    assert abs(found["remains"]["estimate"]) < 0.015
    low, high = found["remains"]["interval_95"]
    assert low < 0 < high
    assert found["overstated"]["interval_95"][0] > 0


def test_a_seed_that_is_better_stays_better_on_other_rows():
    # Negative control: here the choice is right.
    generator = np.random.default_rng(0)
    correct = (generator.random((8, 400)) < 0.6).astype(float)
    correct[3] = generator.random(400) < 0.9
    found = best_of_n(correct)["remains"]
    assert found["estimate"] == pytest.approx((0.9 - 0.6) * 7 / 8, abs=0.05)
    assert found["interval_95"][0] > 0.1


def test_the_ratio_of_deviations_covers_the_true_one():
    generator, covered = np.random.default_rng(0), 0
    for _ in range(400):
        baseline, sample = generator.normal(0, 1, (6, 1)), generator.normal(0, 2, (6, 1))
        low, high = deviation_ratio(sample, baseline)["interval_95"]
        covered += low < 2 < high
    assert covered / 400 == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 400))
    assert deviation_ratio(np.ones((6, 1)), baseline)["ratio"] is None
