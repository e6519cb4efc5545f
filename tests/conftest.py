"""Environment of all tests, and fixtures that tests of the training and of the evaluation share."""

import gc
import os
import signal
from pathlib import Path

import pytest

# Before anything imports huggingface_hub or torch, which read these once. Tests run in several
# processes at the same time: with more threads than cores, each of them is many times slower.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell ignores SIGINT in background jobs, and nohup ignores SIGHUP; tests inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def quick_garbage_collection():
    """Exempt all that was imported from garbage collection, which follows every lack of memory."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def fresh_accelerate(monkeypatch):
    """No Accelerator yet in this process, on the CPU with one thread; all is restored later."""
    from global_state import fresh_global_state

    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    with fresh_global_state():
        yield


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> Path:
    """Folder of a BERT with two layers, random weights, no dropout and three labels."""
    from tiny_text import save_tiny_bert

    return save_tiny_bert(tmp_path_factory.mktemp("tiny-bert"))
