"""The average of the weights against its definition, and where it stands in for the weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ampft.features.feature import SavedFeature
from ampft.features.weights import AveragedWeights


def moved(model, steps):
    """Yield after each of some random changes of the trained weights."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter += torch.randn(parameter.shape, generator=generator)
        yield


def test_the_average_is_that_of_the_definition():
    model = nn.Linear(3, 2)
    average = AveragedWeights(model, 0.9)
    expected = model.weight.detach().double().numpy().copy()
    for step, _ in enumerate(moved(model, 120)):
        average.update()
        decay = min(0.9, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * model.weight.detach().double().numpy()
    with average.around_evaluation():
        np.testing.assert_allclose(model.weight.detach().numpy(), expected, rtol=1e-5)
    assert average.updates == 120


def test_with_a_constant_decay_it_is_torchs_averaged_model(monkeypatch):
    model = nn.Linear(3, 2)
    average = AveragedWeights(model, 0.6)
    average.updates = 1000  # past the first steps, in which the decay grows
    twin = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.6))
    twin.update_parameters(model)  # the first update copies
    for _ in moved(model, 9):
        average.update()
        twin.update_parameters(model)
    with average.around_evaluation():
        for ours, theirs in zip(model.parameters(), twin.module.parameters(), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weights_come_back_and_frozen_ones_are_never_touched(dtype):
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).to(dtype)
    model[0].requires_grad_(False)
    frozen = model[0].weight.data_ptr()
    average = AveragedWeights(model, 0.9)
    for _ in moved(model, 3):
        average.update()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with average.around_evaluation():
        assert model[1].weight.dtype == dtype
        assert not torch.equal(model[1].weight, before["1.weight"])
        assert average.raw.keys() == {"1.weight", "1.bias"}
        assert torch.equal(average.raw["1.weight"], before["1.weight"])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model[0].weight.data_ptr() == frozen


def test_a_restored_average_continues_bit_for_bit():
    one, other = nn.Linear(3, 2), nn.Linear(3, 2)
    average, again = AveragedWeights(one, 0.99), AveragedWeights(other, 0.99)
    for _ in moved(one, 4):
        average.update()
    saved = {name: tensor.clone() for name, tensor in average.tensors().items()}
    other.load_state_dict(one.state_dict())
    again.restore(SavedFeature(average.state(), saved, 4, b"", Path(), {}))
    for _ in zip(moved(one, 3), moved(other, 3), strict=True):
        average.update()
        again.update()
    assert all(torch.equal(t, again.tensors()[n]) for n, t in average.tensors().items())
