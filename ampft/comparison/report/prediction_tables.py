"""The tables of changed predictions, classes, metrics and calibration of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ampft.comparison.findings import (
    CALIBRATION_ERROR,
    ArmResult,
    ClassDifference,
    Comparison,
    Flips,
    MetricInfo,
    MetricValues,
)
from ampft.comparison.report.tables import by_seed, seed_names
from ampft.text.numbers import (
    NOT_MEASURED,
    PLUS_MINUS,
    level,
    mean_count,
    number,
    or_dash,
    p_value,
    percent,
    points,
)
from ampft.text.tables import Name, Table

MANY_CLASSES = 30  # with more, the classes with the largest differences come first
MAX_CONFUSIONS = 12


def changed(comparison: Comparison) -> Iterator[Table]:
    """Yield the numbers of changed predictions, McNemar's tests and a few examples.

    The tests need cases that are correct or wrong as a whole, which masks hardly ever are.
    """
    arms = [(arm, arm.flips) for arm in comparison.arms if arm.flips is not None]
    if not arms:
        return
    base, names = comparison.baseline.name, seed_names(comparison)
    is_one = comparison.has_one_model_each
    same_seed = "" if is_one else " with the same seed"
    yield Table(
        title=f"Predictions that differ from {base}{same_seed}, out of {comparison.examples:,}",
        header=(
            *(comparison.noun, *names, "number" if is_one else "mean"),
            *(f"only this {comparison.noun} correct", "only the baseline correct"),
        ),
        rows=[
            (
                Name(arm.name, "arm"),
                *by_seed(comparison, arm, [f"{count:,}" for count in flips.per_seed]),
                *map(mean_count, (flips.mean, flips.gained, flips.lost)),
            )
            for arm, flips in arms
        ],
    )
    if is_one and any(flips.gained or flips.lost or flips.both_correct for _, flips in arms):
        yield _mcnemar(comparison, arms)
    elif any(flips.gained or flips.lost for _, flips in arms):
        yield Table(
            title="McNemar's test per seed, mid-p",
            header=(comparison.noun, *names),
            rows=[
                (
                    Name(arm.name, "arm"),
                    *by_seed(comparison, arm, map(p_value, flips.mcnemar_mid_p)),
                )
                for arm, flips in arms
            ],
            note="McNemar's test compares only the two checkpoints of a seed and does not cover "
            "the variation of training.",
        )
    for arm, flips in arms:
        if flips.examples:
            yield Table(
                title=f"Examples that {arm.name} changes, with predictions and confidence"
                if is_one
                else f"Examples that {arm.name} changes for the largest number of seeds, with "
                "predictions and confidence at the first of these seeds",
                header=(
                    *("example", "label", Name(base, "arm"), Name(arm.name, "arm"), "input"),
                    *(f"confidence of {base}", f"confidence of {arm.name}"),
                    *([] if is_one else ["seeds"]),
                ),
                rows=[
                    (
                        f"{each.example_id}",
                        *(Name(each.label), Name(each.baseline), Name(each.arm)),
                        Name(each.text) if each.text else "",
                        *(
                            or_dash(each.baseline_confidence, percent),
                            or_dash(each.arm_confidence, percent),
                        ),
                        *([] if is_one else [f"{each.seeds}"]),
                    )
                    for each in flips.examples
                ],
                left=5,
            )


def _mcnemar(comparison: Comparison, arms: Sequence[tuple[ArmResult, Flips]]) -> Table:
    """Return McNemar's table of each arm, one model and the baseline's, in one row."""
    note = "McNemar's test compares these models only."
    if comparison.groups is not None:
        note += " In the test, a group of examples counts once; the columns count examples."
    return Table(
        title="McNemar's table and test, mid-p",
        header=(
            *(comparison.noun, "both correct", f"only this {comparison.noun} correct"),
            *("only the baseline correct", "both wrong", "mid-p"),
        ),
        rows=[
            (
                Name(arm.name, "arm"),
                or_dash(flips.both_correct, mean_count),
                *(mean_count(flips.gained), mean_count(flips.lost)),
                or_dash(_both_wrong(comparison, flips), mean_count),
                *map(p_value, flips.mcnemar_mid_p),
            )
            for arm, flips in arms
        ],
        note=note,
    )


def _both_wrong(comparison: Comparison, flips: Flips) -> float | None:
    if flips.both_correct is None:
        return None
    return comparison.examples - flips.both_correct - flips.gained - flips.lost


def classes(comparison: Comparison, *, limit: int | None = None) -> Table | None:
    """Return the F1 of each class with its differences.

    Args:
        comparison: Comparison.
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
        comparison: Comparison.
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
        rows = sorted(rows, key=lambda row: _p(row[2]))[:limit]
    return Table(
        title=f"Difference in F1 to {comparison.baseline.name} in points, with intervals",
        header=(
            *(comparison.noun, "class", "examples", "difference"),
            *(f"{level(rows[0][2].level)} CI", "p (difference)", "after Holm"),
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


def _p(difference: ClassDifference) -> float:
    return 1.0 if difference.p_difference is None else difference.p_difference


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
        * (not comparison.has_one_model_each)
        + "The calibration error (15 bins "
        "of equal width) is biased upwards, more so with fewer examples, and has no confidence "
        "interval.",
    )


def _metric_cell(info: MetricInfo, values: MetricValues | None) -> str:
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
