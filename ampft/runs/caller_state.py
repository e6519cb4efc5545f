"""A run inside a process that goes on, such as the kernel of a notebook."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import datasets
import numpy as np
import torch
import transformers
from accelerate.state import GradientState, PartialState

from ampft.precision.accelerator import forget_accelerator, separate_accelerators
from ampft.precision.compilation import compile_settings_restored
from ampft.precision.tf32 import float32_settings_restored


@contextmanager
def caller_state_kept(command: Sequence[str] | None = None) -> Iterator[None]:
    """Restore the state of the process afterwards.

    This covers random generators, CPU threads, TF32, settings of `torch.compile`, warnings,
    verbosity, environment variables and Accelerate's state. Inside, a new Accelerator can have
    any precision.

    Args:
        command: Value of `sys.argv` inside, which a run records; None leaves it unchanged.
    """
    threads, argv, environment = torch.get_num_threads(), sys.argv, dict(os.environ)
    # Its old generator is the one that `accelerate.utils.set_seed` seeds.
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with ExitStack() as contexts:
        contexts.enter_context(torch.random.fork_rng(devices))
        contexts.enter_context(warnings.catch_warnings())
        contexts.enter_context(float32_settings_restored())
        contexts.enter_context(compile_settings_restored())
        contexts.enter_context(_verbosity_restored())
        contexts.enter_context(_new_accelerate_state())
        sys.argv = argv if command is None else list(command)
        try:
            yield
        finally:
            sys.argv = argv
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002
            torch.set_num_threads(threads)
            for name in os.environ.keys() - environment.keys():
                del os.environ[name]


@contextmanager
def _verbosity_restored() -> Iterator[None]:
    verbosity = transformers.logging.get_verbosity(), datasets.logging.get_verbosity()
    transformers_bars = transformers.logging.is_progress_bar_enabled()
    datasets_bars = not datasets.are_progress_bars_disabled()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity[0])
        datasets.logging.set_verbosity(verbosity[1])
        if transformers_bars:
            transformers.logging.enable_progress_bar()
        if datasets_bars:
            datasets.enable_progress_bars()


@contextmanager
def _new_accelerate_state() -> Iterator[None]:
    """Start without the state of Accelerate, and restore it."""
    states = [PartialState._shared_state, GradientState._shared_state]
    before = [dict(state) for state in states]
    with separate_accelerators():
        forget_accelerator()
        for state in states:
            state.clear()
        try:
            yield
        finally:
            # In place, because each instance refers to the dictionary of its class.
            for state, values in zip(states, before, strict=True):
                state.clear()
                state.update(values)
