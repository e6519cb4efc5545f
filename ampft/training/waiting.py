"""Whether a training waits for its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampft.text.numbers import percent

MAX_WAITING = 0.2  # share of the step time


def waiting_note(timings: Mapping[str, Any], kind: str, workers: int) -> str | None:
    """Return the share of the step time spent waiting for data, and whether it bounds the speed.

    Args:
        timings: Timings of a record.
        kind: Kind of the data.
        workers: Number of worker processes that load batches.

    Returns:
        None for texts that are loaded fast enough.
    """
    share = timings.get("waiting_share")
    if not isinstance(share, float) or (kind == "text" and share <= MAX_WAITING):
        return None
    note = f"{percent(share, 1)} of the step time was spent waiting for data"
    if share <= MAX_WAITING:
        return note
    bound = ": loading it bounds the speed, not the model" if share > 0.5 else ""
    return f"{note}{bound}. Raise --dataloader_num_workers (now {workers})."
