"""Table cells with the results of an arm, shared by all reports."""

from __future__ import annotations

import statistics
from dataclasses import replace

from ampft.comparison.findings import ArmResult, Comparison
from ampft.text.numbers import (
    NOT_MEASURED,
    PLUS_MINUS,
    mean_count,
    milliseconds,
)

MIB = 2**20


def without_incomplete_medians(comparison: Comparison) -> Comparison:
    """Return a comparison without medians of speed and memory over only part of an arm's runs.

    An incomplete arm keeps neither speed nor memory. If the baseline is incomplete, no arm keeps a
    ratio.
    """
    is_ranked = comparison.baseline.status == "complete"
    return replace(comparison, arms=tuple(_displayed(arm, is_ranked) for arm in comparison.arms))


def _displayed(arm: ArmResult, is_ranked: bool) -> ArmResult:
    if arm.status != "complete":
        return replace(arm, speed=None, memory=None)
    if is_ranked:
        return arm
    # The reason explains the ratio.
    return replace(
        arm,
        speed=arm.speed and replace(arm.speed, ratio=None, ratio_spread=None, reason=None),
        memory=arm.memory and replace(arm.memory, ratio=None),
    )


def metric_cell(comparison: Comparison, arm: ArmResult) -> str:
    """Return the primary metric as "84.6 ± 0.5"; "-" if there is no mean."""
    values = arm.metrics.get(comparison.metric)
    if values is None:
        return NOT_MEASURED
    units = comparison.units
    mean = units.value(values.mean)
    return mean if values.sd is None else f"{mean} {PLUS_MINUS} {units.value(values.sd)}"


def difference_cell(comparison: Comparison, arm: ArmResult) -> str:
    """Return the difference as "+0.3 (+0.1 to +0.5)"; empty for the baseline."""
    units = comparison.units
    if arm.difference is not None:
        ends = units.interval(arm.difference.interval95)
        return f"{units.difference(arm.difference.estimate)} ({ends})"
    values = arm.metrics.get(comparison.metric)
    base = comparison.baseline.metrics.get(comparison.metric)
    if arm is comparison.baseline:
        return ""
    if values is None or base is None:
        return NOT_MEASURED
    return f"{units.difference(values.mean - base.mean)} (no CI)"


def ratio_cell(comparison: Comparison, arm: ArmResult) -> str:
    """Return the speed-up over the baseline; "-" if not ranked, empty for the baseline."""
    if arm is comparison.baseline:
        return ""
    if arm.speed is None or arm.speed.ratio is None:
        return NOT_MEASURED
    return f"{arm.speed.ratio:.2f}"


def step_cell(arm: ArmResult) -> str:
    """Return the median of the median step times of the runs, in milliseconds."""
    if arm.speed is None or not arm.speed.step_seconds:
        return NOT_MEASURED
    return milliseconds(statistics.median(arm.speed.step_seconds))


def peak_cell(arm: ArmResult) -> str:
    """Return the peak memory in MiB."""
    return mebibytes(arm.memory.peak if arm.memory else None)


def flips_cell(comparison: Comparison, arm: ArmResult) -> str:
    """Return the mean number of changed predictions; empty for the baseline."""
    if arm.flips is not None:
        return mean_count(arm.flips.mean)
    return "" if arm is comparison.baseline else NOT_MEASURED


def mebibytes(size: int | None) -> str:
    """Return bytes in MiB without the unit; "-" if not measured."""
    return NOT_MEASURED if size is None else f"{size / MIB:,.0f}"
