"""What the arms cost, as columns of the table of modes: speed, memory or size."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ampft.comparison.findings import (
    INFERENCE,
    PREDICTIONS,
    ArmResult,
    Comparison,
)
from ampft.comparison.inference.cost import BatchTiming
from ampft.text.numbers import NOT_MEASURED, count_range, counted, milliseconds, or_dash

MIB = 2**20


@dataclass(frozen=True)
class CostColumn:
    """A column of the table of modes about speed, memory or size.

    Attributes:
        heading: Heading in reports.
        short: Heading in a terminal, on two lines.
        cell: Function that returns the cell of an arm.
    """

    heading: str
    short: tuple[str, str]
    cell: Callable[[ArmResult], str]


def cost_columns(comparison: Comparison) -> tuple[CostColumn, ...]:
    """Return the columns on what the arms cost, which depend on the kind of the comparison."""
    if comparison.kind == PREDICTIONS:
        return ()
    if comparison.kind == INFERENCE:
        return _inference_columns(comparison)
    return (
        CostColumn("speed-up", ("speed-", "up"), lambda arm: speed_up(comparison, arm)),
        CostColumn("step, ms", ("step", "ms"), step_time),
        CostColumn(
            "peak memory, MiB",
            ("peak", "MiB"),
            lambda arm: mebibytes(arm.memory.peak if arm.memory else None),
        ),
        CostColumn(
            "skipped steps", ("skipped", "steps"), lambda arm: count_range(arm.skipped_steps)
        ),
    )


def _inference_columns(comparison: Comparison) -> tuple[CostColumn, ...]:
    measured = (arm.inference for arm in comparison.arms if arm.inference)
    sizes = sorted({timing.batch_size for each in measured for timing in each.timings})

    def timing(arm: ArmResult, size: int) -> BatchTiming | None:
        timings = arm.inference.timings if arm.inference else ()
        return next((each for each in timings if each.batch_size == size), None)

    def ratio(size: int, arm: ArmResult) -> str:
        each = timing(arm, size)
        if arm is comparison.baseline:
            return ""
        return or_dash(each.ratio if each else None, "{:.2f}".format)

    def latency(size: int, arm: ArmResult) -> str:
        each = timing(arm, size)
        return or_dash(each.seconds if each else None, milliseconds)

    return (
        *(
            CostColumn(f"speed-up, batch {size}", ("speed-up", f"batch {size}"),
                       partial(ratio, size))
            for size in sizes
        ),
        *(
            CostColumn(f"latency, {counted(size, 'text')}, ms", ("ms for", counted(size, "text")),
                       partial(latency, size))
            for size in sizes
        ),
        CostColumn(
            "size on disk, MiB",
            ("on disk", "MiB"),
            lambda arm: or_dash(arm.inference.size if arm.inference else None, mebibytes),
        ),
    )  # fmt: skip


def speed_up(comparison: Comparison, arm: ArmResult) -> str:
    """Return the speed-up over the baseline; "-" if not ranked, empty for the baseline."""
    if arm is comparison.baseline:
        return ""
    return or_dash(arm.speed.ratio if arm.speed else None, "{:.2f}".format)


def step_time(arm: ArmResult) -> str:
    """Return the median of the median step times of the runs, in milliseconds."""
    if arm.speed is None or not arm.speed.step_seconds:
        return NOT_MEASURED
    return milliseconds(statistics.median(arm.speed.step_seconds))


def mebibytes(size: int | None) -> str:
    """Return a size in MiB; "-" if it is None."""
    return or_dash(size, lambda size: f"{size / MIB:,.0f}")
