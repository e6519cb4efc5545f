"""The tables of a comparison that its reports on a terminal, in Markdown and in HTML share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from ampft.comparison.findings import INFERENCE, PREDICTIONS, UNKNOWN, ArmResult, Comparison
from ampft.comparison.report.costs import (
    ArmColumn,
    cost_columns,
    mebibytes,
    speed_up_text,
    step_time,
)
from ampft.comparison.statistics.verdict import Difference
from ampft.comparison.verdict_text import trainings
from ampft.text.numbers import (
    NOT_MEASURED,
    PLUS_MINUS,
    duration,
    level,
    mean_count,
    or_dash,
    p_value,
    percent,
)
from ampft.text.tables import Cell, Detailed, Name, Quote, Table


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
        speed=arm.speed and replace(arm.speed, speed_up=None, reason=None),
        memory=arm.memory and replace(arm.memory, ratio=None),
    )


def scope(comparison: Comparison) -> str:
    """Return metric, split, number of examples and seeds in one clause."""
    return (
        f"{comparison.units.capitalized()} on {comparison.split}, {comparison.examples:,} "
        f"examples, {trainings(comparison)}"
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
    interval = f"({level(levels[0])} CI)" if levels else ""
    difference = f"difference{units.difference_suffix}"

    def verdict(arm: ArmResult) -> Cell:
        found = arm.difference.verdict if arm.difference is not None else None
        return found or "" if arm.status == "complete" else Quote(arm.status_words)

    def shown_difference(arm: ArmResult) -> Cell:
        return _difference(comparison, arm) if arm.status == "complete" else verdict(arm)

    def changed(arm: ArmResult) -> str:
        if arm.flips is None:
            return "" if arm is comparison.baseline else NOT_MEASURED
        return mean_count(arm.flips.mean)

    return (
        ArmColumn(comparison.noun, ("", comparison.noun), lambda arm: Name(arm.name, "arm")),
        ArmColumn(
            "execution",
            ("", ""),
            lambda arm: Quote(arm.execution) if arm.execution != UNKNOWN else "",
        ),
        ArmColumn("verdict", None, verdict),
        ArmColumn(
            units.heading,
            (units.title, "%" if units.is_share else ""),
            lambda arm: _metric(comparison, arm),
        ),
        ArmColumn(
            f"{difference} {interval}".strip(),
            (difference, interval),
            lambda arm: _difference(comparison, arm),
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
    deviation = f"{PLUS_MINUS} is the standard deviation over seeds. "
    return Table(
        title=scope(comparison),
        header=tuple(column.heading for column in columns),
        rows=[tuple(column.cell(arm) for column in columns) for arm in comparison.arms],
        note=deviation * (len(comparison.seeds) > 1)
        + f"Changed predictions{ratios} relative to {base}.{placebo}",
        left=3,
    )


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


def _metric(comparison: Comparison, arm: ArmResult) -> Cell:
    """Return the primary metric as "84.6 ± 0.5"; "-" if there is no mean."""
    values = arm.metrics.get(comparison.metric)
    if values is None:
        return NOT_MEASURED
    units = comparison.units
    mean = units.value(values.mean)
    return mean if values.sd is None else Detailed(mean, f"{PLUS_MINUS} {units.value(values.sd)}")


def _difference(comparison: Comparison, arm: ArmResult) -> Cell:
    """Return the difference as "+0.3 (+0.1 to +0.5)"; empty for the baseline."""
    units = comparison.units
    if arm.difference is not None:
        return _with_interval(comparison, arm.difference)
    values = arm.metrics.get(comparison.metric)
    base = comparison.baseline.metrics.get(comparison.metric)
    if arm is comparison.baseline:
        return ""
    if values is None or base is None:
        return NOT_MEASURED
    return Detailed(units.difference(values.mean - base.mean), "(no CI)")


def _with_interval(comparison: Comparison, difference: Difference) -> Cell:
    units = comparison.units
    ends = units.interval(difference.interval95)
    return Detailed(units.difference(difference.estimate), f"({ends})")


def executed(comparison: Comparison) -> tuple[str, ...]:
    """Return the precision measured in the first step; arms with the same one share a line."""
    names: dict[str, list[str]] = {}
    for arm in comparison.arms:
        if arm.executed:
            names.setdefault(arm.executed, []).append(arm.name)
    return tuple(f"{', '.join(arms)}: {summary}" for summary, arms in names.items())


def seeds(comparison: Comparison) -> Iterator[Table]:
    """Yield the metric and the difference per seed, and the components of the intervals."""
    units, base = comparison.units, comparison.baseline.name
    is_one = comparison.has_one_model_each
    header = (comparison.noun, *seed_names(comparison))
    metrics: list[tuple[Cell, ...]] = [
        (
            Name(arm.name, "arm"),
            *by_seed(comparison, arm, [units.value(x, 1) for x in values.per_seed]),
            units.value(values.mean, 1),
            or_dash(values.sd, lambda sd: units.value(sd, 1)),
        )
        for arm in comparison.arms
        for values in [arm.metrics.get(comparison.metric)]
        if values is not None
    ]
    if not is_one:  # then the table of arms shows them
        yield Table(
            title=f"{units.heading[0].upper()}{units.heading[1:]}",
            header=(*header, "mean", "standard deviation"),
            rows=metrics,
        )
    tested = [(arm, arm.difference) for arm in comparison.arms if arm.difference is not None]
    if not tested:
        return
    first = tested[0][1]
    yield Table(
        title=f"Difference to {base}{units.difference_suffix}",
        header=(
            *(*header, "difference" if is_one else "mean"),
            *(f"{level(first.level95)} CI", f"{level(first.level90)} CI"),
        ),
        rows=[
            (
                Name(arm.name, "arm"),
                *by_seed(comparison, arm, [units.difference(x, 1) for x in each.per_seed]),
                units.difference(each.estimate, 1),
                units.interval(each.interval95, 1),
                units.interval(each.interval90, 1),
            )
            for arm, each in tested
        ],
    )
    yield Table(
        title="Components of the confidence intervals (square roots of the variances"
        f"{units.difference_suffix})",
        header=(
            *(comparison.noun, "s, over seeds", "√J, over examples", "√C, between seeds"),
            *("effect of one example", "examples, n"),
            f"rare losses and gains, {level(first.level95)}",
            f"rare losses and gains, {level(first.level90)}",
        ),
        rows=[
            (
                Name(arm.name, "arm"),
                or_dash(each.seed_variance, lambda variance: units.value(variance**0.5, 2)),
                units.value(each.jackknife_variance**0.5, 2),
                units.value(each.jackknife_covariance**0.5, 2),
                units.value(each.one_case, 2),
                f"{each.cases:,}",
                or_dash(each.rare95, lambda limits: units.interval(limits, 1)),
                or_dash(each.rare90, lambda limits: units.interval(limits, 1)),
            )
            for arm, each in tested
        ],
    )
    yield Table(
        title="p-values",
        header=(
            *(comparison.noun, "p (difference)", "after Holm"),
            *("p (equivalence)", "after Holm"),
        ),
        rows=[
            (
                Name(arm.name, "arm"),
                *map(p_value, (each.p_difference, each.p_difference_holm)),
                *map(p_value, (each.p_equivalence, each.p_equivalence_holm)),
            )
            for arm, each in tested
        ],
    )


def seed_names(comparison: Comparison) -> list[str]:
    """Return the column names of the seeds; none if the mean is of one model."""
    if comparison.has_one_model_each:
        return []
    return [f"seed {seed}" for seed in comparison.seeds]


def by_seed(comparison: Comparison, arm: ArmResult, cells: Iterable[str]) -> list[str]:
    """Return one cell per name of `seed_names`; "-" if the arm has no run."""
    if comparison.has_one_model_each:
        return []
    cell_of = dict(zip((run.seed for run in arm.runs), cells, strict=False))
    return [cell_of.get(seed, NOT_MEASURED) for seed in comparison.seeds]


def predicted_in_fp32(comparison: Comparison) -> Table | None:
    """Return the metric and the difference of the same models predicting in fp32."""
    units = comparison.units
    arms = [arm for arm in comparison.arms if comparison.metric in arm.metrics_fp32]
    if not arms:
        return None
    return Table(
        title="The same models predicting in their own precision and in fp32",
        header=(
            *(comparison.noun, f"{units.title} in own precision", f"{units.title} in fp32"),
            *("difference in own precision", "difference in fp32"),
        ),
        rows=[
            (
                Name(arm.name, "arm"),
                _metric(comparison, arm),
                units.value(arm.metrics_fp32[comparison.metric].mean),
                _difference(comparison, arm),
                or_dash(
                    arm.difference_fp32,
                    partial(_with_interval, comparison),
                ),
            )
            for arm in arms
        ],
        note="A difference that remains in fp32 comes from training in the precision; the rest "
        "comes from predicting in it.",
    )


def speed(comparison: Comparison) -> Table | None:
    """Return the timings of each arm."""
    measured = [(arm, arm.speed) for arm in comparison.arms if arm.speed is not None]
    if not measured:
        return None
    has_tf32 = any(each.speed_up_over_tf32 is not None for _, each in measured)
    return Table(
        title="Time per optimizer step after warm-up",
        header=(
            *(comparison.noun, "step, ms", "speed-up (95 % CI)", "verdict"),
            *(["speed-up over tf32"] * has_tf32),
            *("tokens/s", "waiting for data", "utilisation", "training time", "total time"),
        ),
        rows=[
            (
                Name(arm.name, "arm"),
                step_time(arm),
                or_dash(each.speed_up, speed_up_text) if arm is not comparison.baseline else "",
                "" if each.speed_up is None else each.speed_up.verdict or "not ranked",
                *([or_dash(each.speed_up_over_tf32, speed_up_text)] * has_tf32),
                or_dash(each.tokens_per_second, "{:,.0f}".format),
                or_dash(each.waiting_share, lambda share: percent(share, 1)),
                or_dash(each.utilisation, percent),
                or_dash(each.training_seconds, duration),
                or_dash(each.total_seconds, duration),
            )
            for arm, each in measured
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
        header=(
            *(
                comparison.noun,
                "peak",
                "relative to baseline",
                "before loading the model",
                "weights",
            ),
            *("gradients", "optimizer state", "activations", "rest"),
        ),
        rows=[
            (
                Name(arm.name, "arm"),
                mebibytes(each.peak),
                "" if each.ratio is None else percent(each.ratio),
                *map(mebibytes, (each.baseline, each.weights, each.gradients)),
                *map(mebibytes, (each.optimizer_state, each.activations, each.rest)),
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
                    *[Quote(run.node or NOT_MEASURED)] * has_nodes,
                )
            )
    names = ("folder", "status", "seed", "steps", "skipped steps")
    header = (comparison.noun, *names, *["node"] * has_nodes)
    return Table(title="Status and steps of every run", header=header, rows=rows, left=3)


def facts(title: str, values: Mapping[str, str]) -> Table | None:
    """Return names and values; None if there are none."""
    rows = [(Quote(name), Quote(value)) for name, value in values.items()]
    return Table(title=title, header=("", ""), rows=rows, left=2) if rows else None
