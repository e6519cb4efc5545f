"""A fake CUDA device of any compute capability."""

import pytest
import torch

import ampft.precision.executed as executed_module


@pytest.fixture
def capability(monkeypatch):
    """Set the compute capability that torch reports; 9.0 until it is called."""

    def set_capability(major, minor):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (major, minor))

    set_capability(9, 0)
    return set_capability


@pytest.fixture
def no_probe(monkeypatch):
    """Without the probe of TF32, which reads a result that a fake device does not have."""
    monkeypatch.setattr(executed_module, "float32_product_loses_bits", lambda device: None)


@pytest.fixture(autouse=True)
def _backward_in_this_thread():
    with torch.autograd.set_multithreading_enabled(False):
        yield
