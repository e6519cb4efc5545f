"""What the arms cost: their speed, pair by pair, why one is hardly faster, and their memory."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ampft.comparison.analysis.loading import RecordedRun, RunGroup
from ampft.comparison.findings import Memory, Speed

FASTER = 1.2  # a mode that is not gets a reason
WAITING = 0.2
BUSY = 0.35  # of the rate of large products; below it, the work is too small to fill the device
AS_PREDICTED = 0.9
NOT_MEASURED = "not measured: these runs recorded no utilisation to tell it by"


def speed(group: RunGroup, baseline: RunGroup, tf32: RunGroup | None) -> Speed | None:
    """Return the speed of an arm; `None` when none of its runs finished.

    Args:
        group: The arm.
        baseline: What it is compared with; may be the same.
        tf32: The arm of that mode, where there is one.
    """
    if not group.finished:
        return None
    ratios, to_tf32 = _ratios(group, baseline), _ratios(group, tf32)
    ratio = statistics.median(ratios) if ratios else None
    return Speed(
        step_seconds=tuple(_figures(group.finished, "step_seconds_median")),
        ratio=ratio,
        ratio_spread=(min(ratios), max(ratios)) if ratios else None,
        ratio_to_tf32=statistics.median(to_tf32) if to_tf32 else None,
        tokens_per_second=_median(group, "tokens_per_second"),
        waiting_share=_median(group, "waiting_share"),
        utilisation=_median(group, "utilisation"),
        training_seconds=_median(group, "training_seconds"),
        total_seconds=_median(group, "total_seconds"),
        reason=_reason(group, baseline, ratio)
        if ratio is not None and ratio < FASTER and not group.is_placebo
        else None,
    )


def is_emulated(group: RunGroup) -> bool:
    """Whether any of its runs emulated its precision: its speed says nothing about hardware."""
    return any(_execution(run) == "emulated" for run in group.runs)


def _execution(run: RecordedRun) -> object:
    return run.record.precision.resolved.get("execution")


def _ratios(group: RunGroup, other: RunGroup | None) -> list[float]:
    """Return step of `other` / step of the arm at each seed where both finished."""
    is_itself = other is None or group.name == other.name
    if other is None or is_itself or is_emulated(group) or is_emulated(other):
        return []
    pairs = (
        (_number(run.record.timings, name), _number(theirs.record.timings, name))
        for run, theirs in zip(group.runs, other.runs, strict=True)
        if run.is_finished and theirs.is_finished
        for name in ("step_seconds_median",)
    )
    return [theirs / own for own, theirs in pairs if own and theirs]


def _reason(group: RunGroup, baseline: RunGroup, ratio: float) -> str:
    """Return the measured reason why a native mode is not clearly faster, in one sentence."""
    waiting = _median(group, "waiting_share")
    if waiting is not None and waiting > WAITING:
        return (
            f"waits for data in {waiting:.0%} of its step time, which no precision shortens; try "
            "--dataloader_num_workers"
        )
    busy = _median(baseline, "utilisation")
    if busy is not None and busy < BUSY:
        return (
            f"work too small: matrix products take {busy:.0%} of {baseline.name}'s step time at "
            "the rate of large products, and the rest is overhead; try larger batches"
        )
    if _odd_shapes(group):
        return (
            "padded lengths are not multiples of 8, which slows 16-bit products on a GPU; try "
            "--pad_to_multiple_of 8"
        )
    return _amdahl(group, baseline, ratio, busy)


def _amdahl(group: RunGroup, baseline: RunGroup, ratio: float, busy: float | None) -> str:
    """Compare with what is possible when the products alone get faster (Amdahl, 1967)."""
    rates = [_median(side, "matrix_rate_gflops") for side in (group, baseline)]
    if busy is None or not rates[0] or not rates[1]:
        return NOT_MEASURED
    gain = rates[0] / rates[1]
    possible = 1 / (1 - busy + busy / gain)
    words = (
        f"products are {busy:.0%} of {baseline.name}'s step time at the measured rate and run "
        f"{gain:.2g} times as fast in {group.name}, which allows {possible:.2f} times"
    )
    if ratio < AS_PREDICTED * possible:
        return f"{words}; casts and memory traffic take the rest of it"
    return f"{words}; the rest does not get faster"


def _odd_shapes(group: RunGroup) -> bool:
    record = group.finished[0].record
    length = record.arguments.get("pad_to_multiple_of")
    padded = bool(record.arguments.get("padding")) or length is not None
    return record.topology.device == "cuda" and padded and (length is None or length % 8 != 0)


def _median(group: RunGroup, name: str) -> float | None:
    values = list(_figures(group.finished, name))
    return statistics.median(values) if values else None


def _figures(runs: Sequence[RecordedRun], name: str) -> Iterable[float]:
    values = (_number(run.record.timings, name) for run in runs)
    return (value for value in values if value is not None)


def _number(timings: Mapping[str, Any], name: str) -> float | None:
    """Return a timing; `None` where it is missing or was not finite."""
    value = timings.get(name)
    return float(value) if isinstance(value, int | float) else None


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
        return _middle([getattr(part, name) for part in measured])

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


def _middle(values: Sequence[int | None]) -> int | None:
    found = [value for value in values if value is not None]
    return round(statistics.median(found)) if found else None
