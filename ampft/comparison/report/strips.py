"""Strips: charts in the rows of a table that share one horizontal scale.

A strip fills its cell, so that zero lines and margins run through the whole table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from ampft.comparison.charts import Axis, element, picture, text
from ampft.comparison.findings import ArmResult, Comparison, Memory
from ampft.comparison.report.run_charts import ArmStyle
from ampft.comparison.report.tables import MEMORY_PARTS
from ampft.text.escaping import one_line
from ampft.text.numbers import (
    Units,
    byte_size,
    confidence_percent,
    milliseconds,
    points,
    signed_number,
)

LEFT, RIGHT = 5.0, 95.0  # percent of the cell

Pairs = Sequence[tuple[ArmResult, ArmStyle]]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of strips in the first table of a section."""

    name: str  # Name of the section.
    heading: str  # Heading of the column.
    scale: Markup  # Scale below the heading.
    strips: Mapping[str, Markup]  # Strip by the name in the first column of the table.
    explanation: str  # Sentences on how to read the strips.
    # Colour patches next to other headings of the table.
    keys: Mapping[str, Markup] = field(default_factory=dict)


def columns(comparison: Comparison, styles: Sequence[ArmStyle]) -> Iterator[Column]:
    """Yield the columns of strips that the comparison has data for; the cards have the arms'."""
    pairs = tuple(zip(comparison.arms, styles, strict=True))
    if any(arm.difference_fp32 for arm in comparison.arms):
        yield _differences(comparison, pairs)
    yield _steps(pairs)
    yield _memory(pairs)
    yield _classes(comparison, pairs)


def _differences(comparison: Comparison, pairs: Pairs) -> Column:
    """Return the column of the differences of predictions in fp32."""
    units, axis = comparison.units, difference_axis(comparison, of_fp32=True)
    wide, narrow = (
        confidence_percent(1 - comparison.alpha),
        confidence_percent(1 - 2 * comparison.alpha),
    )
    is_one = comparison.has_one_model_each
    explanation = f"Dashed lines: the margin of ±{units.margin_with_unit}."
    if any(arm.difference for arm, _ in pairs):
        explanation = (
            f"Dot: {'difference' if is_one else 'mean difference over the seeds'}. Thin whisker: "
            f"{wide} confidence interval (CI); thick whisker: {narrow} CI, which decides "
            f"equivalence. {'' if is_one else 'Small ticks: individual seeds. '}{explanation}"
        )
    if any(arm.is_placebo and arm.difference for arm, _ in pairs):
        explanation += f" Shaded: the {wide} CI of the placebo."
    return Column(
        name="in-fp32",
        heading=f"difference in fp32{units.difference_suffix}",
        scale=difference_scale(axis, units),
        strips={
            arm.name: difference_strip(comparison, arm, style, axis, of_fp32=True)
            for arm, style in pairs
        },
        explanation=explanation,
    )


def difference_axis(comparison: Comparison, *, of_fp32: bool = False) -> Axis:
    """Return an axis that covers all differences, their intervals and seeds, and the margin."""
    values = [-comparison.margin, comparison.margin]
    for arm in comparison.arms:
        for difference in (arm.difference, arm.difference_fp32 if of_fp32 else None):
            if difference is not None:
                values += [*comparison.units.cut(difference.interval95), *difference.per_seed]
    return _axis(values, around_zero=True)


def difference_strip(
    comparison: Comparison, arm: ArmResult, style: ArmStyle, axis: Axis, *, of_fp32: bool = False
) -> Markup:
    """Return the estimate of an arm as a dot, its intervals as whiskers and its seeds as ticks."""
    parts: list[Markup] = []
    placebo = next((each.difference for each in comparison.arms if each.is_placebo), None)
    if placebo is not None:
        parts.append(axis.box(*placebo.interval95, 0, "100%", "band"))
    parts.append(axis.upright(0.0, 0, "100%", "zero"))
    parts += [
        axis.upright(end, 0, "100%", "margin") for end in (comparison.margin, -comparison.margin)
    ]
    difference, base = arm.difference_fp32 if of_fp32 else arm.difference, comparison.baseline.name
    if difference is None:
        return _strip(parts, f"{style.name}: difference to {base} unknown")
    parts += [axis.upright(seed, "26%", "40%", style.colour) for seed in difference.per_seed]
    parts.append(axis.level(*difference.interval95, "60%", f"whisker {style.colour}"))
    parts.append(axis.level(*difference.interval90, "60%", f"inner {style.colour}"))
    parts.append(style.mark(axis.percent(difference.estimate), "60%"))
    units = comparison.units
    return _strip(
        parts,
        f"{style.name} minus {base}: {units.difference_with_unit(difference.estimate)}, "
        f"{confidence_percent(difference.level95)} CI {units.interval(difference.interval95)}; "
        f"margin {units.margin_with_unit}",
    )


def scaled_strip(comparison: Comparison, arm: ArmResult, style: ArmStyle, axis: Axis) -> Markup:
    """Return the difference of an arm below its scale, to stand outside of a table."""
    return Markup('{}<div class="strip">{}</div>').format(
        difference_scale(axis, comparison.units), difference_strip(comparison, arm, style, axis)
    )


def _steps(pairs: Pairs) -> Column:
    """Return the median step times of the runs, with a mark per run."""
    seconds = {arm.name: arm.speed.step_seconds for arm, _ in pairs if arm.speed}
    axis = _axis([0.0, *(each for runs in seconds.values() for each in runs)])
    strips = {}
    for arm, style in pairs:
        if arm.name in seconds:
            steps = seconds[arm.name]
            marks = [style.mark(axis.percent(s), "50%", class_="faint") for s in steps]
            alt = f"{style.name}: median step times of {', '.join(map(milliseconds, steps))} ms"
            strips[arm.name] = _strip([axis.level(0, axis.high, "50%", "rule"), *marks], alt)
    return Column(
        name="speed",
        heading="median step of each run, ms",
        scale=_head(axis, lambda s: f"{1000 * s:,.6g}", "Scale: milliseconds per step"),
        strips=strips,
        explanation="Each mark is a run.",
    )


def _memory(pairs: Pairs) -> Column:
    """Return the parts of the peak memory of each arm."""
    measured = [(arm.name, arm.memory, style) for arm, style in pairs if arm.memory is not None]
    totals = [
        max(float(sum(getattr(memory, part) or 0 for part in MEMORY_PARTS)), memory.peak or 0)
        for _, memory, _ in measured
    ]
    axis = _axis([0.0, *totals])
    unit, name = (2**30, "GiB") if axis.high >= 2**31 else (2**20, "MiB")
    scale = Axis(axis.low / unit, axis.high / unit, axis.start, axis.end)
    patches = {
        heading: picture(
            element("rect", x=1, y=3, width=14, height=10, class_=f"part p{index}"),
            height=16, alt=None, class_="patch",
        )
        for index, heading in enumerate(MEMORY_PARTS.values())
    }  # fmt: skip
    return Column(
        name="memory",
        heading="parts of the peak",
        scale=_head(scale, lambda value: f"{value:,.4g} {name}", f"Scale: memory in {name}"),
        strips={arm: _memory_strip(memory, style, axis) for arm, memory, style in measured},
        explanation="The parts are in the order of the columns. The vertical line marks the peak.",
        keys=patches,
    )


def _memory_strip(memory: Memory, style: ArmStyle, axis: Axis) -> Markup:
    """Return the parts of the peak as a stacked bar, and the peak as a vertical line."""
    bars: list[Markup] = []
    descriptions: list[str] = []
    total = 0.0
    for index, part in enumerate(MEMORY_PARTS):
        value = getattr(memory, part)
        if value:
            bars.append(axis.box(total, total + value, "22%", "56%", f"part p{index}"))
            descriptions.append(f"{part.replace('_', ' ')} {byte_size(value)}")
            total += value
    if memory.peak is not None:
        bars.append(axis.upright(memory.peak, "10%", "90%", "peak"))
        descriptions.append(f"peak {byte_size(memory.peak)}")
    return _strip(bars, f"{style.name}: {', '.join(descriptions) or 'not measured'}")


def _classes(comparison: Comparison, pairs: Pairs) -> Column:
    """Return the differences in the F1 of each class, with a mark per arm."""
    base, others = pairs[0][0], [(arm, style) for arm, style in pairs[1:] if arm.classes]
    figures = [row.f1_difference or 0.0 for arm, _ in others for row in arm.classes]
    axis = _axis([*figures, -0.01, 0.01], around_zero=True)
    strips = {}
    for index, row in enumerate(base.classes):
        differences = [
            (style, value)
            for arm, style in others
            if (value := arm.classes[index].f1_difference) is not None
        ]
        parts = [axis.upright(0, 0, "100%", "zero")]
        if differences:
            values = [value for _, value in differences]
            parts.append(axis.level(min(values), max(values), "50%", "rule"))
        parts += [style.mark(axis.percent(value), "50%") for style, value in differences]
        shown = ", ".join(f"{style.name} {points(value)}" for style, value in differences)
        strips[row.name] = _strip(parts, f"{one_line(row.name) or 'blank'}: {shown}")
    explanation = ""
    if any(arm.is_placebo for arm, _ in others):
        explanation = f"Compare the marks of {comparison.an_arm} with the marks of the placebo."
    return Column(
        name="classes",
        heading="difference, points",
        scale=difference_scale(axis),
        strips=strips,
        explanation=explanation,
    )


def difference_scale(axis: Axis, units: Units | None = None) -> Markup:
    """Return the scale that stands above a column of strips, with a number at each tick.

    Args:
        units: Units of the metric; None for points.
    """
    factor = 100 if units is None else units.factor
    ticks = axis.ticks(5)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 0.01
    decimals = max(0, -math.floor(math.log10(factor * step) + 1e-9))
    alt = "Scale: differences" + (" in points" if factor == 100 else "")
    return _head(axis, lambda value: signed_number(factor * value, decimals), alt)


def _head(axis: Axis, label: Callable[[float], str], alt: str) -> Markup:
    """Return the header of a column of strips, with round values above their ticks."""
    marks = [
        part
        for value in axis.ticks(5)
        for part in (
            text(label(value), axis.percent(value), 11, "tick middle"),
            axis.upright(value, 15, 20, "rule"),
        )
    ]
    return picture(*marks, height=20, alt=alt, class_="head")


def _strip(parts: Sequence[Markup], alt: str) -> Markup:
    return picture(*parts, height=None, alt=alt, class_="fill")


def _axis(values: Sequence[float], *, around_zero: bool = False) -> Axis:
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    room = 0.06 * (high - low) or 1.0
    return Axis(low - room if around_zero else low, high + room, LEFT, RIGHT)
