"""Whether a training waits for its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampft.text.numbers import percent

MAX_WAITING = 0.2  # share of the step time
BOUND = 0.5  # share above which loading takes longer than computing


def waiting_note(timings: Mapping[str, Any], workers: int, *, has_files: bool) -> str | None:
    """Return the share of the step time spent waiting for data, and what to do if it is large.

    Args:
        timings: Timings of a record; `waiting_share` is 0 to 1.
        workers: Number of worker processes that load batches.
        has_files: Whether the data are files, which take time to decode.

    Returns:
        A sentence; None if nothing was measured, or if data without files were loaded fast enough.
    """
    share = timings.get("waiting_share")
    if not isinstance(share, float) or (not has_files and share <= MAX_WAITING):
        return None
    note = f"{percent(share, 1)} of the step time was spent waiting for data"
    if share <= MAX_WAITING:
        return note
    bound = ": loading it bounds the speed, not the model" if share > BOUND else ""
    return f"{note}{bound}. Raise --dataloader_num_workers (now {workers})."
