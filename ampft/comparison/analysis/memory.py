"""Peak memory of the arms and its parts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from ampft.comparison.analysis.loading import RecordedRun, RunGroup
from ampft.comparison.findings import Memory


def memory(group: RunGroup, baseline: RunGroup) -> Memory | None:
    """Return medians over the runs that finished; `None` when none did or none measured.

    The parts are medians of their own, so that they add up to the peak only nearly.

    Args:
        group: The arm.
        baseline: What its peak is compared with, seed by seed; may be the same.
    """
    measured = [part for run in group.finished if (part := run.record.memory) is not None]
    if not measured:
        return None
    ratios = [
        own / other
        for run, theirs in zip(group.runs, baseline.runs, strict=True)
        if run.is_finished and theirs.is_finished
        for own, other in [(_peak(run), _peak(theirs))]
        if own and other
    ]

    def middle(name: str) -> int | None:
        return _median([getattr(part, name) for part in measured])

    return Memory(
        peak=middle("peak"),
        ratio=statistics.median(ratios) if ratios and group.name != baseline.name else None,
        weights=middle("weights"),
        gradients=middle("gradients"),
        optimizer_state=middle("optimizer_state"),
        activations=middle("activations"),
        rest=middle("rest"),
        baseline=middle("baseline"),
        protocol=measured[0].protocol,
    )


def _peak(run: RecordedRun) -> int | None:
    return None if run.record.memory is None else run.record.memory.peak


def _median(values: Sequence[int | None]) -> int | None:
    found = [value for value in values if value is not None]
    return round(statistics.median(found)) if found else None
