"""The tables of the arms: what each is, its result, and what it costs; the tables of the runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from ampft.comparison.findings import (
    INFERENCE,
    PREDICTIONS,
    UNKNOWN,
    ArmResult,
    BatchTiming,
    Comparison,
    Speed,
)
from ampft.comparison.statistics.speed_up import SpeedUp
from ampft.comparison.statistics.verdict import Difference
from ampft.comparison.verdict_text import seeds_text
from ampft.text.numbers import (
    NOT_MEASURED,
    PLUS_MINUS,
    confidence_percent,
    count_range,
    counted,
    duration,
    mean_count,
    milliseconds,
    or_dash,
    percent,
    ratio_range,
)
from ampft.text.page import Cell, Name, Quote, Table, ValueWithDetail

T = TypeVar("T")

# Part of the peak memory -> its heading.
MEMORY_PARTS = {
    "baseline": "before loading the model",
    "weights": "weights",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
    "rest": "rest",
}


def without_incomplete_medians(comparison: Comparison) -> Comparison:
    """Return a comparison without medians of speed and memory over only part of an arm's runs.

    An incomplete arm keeps neither speed nor memory. If the baseline is incomplete, no arm keeps a
    ratio.
    """
    arms = []
    for arm in comparison.arms:
        if arm.status != "complete":
            arm = replace(arm, speed=None, memory=None)
        elif comparison.baseline.status != "complete":  # the reason explains the ratio
            arm = replace(
                arm,
                speed=arm.speed and replace(arm.speed, speed_up=None, reason=None),
                memory=arm.memory and replace(arm.memory, ratio=None),
            )
        arms.append(arm)
    return replace(comparison, arms=tuple(arms))


def evaluation_scope(comparison: Comparison) -> str:
    """Return metric, split, number of examples and seeds in one clause."""
    return (
        f"{comparison.units.capitalized()} on {comparison.split}, {comparison.examples:,} "
        f"examples, {seeds_text(comparison)}"
    )


def settings(comparison: Comparison) -> Table | None:
    """Return the settings in which the arms differ; None if the arms are modes."""
    if not any(arm.settings for arm in comparison.arms):
        return None
    return Table(
        title="Settings in which the arms differ",
        header=(comparison.noun, *(Quote(f"--{name}") for name in comparison.varied)),
        rows=[
            (
                Name(arm.name, "arm"),
                *(Quote(arm.settings.get(name, "")) for name in comparison.varied),
            )
            for arm in comparison.arms
            if not arm.is_placebo
        ],
        left=1 + len(comparison.varied),
    )


def arm_columns(comparison: Comparison) -> tuple[ArmColumn, ...]:
    """Return the columns of the table of arms: what each is, its result and its cost."""
    units = comparison.units
    levels = [arm.difference.level95 for arm in comparison.arms if arm.difference is not None]
    interval = f"({confidence_percent(levels[0])} CI)" if levels else ""
    difference = f"difference{units.difference_suffix}"

    def verdict(arm: ArmResult) -> Cell:
        found = arm.difference.verdict if arm.difference is not None else None
        return found or "" if arm.status == "complete" else Quote(arm.status_words)

    def shown_difference(arm: ArmResult) -> Cell:
        return difference_cell(comparison, arm) if arm.status == "complete" else verdict(arm)

    def changed(arm: ArmResult) -> str:
        if arm.flips is None:
            return "" if arm is comparison.baseline else NOT_MEASURED
        return mean_count(arm.flips.mean)

    execution = ArmColumn(
        "execution", ("", ""), lambda arm: Quote(arm.execution) if arm.execution != UNKNOWN else ""
    )
    return (
        ArmColumn(comparison.noun, ("", comparison.noun), lambda arm: Name(arm.name, "arm")),
        *([execution] if has_execution(comparison) else []),
        ArmColumn("verdict", None, verdict),
        ArmColumn(
            units.heading,
            (units.title, "%" if units.is_share else ""),
            lambda arm: metric_cell(comparison, arm),
        ),
        ArmColumn(
            f"{difference} {interval}".strip(),
            (difference, interval),
            lambda arm: difference_cell(comparison, arm),
            shown_difference,
        ),
        ArmColumn(
            f"changed predictions, of {comparison.examples:,}",
            ("changed", f"of {comparison.examples:,}"),
            changed,
        ),
        *cost_columns(comparison),
    )


def modes(comparison: Comparison) -> Table:
    """Return the results of each arm."""
    base = comparison.baseline.name
    placebo = ""
    if any(arm.is_placebo for arm in comparison.arms):
        placebo = f" {placebo_text(comparison)}"
    columns = arm_columns(comparison)
    ratios = " and speed-up (95 % CI) are" if cost_columns(comparison) else " are"
    deviation = ""
    if len(comparison.seeds) > 1:
        deviation = f"{PLUS_MINUS} is the standard deviation over seeds. "
    return Table(
        title=evaluation_scope(comparison),
        header=tuple(column.heading for column in columns),
        rows=[tuple(column.cell(arm) for column in columns) for arm in comparison.arms],
        note=f"{deviation}Changed predictions{ratios} relative to {base}.{placebo}",
        left=3 if has_execution(comparison) else 2,
    )


def has_execution(comparison: Comparison) -> bool:
    """Return whether it is known of an arm how it computed."""
    return any(arm.execution != UNKNOWN for arm in comparison.arms)


def placebo_text(comparison: Comparison) -> str:
    """Return one sentence on what the placebo is."""
    base = comparison.baseline.name
    if comparison.kind == INFERENCE:
        return (
            f"The placebo is {base} again, in batches of another size, which changes only the "
            "order of its sums."
        )
    return (
        f"The placebo is {base} trained again from initial weights changed by one unit in the "
        "last place."
    )


def metric_cell(comparison: Comparison, arm: ArmResult) -> Cell:
    """Return the primary metric as "84.6 ± 0.5"; "-" if there is no mean."""
    values = arm.metrics.get(comparison.metric)
    if values is None:
        return NOT_MEASURED
    units = comparison.units
    mean = units.value(values.mean)
    return (
        mean
        if values.sd is None
        else ValueWithDetail(mean, f"{PLUS_MINUS} {units.value(values.sd)}")
    )


def difference_cell(comparison: Comparison, arm: ArmResult) -> Cell:
    """Return the difference as "+0.3 (+0.1 to +0.5)"; empty for the baseline."""
    units = comparison.units
    if arm.difference is not None:
        return with_interval(comparison, arm.difference)
    values = arm.metrics.get(comparison.metric)
    base = comparison.baseline.metrics.get(comparison.metric)
    if arm is comparison.baseline:
        return ""
    if values is None or base is None:
        return NOT_MEASURED
    return ValueWithDetail(units.difference(values.mean - base.mean), "(no CI)")


def with_interval(comparison: Comparison, difference: Difference) -> Cell:
    """Return a difference with its interval."""
    units = comparison.units
    ends = units.interval(difference.interval95)
    return ValueWithDetail(units.difference(difference.estimate), f"({ends})")


def arm_table(
    comparison: Comparison,
    title: str,
    arms: Sequence[tuple[ArmResult, T]],
    columns: Sequence[tuple[str, Callable[[T], Cell]]],
    *,
    per_seed: Callable[[T], Sequence[str]] | None = None,
    note: str = "",
) -> Table:
    """Return a table with a row per arm.

    Args:
        columns: Heading of each column, and the function that returns its cell.
        per_seed: Function that returns the cells of an arm's runs, which come first; they are
            omitted if each arm is one model.
    """
    seeds = comparison.seeds if per_seed and not comparison.has_one_model_each else ()
    rows: list[tuple[Cell, ...]] = []
    for arm, shown in arms:
        of_runs = per_seed(shown) if per_seed else ()
        cell_of = dict(zip((run.seed for run in arm.runs), of_runs, strict=False))
        of_seeds = (cell_of.get(seed, NOT_MEASURED) for seed in seeds)
        rows.append((Name(arm.name, "arm"), *of_seeds, *(cell(shown) for _, cell in columns)))
    return Table(
        title=title,
        header=(
            comparison.noun,
            *(f"seed {seed}" for seed in seeds),
            *(heading for heading, _ in columns),
        ),
        rows=rows,
        note=note,
    )


def executed_precisions(comparison: Comparison) -> tuple[str, ...]:
    """Return the precision measured in the first step; arms with the same one share a line."""
    names: dict[str, list[str]] = {}
    for arm in comparison.arms:
        if arm.executed:
            names.setdefault(arm.executed, []).append(arm.name)
    return tuple(f"{', '.join(arms)}: {summary}" for summary, arms in names.items())


def speed(comparison: Comparison) -> Table | None:
    """Return the timings of each arm."""
    measured = [(arm, arm.speed) for arm in comparison.arms if arm.speed is not None]
    if not measured:
        return None
    has_tf32 = any(each.speed_up_over_tf32 is not None for _, each in measured)

    def over_baseline(each: Speed) -> Cell:
        is_baseline = each is comparison.baseline.speed
        return "" if is_baseline else or_dash(each.speed_up, speed_up_text)

    def over_tf32(each: Speed) -> Cell:
        return or_dash(each.speed_up_over_tf32, speed_up_text)

    return arm_table(
        comparison,
        "Time per optimizer step after warm-up",
        measured,
        [
            ("step, ms", step_time),
            ("speed-up (95 % CI)", over_baseline),
            ("verdict", lambda s: s.speed_up.verdict or "not ranked" if s.speed_up else ""),
            *([("speed-up over tf32", over_tf32)] if has_tf32 else []),
            ("tokens/s", lambda s: or_dash(s.tokens_per_second, "{:,.0f}".format)),
            ("waiting for data", lambda s: or_dash(s.waiting_share, partial(percent, decimals=1))),
            ("utilisation", lambda s: or_dash(s.utilisation, percent)),
            ("training time", lambda s: or_dash(s.training_seconds, duration)),
            ("total time", lambda s: or_dash(s.total_seconds, duration)),
        ],
        note="Waiting for data is a share of the step time. Utilisation is a share of the matrix "
        "product rate measured in the same process.",
    )


def memory(comparison: Comparison) -> Table | None:
    """Return the peak memory of each arm and its parts in MiB."""
    measured = [(arm, arm.memory) for arm in comparison.arms if arm.memory is not None]
    if not measured:
        return None
    return Table(
        title="Peak memory and its parts in MiB, medians over the runs",
        header=(comparison.noun, "peak", "relative to baseline", *MEMORY_PARTS.values()),
        rows=[
            (
                *(Name(arm.name, "arm"), mebibytes(each.peak)),
                "" if each.ratio is None else percent(each.ratio),
                *(mebibytes(getattr(each, part)) for part in MEMORY_PARTS),
            )
            for arm, each in measured
        ],
        note=" ".join(
            dict.fromkeys(f"{each.protocol.rstrip('.')}." for _, each in measured if each.protocol)
        ),
    )


def runs(comparison: Comparison) -> Table:
    """Return one row per run: its folder, how it ended, its steps, and of several nodes its own."""
    rows: list[tuple[Cell, ...]] = []
    has_nodes = len({run.node for arm in comparison.arms for run in arm.runs}) > 1
    has_seeds = not (comparison.kind == PREDICTIONS and comparison.has_one_model_each)
    for arm in comparison.arms:
        skipped, total = dict(enumerate(arm.skipped_steps)), dict(enumerate(arm.total_steps))
        for index, run in enumerate(arm.runs):
            ending = run.status + (f": {run.reason}" if run.reason else "")
            rows.append(
                (
                    *(Name(arm.name, "arm"), Name(run.folder), Quote(ending)),
                    f"{run.seed}" if has_seeds else NOT_MEASURED,
                    or_dash(total.get(index), "{:,}".format),
                    or_dash(skipped.get(index), "{:,}".format),
                    *([Quote(run.node or NOT_MEASURED)] if has_nodes else []),
                )
            )
    names = ("folder", "status", "seed", "steps", "skipped steps")
    header = (comparison.noun, *names, *(["node"] if has_nodes else []))
    return Table(title="Status and steps of every run", header=header, rows=rows, left=3)


def facts_table(title: str, values: Mapping[str, str]) -> Table | None:
    """Return a table of names and values; None if there are none."""
    rows = [(Quote(name), Quote(value)) for name, value in values.items()]
    return Table(title=title, header=("", ""), rows=rows, left=2) if rows else None


MIB = 2**20


@dataclass(frozen=True)
class ArmColumn:
    """A column of the table of arms."""

    heading: str  # Heading in reports.
    # Heading in a terminal, on two lines; None if the column is not shown there.
    short: tuple[str, str] | None
    cell: Callable[[ArmResult], Cell]  # Function that returns the cell of an arm.
    # The same for a terminal; None for `cell`.
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
        ArmColumn("step, ms", ("step", "ms"), lambda arm: step_time(arm.speed)),
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
    return ValueWithDetail(ratio, f"({ratio_range(*interval)})") if interval else ratio


def step_time(speed: Speed | None) -> str:
    """Return the median of the median step times of the runs, in milliseconds."""
    if speed is None or not speed.step_seconds:
        return NOT_MEASURED
    return milliseconds(statistics.median(speed.step_seconds))


def mebibytes(size: int | None) -> str:
    """Return a size in MiB; "-" if it is None."""
    return or_dash(size, lambda size: f"{size / MIB:,.0f}")
