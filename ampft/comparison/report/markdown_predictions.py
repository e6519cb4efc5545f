"""Changed predictions, classes and calibration of a comparison as Markdown."""

from __future__ import annotations

from ampft.comparison.findings import (
    CALIBRATION_ERROR,
    ArmResult,
    Comparison,
    FlippedExample,
    MetricInfo,
    MetricValues,
)
from ampft.text.markdown import code, table
from ampft.text.numbers import (
    NOT_MEASURED,
    PLUS_MINUS,
    mean_count,
    number,
    p_value,
    percent,
    points,
)

MAX_CLASSES = 50  # keeps the report below the 65,536 characters of a GitHub comment
MAX_CONFUSIONS = 12


def changed(comparison: Comparison) -> str:
    """Return the numbers of changed predictions, McNemar's tests and a few examples."""
    arms = [(arm, arm.flips) for arm in comparison.arms if arm.flips is not None]
    if not arms:
        return ""
    base = code(comparison.baseline.name)
    seeds = [f"seed {seed}" for seed in comparison.seeds]
    header = ("", *seeds, "mean", "only this mode correct", "only the baseline correct")
    rows = [
        (
            code(arm.name),
            *_padded([f"{count:,}" for count in flips.per_seed], len(seeds)),
            *map(mean_count, (flips.mean, flips.gained, flips.lost)),
        )
        for arm, flips in arms
    ]
    tests = [
        (code(arm.name), *_padded([p_value(p) for p in flips.mcnemar_mid_p], len(seeds)))
        for arm, flips in arms
    ]
    parts = [
        f"Predictions that differ from those of {base} with the same seed, out of "
        f"{comparison.examples:,}:",
        table(header, rows),
        "McNemar's test per seed (mid-p, exploratory). It compares only the two checkpoints of a "
        "seed and does not cover the variation of training:",
        table(("", *seeds), tests),
        *(_examples(comparison, arm) for arm, flips in arms if flips.examples),
    ]
    return "\n\n".join(parts)


def _examples(comparison: Comparison, arm: ArmResult) -> str:
    base = code(comparison.baseline.name)
    header = ("example", "label", base, code(arm.name), "text", "seeds")
    examples = arm.flips.examples if arm.flips is not None else ()
    rows = [_example(example) for example in examples]
    return (
        f"Examples that {code(arm.name)} changes for the largest number of seeds, with predictions "
        f"and confidence at the first of these seeds:\n\n{table(header, rows, left=5)}"
    )


def _example(example: FlippedExample) -> tuple[str, ...]:
    return (
        f"{example.example_id}",
        code(example.label),
        f"{code(example.baseline)} {percent(example.baseline_confidence)}",
        f"{code(example.arm)} {percent(example.arm_confidence)}",
        code(example.text) if example.text else "",
        f"{example.seeds}",
    )


def classes(comparison: Comparison) -> str:
    """Return the F1 of each class with its differences, and the most frequent confusions."""
    base = comparison.baseline
    arms = [arm for arm in comparison.arms if arm is not base and arm.classes]
    if not base.classes:
        return ""
    largest = [max((abs(_f1_difference(a, i)) for a in arms), default=0.0) for i in _indices(base)]
    selected = sorted(_indices(base), key=lambda index: (-largest[index], index))[:MAX_CLASSES]
    header = (
        *("class", "examples", f"F1 of {code(base.name)}, %"),
        *(f"difference of {code(arm.name)}, points" for arm in arms),
    )
    rows = [
        (
            code(base.classes[index].name),
            f"{base.classes[index].support:,}",
            number(100 * base.classes[index].f1, 1),
            *(points(_f1_difference(arm, index)) for arm in arms),
        )
        for index in sorted(selected)
    ]
    omitted = len(base.classes) - len(selected)
    more = f"\n\n{omitted:,} classes with smaller differences are omitted." if omitted else ""
    return f"{table(header, rows)}{more}\n\n{_confusions(comparison)}"


def _confusions(comparison: Comparison) -> str:
    """Return the most frequent confusions, summed over the seeds."""
    arms = [arm for arm in comparison.arms if arm.confusion]
    names = comparison.label_names
    totals = {
        (row, column): sum(arm.confusion[row][column] for arm in arms)
        for row in range(len(names))
        for column in range(len(names))
        if row != column
    }
    largest = sorted(totals, key=lambda pair: (-totals[pair], pair))[:MAX_CONFUSIONS]
    rows = [
        (code(names[row]), code(names[column]), *(f"{a.confusion[row][column]:,}" for a in arms))
        for row, column in largest
        if totals[row, column]
    ]
    if not rows:
        return "There are no confusions."
    header = ("label", "predicted as", *(code(arm.name) for arm in arms))
    return f"Most frequent confusions, summed over the seeds:\n\n{table(header, rows, left=2)}"


def calibration(comparison: Comparison) -> str:
    """Return all metrics of each arm, and its accuracy by confidence."""
    arms = [arm for arm in comparison.arms if arm.metrics]
    if not arms:
        return ""
    header = ("", *(code(arm.name) for arm in arms))
    rows = [
        (
            f"{info.title}, %" if info.is_share else info.title,
            *(_metric_cell(info, arm.metrics.get(info.name)) for arm in arms),
        )
        for info in comparison.metrics
        if any(info.name in arm.metrics for arm in arms)
    ]
    explanation = (
        f"Means {PLUS_MINUS} standard deviations over seeds. The calibration error (15 bins of "
        "equal width) is biased upwards, more so with fewer examples, and has no confidence "
        "interval."
    )
    return f"{explanation}\n\n{table(header, rows)}\n\n{_bins(comparison)}".rstrip()


def _bins(comparison: Comparison) -> str:
    arms = [arm for arm in comparison.arms if arm.calibration]
    if not arms:
        return ""
    rows = [
        (
            f"{percent(bin_.low)} to {percent(bin_.high)}",
            *(
                NOT_MEASURED
                if b.accuracy is None or b.confidence is None
                else f"{percent(b.confidence)}, {percent(b.accuracy)} ({b.count:,})"
                for b in (arm.calibration[index] for arm in arms)
            ),
        )
        for index, bin_ in enumerate(arms[0].calibration)
    ]
    header = ("confidence", *(code(arm.name) for arm in arms))
    return f"Mean confidence, accuracy (number of predictions):\n\n{table(header, rows)}"


def _metric_cell(info: MetricInfo, values: MetricValues | None) -> str:
    if values is None:
        return NOT_MEASURED
    factor, decimals = (100, 2) if info.is_share else (1, 4)
    mean = number(factor * values.mean, decimals)
    if values.sd is None or info.name == CALIBRATION_ERROR:
        return mean
    return f"{mean} {PLUS_MINUS} {factor * values.sd:.{decimals}f}"


def _f1_difference(arm: ArmResult, index: int) -> float:
    return arm.classes[index].f1_difference or 0.0


def _indices(arm: ArmResult) -> range:
    return range(len(arm.classes))


def _padded(cells: list[str], length: int) -> list[str]:
    return [*cells, *[NOT_MEASURED] * (length - len(cells))]
