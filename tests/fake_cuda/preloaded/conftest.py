"""A fake CUDA device of any compute capability."""

import pytest
import torch


@pytest.fixture
def capability(monkeypatch):
    """Set the compute capability that torch reports; 9.0 until it is called."""

    def set_capability(major, minor):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (major, minor))

    set_capability(9, 0)
    return set_capability


@pytest.fixture(autouse=True)
def _backward_in_this_thread():
    with torch.autograd.set_multithreading_enabled(False):
        yield
