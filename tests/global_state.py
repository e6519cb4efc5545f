"""What a run changes in its process, so that a test can run it without a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate.state import AcceleratorState, GradientState

from ampft.precision.compilation import compile_settings_restored
from ampft.precision.tf32 import float32_settings_restored


def _forget_accelerators() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@contextmanager
def fresh_global_state() -> Iterator[None]:
    """Begin without an Accelerator and with one thread; restore threads and TF32 afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    _forget_accelerators()
    try:
        with float32_settings_restored(), compile_settings_restored():
            yield
    finally:
        _forget_accelerators()
        torch.set_num_threads(threads)
