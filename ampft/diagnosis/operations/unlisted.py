"""The operations of a model that autocast does not know, and that run in the dtype they receive."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile

_DTYPES = {"float": "float32", "c10::Half": "float16", "c10::BFloat16": "bfloat16"}
# They move values without computing any.
_MOVES = (
    "_to_copy", "clone", "contiguous", "copy_", "detach", "empty", "empty_like", "empty_strided",
    "embedding", "fill_", "full", "gather", "index", "index_select", "lift_fresh", "ones",
    "resolve_conj", "resolve_neg", "set_", "to", "zero_", "zeros",
)  # fmt: skip


@dataclass(frozen=True)
class UnlistedOperation:
    """An operation that is on no list of autocast.

    Attributes:
        name: Name in `torch.ops.aten`, such as `gelu`.
        dtypes: Dtypes of its floating inputs, such as `float16 and float32`.
        calls: Number of calls in a forward pass.
    """

    name: str
    dtypes: str
    calls: int


def unlisted_operations(
    forward: Callable[[], object], listed: Collection[str]
) -> tuple[UnlistedOperation, ...]:
    """Return the operations of a forward pass that autocast does not know, the frequent ones first.

    An operation that consists of others counts as listed if one of these is. Operations that only
    move values are left out.

    Args:
        forward: Function that computes a forward pass.
        listed: Names of the operations that autocast knows, without overloads.
    """
    with _standard_error_discarded(), profile(record_shapes=True) as profiler:
        forward()
    roots = [event for event in profiler.function_events if event.cpu_parent is None]
    counts: Counter[tuple[str, str]] = Counter()
    for root in roots:
        for event in _unlisted(root, frozenset(listed)):
            counts[_name(event), _dtypes(event)] += 1
    return tuple(UnlistedOperation(*key, calls) for key, calls in counts.most_common())


@contextmanager
def _standard_error_discarded() -> Iterator[None]:
    """Discard what torch's profiler writes to standard error about its start and its end."""
    sys.stderr.flush()
    with Path(os.devnull).open("wb") as nothing:
        kept = os.dup(2)
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _unlisted(event: Any, listed: Collection[str]) -> Iterator[Any]:
    if _name(event) in listed:
        return
    inside = list(_inside(event))
    if _is_operation(event) and not any(_name(part) in listed for part in inside):
        kernels = (part for part in (event, *inside) if not part.cpu_children)
        computes = any(_is_operation(part) and not _moves(_name(part)) for part in kernels)
        if computes and _dtypes(event):
            yield event
        return
    for part in event.cpu_children:
        yield from _unlisted(part, listed)


def _inside(event: Any) -> Iterator[Any]:
    for part in event.cpu_children:
        yield part
        yield from _inside(part)


def _is_operation(event: Any) -> bool:
    return str(event.name).startswith("aten::")


def _name(event: Any) -> str:
    return str(event.name).removeprefix("aten::")


def _dtypes(event: Any) -> str:
    names = {_DTYPES[kind] for kind in event.input_dtypes or () if kind in _DTYPES}
    return " and ".join(sorted(names))


@cache
def _moves(name: str) -> bool:
    if name in _MOVES:
        return True
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else packet.overloads()
    return any(getattr(packet, overload).is_view for overload in overloads)
