"""Operators that give the same bits each time, for `--deterministic`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ampft.errors import InputError

# cuBLAS computes the same bits in several streams only in a workspace of a fixed size. PyTorch asks
# for this, and reads it when the first product runs.
_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
_REFUSED = "does not have a deterministic implementation"


def prepare_determinism() -> None:
    """Set what must be set before the first product of this process."""
    os.environ.setdefault(*_WORKSPACE)


@contextmanager
def deterministic_operators(wanted: bool) -> Iterator[None]:
    """Let PyTorch run only operators that give the same bits each time; restore it on exit.

    The backward pass of flash and of memory-efficient attention otherwise adds in whatever order
    its blocks end, from about 128 tokens on; cuDNN's attention is left out.

    Args:
        wanted: Whether to do so; otherwise nothing changes.

    Raises:
        InputError: An operator has no deterministic implementation; its name is in the message.
    """
    if not wanted:
        yield
        return
    prepare_determinism()
    filling = torch.utils.deterministic
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        filling.fill_uninitialized_memory,  # type: ignore[attr-defined]
    )
    torch.use_deterministic_algorithms(True)
    filling.fill_uninitialized_memory = False  # type: ignore[attr-defined] # every element is written
    try:
        yield
    except RuntimeError as error:
        if _REFUSED not in str(error):
            raise
        operator = str(error).split(_REFUSED)[0].strip().rsplit(maxsplit=1)[-1]
        raise InputError(
            f"--deterministic: this model needs {operator}, and PyTorch has no deterministic "
            "implementation of it on this device. Remove the flag."
        ) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        filling.fill_uninitialized_memory = before[2]  # type: ignore[attr-defined]
