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

    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    operators = [(b, o) for b in ("cuda", "mkldnn") for o in ("matmul", "conv", "rnn")]
    before = {key: torch._C._get_fp32_precision_getter(*key) for key in operators}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    torch.set_num_threads(threads)
    for key, value in before.items():
        torch._C._set_fp32_precision_setter(*key, value)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> Path:
    """Folder of a BERT with two layers, random weights, no dropout and three labels."""
    from tiny_text import save_tiny_bert

    return save_tiny_bert(tmp_path_factory.mktemp("tiny-bert"))
