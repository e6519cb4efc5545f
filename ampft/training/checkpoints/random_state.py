"""The states of all random generators of a process, as JSON values.

Dropout draws from torch's default generators, on the padding-free path too. The order of examples
and the seeds of loader workers depend only on the seed and the epoch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of the generators of Python, numpy and torch, and of a CUDA device.

    Args:
        device: Device of the training.
    """
    # The global generator, which a model from elsewhere may use.
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(numpy_state, dict)
    on_cuda = device.type == "cuda"
    return {
        "python": python_state(random.getstate()),
        "numpy": {
            **numpy_state,
            "state": {**numpy_state["state"], "key": numpy_state["state"]["key"].tolist()},
        },
        "torch": _hex(torch.get_rng_state()),
        "cuda": _hex(torch.cuda.get_rng_state(device)) if on_cuda else None,
    }


def restore_random_state(values: Mapping[str, Any], device: torch.device) -> None:
    """Restore what `random_state` returned.

    Args:
        values: The states.
        device: Device of the training. Its own generator keeps its state if the states come from
            another type of device.
    """
    random.setstate(as_python_state(values["python"]))
    np.random.set_state(_numpy_state(values["numpy"]))  # noqa: NPY002
    torch.set_rng_state(_tensor(values["torch"]))
    if device.type == "cuda" and values["cuda"] is not None:
        torch.cuda.set_rng_state(_tensor(values["cuda"]), device)


def check_random_state(values: Mapping[str, Any]) -> None:
    """Restore what `random_state` returned into generators that nobody uses.

    Raises:
        Exception: Anything that Python, numpy and torch raise about states that are not theirs.
    """
    random.Random().setstate(as_python_state(values["python"]))
    np.random.RandomState().set_state(_numpy_state(values["numpy"]))
    torch.Generator().set_state(_tensor(values["torch"]))
    if values["cuda"] is not None and torch.cuda.is_available():
        torch.Generator("cuda").set_state(_tensor(values["cuda"]))


def _numpy_state(values: Mapping[str, Any]) -> dict[str, Any]:
    key = np.array(values["state"]["key"], dtype=np.uint32)
    return {**values, "state": {**values["state"], "key": key}}


def python_state(state: tuple[Any, ...]) -> list[Any]:
    """Return the state of a `random.Random` as JSON values."""
    version, numbers, gauss = state
    return [version, list(numbers), gauss]


def as_python_state(values: list[Any]) -> tuple[Any, ...]:
    """Return JSON values as the state of a `random.Random`."""
    version, numbers, gauss = values
    return version, tuple(numbers), gauss


def _hex(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
