"""Checks the sizes that a configuration states, before a model of that size is built."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ampft.errors import InputError
from ampft.machine import available_memory_bytes
from ampft.text.numbers import byte_sizes

MOST_LAYERS = 2000  # each layer takes time and memory to build, even without weights
_SIZE = re.compile(
    r"(num|n)_(hidden_|attention_|key_value_)?(layers?|heads?)|encoder_(layers|attention_heads)"
    r"|(hidden|intermediate|embedding|vocab)_size|d_model|d_ff|dim|hidden_dim|n_embd"
)
_LAYERS = re.compile(r"(.*_)?layers?")


def check_sizes(values: Mapping[str, Any], where: str, remedy: str) -> None:
    """Check that the sizes in a configuration are positive, and its layers not too many.

    Args:
        where: Flag and path of the model, for the error message.

    Raises:
        InputError: A size is out of range.
    """
    for name, value in _integers(values):
        most = MOST_LAYERS if _LAYERS.fullmatch(name) else None
        if (_SIZE.fullmatch(name) and value < 1) or (most is not None and value > most):
            allowed = "at least 1" if most is None else f"from 1 to {most}"
            raise InputError(
                f"{where}: its config.json states {name} {value}, which must be {allowed}. {remedy}"
            )


def check_weights_fit_memory(auto_class: Any, config: Any, where: str) -> None:
    """Check that the weights of a model fit into memory.

    Args:
        auto_class: Class of transformers that loads the model.
        where: Flag and path of the model, for the error message.

    Raises:
        InputError: They do not.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            # False, because None asks the user on the terminal.
            model = auto_class.from_config(config, trust_remote_code=False)
    except Exception:  # loading fails for the same reason and says so, or needs remote code
        return
    weights = sum(parameter.numel() for parameter in model.parameters())
    available = available_memory_bytes()
    if 4 * weights > available:  # bytes in float32
        takes, has = byte_sizes(4 * weights, available)
        raise InputError(
            f"{where}: its config.json describes {weights:,} weights, which take "
            f"{takes} in float32, and {has} of memory are available. "
            "Use a smaller model, or a machine with more memory."
        )


def _integers(values: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield the integers in a configuration and in those nested in it, with their names."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _integers(value)
        elif isinstance(value, int):
            yield name, value
