"""Decoded examples kept in memory, which the worker processes of a loader share."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from ampft.text.numbers import byte_size

IntArray = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

MAX_SHARE = 0.25  # of the memory that is free at the start of the run
NOTED = 2**20  # bytes from which a cache is worth a note


class ExampleCache:
    """One array per example, computed when it is first asked for.

    The memory is mapped anonymously and shared: what a forked worker computes, the training process
    and the workers of later epochs find. Memory is used as it is filled.

    Args:
        sizes: (n,) number of values of each example, at most.
        dtype: Type of the values.
    """

    def __init__(self, sizes: IntArray, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._values = _shared(int(self._starts[-1]), self._dtype)
        self._used = _shared(len(sizes), np.dtype(np.int64))  # 0 for an example not yet computed

    def get(self, example: int, compute: Callable[[], Array]) -> Array:
        """Return the values of an example as one row.

        Args:
            example: Index of the example.
            compute: Function that returns its values, not empty; called the first time.
        """
        start = int(self._starts[example])
        used = int(self._used[example])
        if used:
            return self._values[start : start + used]
        values = compute().reshape(-1)
        if len(values) <= self._starts[example + 1] - start:
            self._values[start : start + len(values)] = values
            self._used[example] = len(values)  # last, because another process may read
        return values

    def __reduce__(self) -> tuple[Any, ...]:
        """Give a process that is not forked an empty cache."""
        return ExampleCache, (np.diff(self._starts), self._dtype)


def _shared(count: int, dtype: np.dtype[Any]) -> Array:
    memory = mmap.mmap(-1, max(1, count * dtype.itemsize))
    return np.frombuffer(memory, dtype=dtype, count=count)


def make_caches(
    sizes: dict[str, IntArray], dtype: npt.DTypeLike, what: str
) -> tuple[dict[str, ExampleCache], str]:
    """Return a cache for each split if all fit, and a note for the user; "" if it is tiny.

    Args:
        sizes: Number of values of each example, by split.
        dtype: Type of the values.
        what: What is cached, for the note.
    """
    needed = sum(int(split.sum()) for split in sizes.values()) * np.dtype(dtype).itemsize
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    limit = int(psutil.virtual_memory().available * MAX_SHARE / processes)
    if needed > limit:
        return {}, (
            f"{what} would take {byte_size(needed)}, and a quarter of the free memory is "
            f"{byte_size(limit)}: they are not cached, and each epoch decodes the files again "
            "(--dataloader_num_workers does so in other processes)."
        )
    caches = {split: ExampleCache(values, dtype) for split, values in sizes.items()}
    if needed < NOTED:
        return caches, ""
    return caches, f"{what} are cached: {byte_size(needed)}, at most a quarter of the free memory."
