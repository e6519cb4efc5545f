"""Columns of the table of arms, and those on what the arms cost: speed, memory or size."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ampft.comparison.cost_findings import BatchTiming
from ampft.comparison.findings import (
    INFERENCE,
    PREDICTIONS,
    ArmResult,
    Comparison,
)
from ampft.comparison.statistics.speed_up import SpeedUp
from ampft.text.numbers import (
    NOT_MEASURED,
    count_range,
    counted,
    milliseconds,
    or_dash,
    ratio_range,
)
from ampft.text.tables import Cell, Detailed

MIB = 2**20


@dataclass(frozen=True)
class ArmColumn:
    """A column of the table of arms.

    Attributes:
        heading: Heading in reports.
        short: Heading in a terminal, on two lines; None if the column is not shown there.
        cell: Function that returns the cell of an arm.
        short_cell: The same for a terminal; None for `cell`.
    """

    heading: str
    short: tuple[str, str] | None
    cell: Callable[[ArmResult], Cell]
    short_cell: Callable[[ArmResult], Cell] | None = None


def cost_columns(comparison: Comparison) -> tuple[ArmColumn, ...]:
    """Return the columns on what the arms cost, which depend on the kind of the comparison."""
    if comparison.kind == PREDICTIONS:
        return ()
    if comparison.kind == INFERENCE:
        return _inference_columns(comparison)

    def measured(arm: ArmResult) -> SpeedUp | None:
        return arm.speed.speed_up if arm.speed else None

    return (
        _speed_up_column(comparison, "speed-up", ("speed-", "up"), measured),
        ArmColumn("step, ms", ("step", "ms"), step_time),
        ArmColumn(
            "peak memory, MiB",
            ("peak", "MiB"),
            lambda arm: mebibytes(arm.memory.peak if arm.memory else None),
        ),
        ArmColumn(
            "skipped steps", ("skipped", "steps"), lambda arm: count_range(arm.skipped_steps)
        ),
    )


def _inference_columns(comparison: Comparison) -> tuple[ArmColumn, ...]:
    measured = (arm.inference for arm in comparison.arms if arm.inference)
    sizes = sorted({timing.batch_size for each in measured for timing in each.timings})

    def timing(size: int, arm: ArmResult) -> BatchTiming | None:
        timings = arm.inference.timings if arm.inference else ()
        return next((each for each in timings if each.batch_size == size), None)

    def ratio(size: int, arm: ArmResult) -> SpeedUp | None:
        each = timing(size, arm)
        return each.speed_up if each else None

    def latency(size: int, arm: ArmResult) -> str:
        each = timing(size, arm)
        return or_dash(each.seconds if each else None, milliseconds)

    return (
        *(
            _speed_up_column(comparison, f"speed-up, batch {size}", ("speed-up", f"batch {size}"),
                             partial(ratio, size))
            for size in sizes
        ),
        *(
            ArmColumn(f"latency, {counted(size, 'text')}, ms", ("ms for", counted(size, "text")),
                      partial(latency, size))
            for size in sizes
        ),
        ArmColumn(
            "size on disk, MiB",
            ("on disk", "MiB"),
            lambda arm: or_dash(arm.inference.size if arm.inference else None, mebibytes),
        ),
    )  # fmt: skip


def _speed_up_column(
    comparison: Comparison,
    heading: str,
    short: tuple[str, str],
    measured: Callable[[ArmResult], SpeedUp | None],
) -> ArmColumn:
    """Return the column of a speed-up, with its interval except on a terminal."""

    def cell(arm: ArmResult, *, with_interval: bool) -> Cell:
        if arm is comparison.baseline:
            return ""
        found = measured(arm)
        return NOT_MEASURED if found is None else speed_up_text(found, with_interval=with_interval)

    return ArmColumn(
        heading, short, partial(cell, with_interval=True), partial(cell, with_interval=False)
    )


def speed_up_text(speed_up: SpeedUp, *, with_interval: bool = True) -> Cell:
    """Return "1.45 (1.30 to 1.62)" with the 95 % interval, or "1.45" without one."""
    ratio, interval = f"{speed_up.ratio:.2f}", speed_up.interval95 if with_interval else None
    return Detailed(ratio, f"({ratio_range(*interval)})") if interval else ratio


def step_time(arm: ArmResult) -> str:
    """Return the median of the median step times of the runs, in milliseconds."""
    if arm.speed is None or not arm.speed.step_seconds:
        return NOT_MEASURED
    return milliseconds(statistics.median(arm.speed.step_seconds))


def mebibytes(size: int | None) -> str:
    """Return a size in MiB; "-" if it is None."""
    return or_dash(size, lambda size: f"{size / MIB:,.0f}")
