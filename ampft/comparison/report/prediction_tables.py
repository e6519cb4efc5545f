"""The tables of what predictions show: differences, changed ones, classes, other metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ampft.comparison.findings import (
    CALIBRATION_ERROR,
    ArmResult,
    ChangedPredictions,
    Comparison,
    FlippedExample,
    MetricInfo,
    MetricOverSeeds,
)
from ampft.comparison.report.tables import arm_table, difference_cell, metric_cell, with_interval
from ampft.text.numbers import (
    NOT_MEASURED,
    PLUS_MINUS,
    confidence_percent,
    mean_count,
    number,
    or_dash,
    p_value,
    percent,
    points,
)
from ampft.text.page import Cell, Name, Table

MANY_CLASSES = 30  # with more, the classes with the largest differences come first
MAX_CONFUSIONS = 12


def seeds(comparison: Comparison) -> Iterator[Table]:
    """Yield the metric and the difference per seed, and the components of the intervals."""
    units, is_one = comparison.units, comparison.has_one_model_each
    metrics = [
        (arm, arm.metrics[comparison.metric])
        for arm in comparison.arms
        if comparison.metric in arm.metrics
    ]
    if not is_one:  # then the table of arms shows them
        yield arm_table(
            comparison,
            f"{units.heading[0].upper()}{units.heading[1:]}",
            metrics,
            [
                ("mean", lambda values: units.value(values.mean, 1)),
                ("standard deviation", lambda v: or_dash(v.sd, lambda sd: units.value(sd, 1))),
            ],
            per_seed=lambda values: [units.value(x, 1) for x in values.per_seed],
        )
    tested = [(arm, arm.difference) for arm in comparison.arms if arm.difference is not None]
    if not tested:
        return
    wide, narrow = (
        confidence_percent(tested[0][1].level95),
        confidence_percent(tested[0][1].level90),
    )
    yield arm_table(
        comparison,
        f"Difference to {comparison.baseline.name}{units.difference_suffix}",
        tested,
        [
            ("difference" if is_one else "mean", lambda d: units.difference(d.estimate, 1)),
            (f"{wide} CI", lambda d: units.interval(d.interval95, 1)),
            (f"{narrow} CI", lambda d: units.interval(d.interval90, 1)),
        ],
        per_seed=lambda d: [units.difference(x, 1) for x in d.per_seed],
    )

    def root(variance: float) -> str:
        return units.value(variance**0.5, 2)

    def limits(ends: tuple[float, float]) -> str:
        return units.interval(ends, 1)

    yield arm_table(
        comparison,
        "Components of the confidence intervals (square roots of the variances"
        f"{units.difference_suffix})",
        tested,
        [
            ("s, over seeds", lambda d: or_dash(d.seed_variance, root)),
            ("√J, over examples", lambda d: root(d.jackknife_variance)),
            ("√C, between seeds", lambda d: root(d.jackknife_covariance)),
            ("effect of one example", lambda d: units.value(d.one_case, 2)),
            ("examples, n", lambda d: f"{d.cases:,}"),
            (f"rare losses and gains, {wide}", lambda d: or_dash(d.rare95, limits)),
            (f"rare losses and gains, {narrow}", lambda d: or_dash(d.rare90, limits)),
            (f"skewed effects of seeds, {narrow}", lambda d: or_dash(d.skewed90, limits)),
        ],
    )
    yield arm_table(
        comparison,
        "p-values",
        tested,
        [
            ("p (difference)", lambda d: p_value(d.p_difference)),
            ("after Holm", lambda d: p_value(d.p_difference_holm)),
            ("p (equivalence)", lambda d: p_value(d.p_equivalence)),
            ("after Holm", lambda d: p_value(d.p_equivalence_holm)),
        ],
    )


def predicted_in_fp32(comparison: Comparison) -> Table | None:
    """Return the metric and the difference of the same models predicting in fp32."""
    units, name = comparison.units, comparison.metric
    arms = [(arm, arm) for arm in comparison.arms if name in arm.metrics_fp32]
    if not arms:
        return None

    def in_fp32(arm: ArmResult) -> Cell:
        return or_dash(arm.difference_fp32, partial(with_interval, comparison))

    return arm_table(
        comparison,
        "The same models predicting in their own precision and in fp32",
        arms,
        [
            (f"{units.title} in own precision", partial(metric_cell, comparison)),
            (f"{units.title} in fp32", lambda arm: units.value(arm.metrics_fp32[name].mean)),
            ("difference in own precision", partial(difference_cell, comparison)),
            ("difference in fp32", in_fp32),
        ],
        note="A difference that remains in fp32 comes from training in the precision; the rest "
        "comes from predicting in it.",
    )


def changed(comparison: Comparison) -> Iterator[Table]:
    """Yield the numbers of changed predictions, McNemar's tests and a few examples.

    The tests need cases that are correct or wrong as a whole, which masks hardly ever are.
    """
    arms = [(arm, arm.flips) for arm in comparison.arms if arm.flips is not None]
    if not arms:
        return
    base, is_one = comparison.baseline.name, comparison.has_one_model_each
    same_seed = "" if is_one else " with the same seed"
    yield arm_table(
        comparison,
        f"Predictions that differ from {base}{same_seed}, out of {comparison.examples:,}",
        arms,
        [
            ("number" if is_one else "mean", lambda flips: mean_count(flips.mean)),
            *_sides_of_changes(comparison, arms),
        ],
        per_seed=lambda flips: [f"{count:,}" for count in flips.per_seed],
    )
    if is_one and any(flips.gained or flips.lost or flips.both_correct for _, flips in arms):
        yield _mcnemar(comparison, arms)
    elif any(flips.gained or flips.lost for _, flips in arms):
        yield arm_table(
            comparison,
            "McNemar's test per seed, mid-p",
            arms,
            [],
            per_seed=lambda flips: [p_value(p) for p in flips.mcnemar_mid_p],
            note="McNemar's test compares only the two checkpoints of a seed and does not cover "
            "the variation of training.",
        )
    for arm, flips in arms:
        if flips.examples:
            yield _changed_examples(arm.name, base, flips.examples, is_one=is_one)


def _changed_examples(
    name: str, base: str, examples: Sequence[FlippedExample], *, is_one: bool
) -> Table:
    """Return examples whose predictions change, with their confidence where there is one."""
    has_confidence = any(
        each.arm_confidence is not None or each.baseline_confidence is not None for each in examples
    )
    shown = "predictions and confidence" if has_confidence else "predictions"
    title = f"Examples that {name} changes, with {shown}"
    if not is_one:
        title = (
            f"Examples that {name} changes for the largest number of seeds, with {shown} at the "
            "first of these seeds"
        )
    header: list[Cell] = ["example", "label", Name(base, "arm"), Name(name, "arm"), "input"]
    if has_confidence:
        header += [f"confidence of {base}", f"confidence of {name}"]
    if not is_one:
        header += ["seeds"]
    rows = []
    for each in examples:
        text = Name(each.text) if each.text else ""
        row: list[Cell] = [f"{each.example_id}", Name(each.label)]
        row += [Name(each.baseline), Name(each.arm), text]
        if has_confidence:
            row += [or_dash(v, percent) for v in (each.baseline_confidence, each.arm_confidence)]
        if not is_one:
            row += [f"{each.seeds}"]
        rows.append(row)
    return Table(title=title, header=header, rows=rows, left=5)


def _sides_of_changes(
    comparison: Comparison, arms: Sequence[tuple[ArmResult, ChangedPredictions]]
) -> list[tuple[str, Callable[[ChangedPredictions], str]]]:
    """Return the columns that say which side is right, or closer to labels that are numbers."""
    noun = comparison.noun
    if all(flips.closer is not None for _, flips in arms):
        return [
            (f"this {noun} closer to the label", lambda flips: or_dash(flips.closer, mean_count)),
            ("the baseline closer", lambda flips: or_dash(flips.farther, mean_count)),
        ]
    return [
        (f"only this {noun} correct", lambda flips: mean_count(flips.gained)),
        ("only the baseline correct", lambda flips: mean_count(flips.lost)),
    ]


def _mcnemar(comparison: Comparison, arms: Sequence[tuple[ArmResult, ChangedPredictions]]) -> Table:
    """Return McNemar's table of each arm, one model and the baseline's, in one row."""
    note = "McNemar's test compares these models only."
    if comparison.groups is not None:
        note += " In the test, a group of examples counts once; the columns count examples."

    def both_wrong(flips: ChangedPredictions) -> str:
        if flips.both_correct is None:
            return NOT_MEASURED
        return mean_count(comparison.examples - flips.both_correct - flips.gained - flips.lost)

    return arm_table(
        comparison,
        "McNemar's table and test, mid-p",
        arms,
        [
            ("both correct", lambda flips: or_dash(flips.both_correct, mean_count)),
            (f"only this {comparison.noun} correct", lambda flips: mean_count(flips.gained)),
            ("only the baseline correct", lambda flips: mean_count(flips.lost)),
            ("both wrong", both_wrong),
            ("mid-p", lambda flips: p_value(flips.mcnemar_mid_p[0])),
        ],
        note=note,
    )


def classes(comparison: Comparison, *, limit: int | None = None) -> Table | None:
    """Return the F1 of each class with its differences.

    Args:
        limit: Number of classes with the largest differences that are listed; None for all.
    """
    base = comparison.baseline
    arms = [arm for arm in comparison.arms if arm is not base and arm.classes]
    if not base.classes:
        return None
    count = len(base.classes)

    def largest(index: int) -> float:
        return max((abs(arm.classes[index].f1_difference or 0.0) for arm in arms), default=0.0)

    order: Sequence[int] = range(count)
    if count > MANY_CLASSES:
        order = sorted(order, key=lambda index: -largest(index))[:limit]
    omitted = count - len(order)
    over_seeds = "" if comparison.has_one_model_each else ", means over the seeds"
    return Table(
        title=f"F1 of {base.name} in % and differences to it in points{over_seeds}",
        header=("class", "examples", *(Name(arm.name, "arm") for arm in (base, *arms))),
        rows=[
            (
                Name(base.classes[index].name),
                f"{base.classes[index].support:,}",
                number(100 * base.classes[index].f1, 1),
                *(or_dash(arm.classes[index].f1_difference, points) for arm in arms),
            )
            for index in order
        ],
        note="Classes with few examples vary more by chance."
        + (f" {omitted:,} classes with smaller differences are omitted." if omitted else ""),
    )


def class_intervals(comparison: Comparison, *, limit: int | None = None) -> Table | None:
    """Return the difference in F1 of each class with its interval; None if not computed.

    Args:
        limit: Number of rows, those with the smallest p-values; None for all.
    """
    rows = [
        (arm, each, each.difference)
        for arm in comparison.arms
        for each in arm.classes
        if each.difference is not None
    ]
    if not rows:
        return None
    rest = ""
    if limit is not None and len(rows) > limit:
        rest = f" {len(rows) - limit:,} rows with larger p-values are omitted."
        smallest = sorted(
            rows, key=lambda row: 1.0 if row[2].p_difference is None else row[2].p_difference
        )
        rows = smallest[:limit]
    return Table(
        title=f"Difference in F1 to {comparison.baseline.name} in points, with intervals",
        header=(
            *(comparison.noun, "class", "examples", "difference"),
            *(f"{confidence_percent(rows[0][2].level)} CI", "p (difference)", "after Holm"),
        ),
        rows=[
            (
                *(Name(arm.name, "arm"), Name(figures.name), f"{figures.support:,}"),
                points(each.estimate),
                f"{points(each.interval[0])} to {points(each.interval[1])}",
                p_value(each.p_difference),
                p_value(each.p_difference_holm),
            )
            for arm, figures, each in rows
        ],
        note="Holm's correction covers all classes and everything that is compared except the "
        f"placebo; the intervals are not corrected.{rest}",
        left=2,
    )


def confusions(comparison: Comparison) -> Table | None:
    """Return the most frequent confusions, summed over the seeds."""
    arms = [arm for arm in comparison.arms if arm.confusion]
    names = comparison.label_names
    totals = {
        (row, column): total
        for row in range(len(names))
        for column in range(len(names))
        if row != column and (total := sum(arm.confusion[row][column] for arm in arms))
    }
    largest = sorted(totals, key=lambda pair: (-totals[pair], pair))[:MAX_CONFUSIONS]
    if not largest:
        return None
    over_seeds = "" if comparison.has_one_model_each else ", summed over the seeds"
    return Table(
        title=f"Most frequent confusions{over_seeds}",
        header=("label", "predicted as", *(Name(arm.name, "arm") for arm in arms)),
        rows=[
            (
                *(Name(names[row]), Name(names[column])),
                *(f"{arm.confusion[row][column]:,}" for arm in arms),
            )
            for row, column in largest
        ],
        left=2,
    )


def metrics(comparison: Comparison) -> Table | None:
    """Return all metrics of each arm."""
    arms = [arm for arm in comparison.arms if arm.metrics]
    if not arms:
        return None
    return Table(
        title="All metrics",
        header=("metric", *(Name(arm.name, "arm") for arm in arms)),
        rows=[
            (
                f"{info.title}, %" if info.is_share else info.title,
                *(_metric_cell(info, arm.metrics.get(info.name)) for arm in arms),
            )
            for info in comparison.metrics
            if any(info.name in arm.metrics for arm in arms)
        ],
        note=f"Means {PLUS_MINUS} standard deviations over seeds. "
        if not comparison.has_one_model_each
        else "" + "The calibration error (15 bins "
        "of equal width) is biased upwards, more so with fewer examples, and has no confidence "
        "interval.",
    )


def _metric_cell(info: MetricInfo, values: MetricOverSeeds | None) -> str:
    if values is None:
        return NOT_MEASURED
    factor, decimals = (100, 2) if info.is_share else (1, 4)
    mean = number(factor * values.mean, decimals)
    if values.sd is None or info.name == CALIBRATION_ERROR:
        return mean
    return f"{mean} {PLUS_MINUS} {factor * values.sd:.{decimals}f}"


def calibration(comparison: Comparison) -> Table | None:
    """Return the accuracy of each arm by confidence."""
    arms = [arm for arm in comparison.arms if arm.calibration]
    if not arms:
        return None
    return Table(
        title="Mean confidence, accuracy (number of predictions)",
        header=("confidence", *(Name(arm.name, "arm") for arm in arms)),
        rows=[
            (
                f"{percent(bins[0].low)} to {percent(bins[0].high)}",
                *(
                    NOT_MEASURED
                    if each.accuracy is None or each.confidence is None
                    else f"{percent(each.confidence)}, {percent(each.accuracy)} ({each.count:,})"
                    for each in bins
                ),
            )
            for bins in zip(*(arm.calibration for arm in arms), strict=True)
        ],
    )
