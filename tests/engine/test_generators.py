"""The random state of any accelerator is saved and restored, through its module of torch."""

import pytest
import torch

from ampft.engine import generators
from ampft.engine.checkpoints.training_state import random_state, restore_random_state
from ampft.engine.saved_step import StepRandomState


class Module:
    """The functions of `torch.xpu` and, without a device, of `torch.mps`."""

    def __init__(self, *, takes_device):
        self.generator, self.takes_device = torch.Generator().manual_seed(1), takes_device

    def get_rng_state(self, *device):
        assert len(device) == self.takes_device
        return self.generator.get_state()

    def set_rng_state(self, state, *device):
        assert len(device) == self.takes_device
        self.generator.set_state(state)

    def draw(self):
        return torch.rand(3, generator=self.generator).tolist()


@pytest.fixture(params=["xpu", "mps"])
def device_and_module(request, monkeypatch):
    module = Module(takes_device=request.param == "xpu")
    monkeypatch.setattr(generators.torch, "get_device_module", lambda device: module)
    return torch.device(request.param, 0), module


def test_a_checkpoint_keeps_the_state_of_the_device(device_and_module):
    device, module = device_and_module
    values = random_state(device)
    drawn = module.draw()
    assert module.draw() != drawn
    restore_random_state(values, device)
    assert module.draw() == drawn


def test_states_of_another_device_are_left_alone(device_and_module):
    device, module = device_and_module
    restore_random_state(random_state(torch.device("cpu")), device)
    assert module.draw() == torch.rand(3, generator=torch.Generator().manual_seed(1)).tolist()


def test_a_repeated_step_draws_the_same(device_and_module):
    device, module = device_and_module
    before = StepRandomState.now(device)
    drawn = module.draw()
    before.restore(device)
    assert module.draw() == drawn
