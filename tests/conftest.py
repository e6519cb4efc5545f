"""Fixtures that tests of the training and of the evaluation share."""

import os
from pathlib import Path

import pytest

# Before anything imports huggingface_hub, which reads it once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture
def fresh_accelerate(monkeypatch):
    """No Accelerator yet in this process, on the CPU with one thread; all is put back after."""
    import torch
    from accelerate.state import AcceleratorState, GradientState

    from ampft.precision.tf32 import float32_settings_restored

    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    with float32_settings_restored():
        yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> Path:
    """Folder of a BERT with two layers, random weights, no dropout and three labels."""
    from tiny_text import save_tiny_bert

    return save_tiny_bert(tmp_path_factory.mktemp("tiny-bert"))
