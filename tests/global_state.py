"""What a run changes in its process, so that a test can run it without a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from accelerate.state import AcceleratorState, GradientState

OPERATORS = [(b, o) for b in ("cuda", "mkldnn") for o in ("matmul", "conv", "rnn")]


def _forget_accelerators() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@contextmanager
def fresh_global_state() -> Iterator[None]:
    """Begin without an Accelerator and with one thread; restore threads and TF32 afterwards."""
    before = {key: torch._C._get_fp32_precision_getter(*key) for key in OPERATORS}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    _forget_accelerators()
    try:
        yield
    finally:
        _forget_accelerators()
        torch.set_num_threads(threads)
        for key, value in before.items():
            torch._C._set_fp32_precision_setter(*key, value)
