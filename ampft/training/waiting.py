"""Whether a training waits for its data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampft.text.numbers import percent

MAX_WAITING = 0.2  # share of the step time
BOUND = 0.5  # share above which loading takes longer than computing


def waiting_note(timings: Mapping[str, Any], kind: str, workers: int) -> str | None:
    """Return the share of the step time spent waiting for data, and what to do if it is large.

    Args:
        timings: Timings of a record; `waiting_share` is 0 to 1.
        kind: Kind of the data.
        workers: Number of worker processes that load batches.

    Returns:
        A sentence; None if nothing was measured, or for texts that are loaded fast enough.
    """
    share = timings.get("waiting_share")
    if not isinstance(share, float) or (kind == "text" and share <= MAX_WAITING):
        return None
    note = f"{percent(share, 1)} of the step time was spent waiting for data"
    if share <= MAX_WAITING:
        return note
    bound = ": loading it bounds the speed, not the model" if share > BOUND else ""
    return f"{note}{bound}. Raise --dataloader_num_workers (now {workers})."
