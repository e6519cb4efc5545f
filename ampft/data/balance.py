"""Cut a step batch into micro-batches of similar cost."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ampft.errors import InputError

IntArray = npt.NDArray[np.int64]


def balanced_micro_batches(lengths: IntArray, k: int, padded: bool) -> list[IntArray]:
    """Cut a step batch into micro-batches of similar length and minimal largest cost.

    The examples are sorted by length (stable) and cut between neighbours. The cost of a micro-batch
    is its number of examples times its longest length if it is padded, otherwise its number of
    tokens. Bisection finds the smallest bound on the cost that k micro-batches can keep; for any
    bound, filling from the longest example downwards needs the fewest micro-batches.

    Args:
        lengths: (n,) tokens of each example of the step batch, positive.
        k: Number of micro-batches, at least 1; n if there are fewer examples.
        padded: Whether each micro-batch is padded to its longest example.

    Returns:
        min(k, n) arrays of indices into `lengths`, longest examples first, so that the
        first micro-batch determines the peak memory; every index is in exactly one. Empty for
        n = 0.

    Raises:
        InputError: `k` is below 1, or a length is not positive.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if k < 1:
        raise InputError(f"k: received {k}; it must be at least 1.")
    if lengths.size == 0:
        return []
    if lengths.min() < 1:
        raise InputError(
            f"lengths: received {int(lengths.min())} at index {int(lengths.argmin())}; all "
            "must be at least 1. Remove examples without tokens from the step batch."
        )
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    descending, k = lengths[order], min(k, lengths.size)

    low, high = int(descending[0]), int(descending[0]) * descending.size
    while low < high:
        middle = (low + high) // 2
        if len(_starts_within(descending, middle, padded)) <= k:
            high = middle
        else:
            low = middle + 1
    starts = _starts_within(descending, low, padded)
    # A bound can be met with fewer micro-batches than requested; cutting one never costs more.
    while len(starts) < k:
        ends = [*starts[1:], descending.size]
        sizes = [end - start for start, end in zip(starts, ends, strict=True)]
        widest = int(np.argmax(sizes))
        starts.insert(widest + 1, starts[widest] + sizes[widest] // 2)
    return np.split(order, starts[1:])


def _starts_within(descending: IntArray, bound: int, padded: bool) -> list[int]:
    """Return where micro-batches of at most this cost start, as few as possible."""
    starts, end = [0], 0
    while True:
        if padded:
            end += bound // int(descending[end])
        else:
            end += int(np.searchsorted(np.cumsum(descending[end:]), bound, side="right"))
        if end >= descending.size:
            return starts
        starts.append(end)
