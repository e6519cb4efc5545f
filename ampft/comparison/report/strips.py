"""Strips: charts in the rows of a table that share one horizontal scale.

A strip fills its cell, so that zero lines and margins run through the whole table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from ampft.comparison.cost_findings import Memory
from ampft.comparison.findings import ArmResult, ClassFigures, Comparison
from ampft.comparison.report.arm_styles import ArmStyle
from ampft.comparison.report.drawing import Axis, element, line, picture, text
from ampft.text.escaping import one_line
from ampft.text.numbers import Units, byte_size, level, milliseconds, points, signed

LEFT, RIGHT = 5.0, 95.0  # percent of the cell
MEMORY_PARTS = ("baseline", "weights", "gradients", "optimizer_state", "activations", "rest")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of strips in the first table of a section.

    Attributes:
        name: Name of the section.
        heading: Heading of the column.
        scale: Scale below the heading.
        strips: Strip by the name in the first column of the table.
        explanation: Sentences on how to read the strips.
        keys: Colour patches next to other headings of the table.
    """

    name: str
    heading: str
    scale: Markup
    strips: Mapping[str, Markup]
    explanation: str
    keys: Mapping[str, Markup] = field(default_factory=dict)


def columns(comparison: Comparison, styles: Sequence[ArmStyle]) -> Iterator[Column]:
    """Yield the columns of strips that the comparison has data for."""
    pairs = tuple(zip(comparison.arms, styles, strict=True))
    yield _differences(comparison, pairs, name="modes")
    if any(arm.difference_fp32 for arm in comparison.arms):
        yield _differences(comparison, pairs, name="in-fp32", of_fp32=True)
    axis = step_axis(comparison.arms)
    yield Column(
        name="speed",
        heading="median step of each run, ms",
        scale=strip_axis(axis, lambda s: f"{1000 * s:,.6g}", "Scale: milliseconds per step"),
        strips={arm.name: step_strip(arm, style, axis) for arm, style in pairs if arm.speed},
        explanation="Each mark is a run.",
    )
    axis = memory_axis([arm.memory for arm in comparison.arms if arm.memory is not None])
    yield Column(
        name="memory",
        heading="parts of the peak",
        scale=memory_head(axis),
        strips={
            arm.name: memory_strip(arm.memory, style, axis)
            for arm, style in pairs
            if arm.memory is not None
        },
        explanation="The parts are in the order of the columns. The vertical line marks the peak.",
        keys=part_keys(),
    )
    yield _classes(comparison, pairs)


def _differences(
    comparison: Comparison,
    pairs: Sequence[tuple[ArmResult, ArmStyle]],
    *,
    name: str,
    of_fp32: bool = False,
) -> Column:
    units, axis = comparison.units, difference_axis(comparison, of_fp32=of_fp32)
    wide, narrow = level(1 - comparison.alpha), level(1 - 2 * comparison.alpha)
    dots = (
        f"Dot: mean difference over the seeds. Thin whisker: {wide} confidence interval (CI); "
        f"thick whisker: {narrow} CI, which decides equivalence. Small ticks: individual seeds. "
    )
    band = f" Shaded: the {wide} CI of the placebo."
    has_band = any(arm.is_placebo and arm.difference for arm, _ in pairs)
    return Column(
        name=name,
        heading=f"difference{' in fp32' * of_fp32}{units.difference_suffix}",
        scale=points_head(axis, units),
        strips={
            arm.name: difference_strip(comparison, arm, style, axis, of_fp32=of_fp32)
            for arm, style in pairs
        },
        explanation=dots * any(arm.difference for arm, _ in pairs)
        + f"Dashed lines: the margin of ±{units.margin_with_unit}."
        + band * has_band,
    )


def _classes(comparison: Comparison, pairs: Sequence[tuple[ArmResult, ArmStyle]]) -> Column:
    base, others = pairs[0][0], [(arm, style) for arm, style in pairs[1:] if arm.classes]
    axis = class_axis(row for arm, _ in others for row in arm.classes)
    strips = {}
    for index, row in enumerate(base.classes):
        differences = [(style, arm.classes[index].f1_difference) for arm, style in others]
        drawn = [(style, value) for style, value in differences if value is not None]
        strips[row.name] = class_strip(one_line(row.name) or "blank", drawn, axis)
    return Column(
        name="classes",
        heading="difference, points",
        scale=points_head(axis),
        strips=strips,
        explanation=f"Compare the marks of {comparison.an_arm} with those of the placebo."
        * any(arm.is_placebo for arm, _ in others),
    )


def strip_axis(axis: Axis, label: Callable[[float], str], alt: str) -> Markup:
    """Return the header of a column of strips, with round values above their ticks."""
    marks: list[Markup] = []
    for value in axis.ticks(5):
        marks.append(text(label(value), axis.percent(value), 11, "tick middle"))
        marks.append(line(axis.percent(value), 15, axis.percent(value), 20, "rule"))
    return picture(*marks, height=20, alt=alt, class_="head")


def points_head(axis: Axis, units: Units | None = None) -> Markup:
    """Return the header of a column of differences, in points or in the unit of the metric.

    Args:
        axis: Scale of the column.
        units: Units of the metric; None for points.
    """
    factor = 100 if units is None else units.factor
    ticks = axis.ticks(5)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 0.01
    decimals = max(0, -math.floor(math.log10(factor * step) + 1e-9))
    alt = "Scale: differences" + (" in points" if factor == 100 else "")
    return strip_axis(axis, lambda value: signed(factor * value, decimals), alt)


def difference_axis(comparison: Comparison, *, of_fp32: bool = False) -> Axis:
    """Return a scale that covers all differences, their intervals and seeds, and the margin."""
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
    difference = arm.difference_fp32 if of_fp32 else arm.difference
    parts = [_background(comparison, axis)]
    base = comparison.baseline.name
    if difference is None:
        alt = f"{style.name}: difference to {base} unknown"
        return picture(*parts, height=None, alt=alt, class_="fill")
    for value in difference.per_seed:
        parts.append(line(axis.percent(value), "26%", axis.percent(value), "40%", style.colour))
    for (low, high), class_ in (
        (difference.interval95, "whisker"),
        (difference.interval90, "inner"),
    ):
        ends = axis.percent(low), axis.percent(high)
        parts.append(line(ends[0], "60%", ends[1], "60%", f"{class_} {style.colour}"))
    parts.append(style.mark(axis.percent(difference.estimate), "60%"))
    units = comparison.units
    alt = (
        f"{style.name} minus {base}: {units.difference_with_unit(difference.estimate)}, "
        f"{level(difference.level95)} CI {units.interval(difference.interval95)}; "
        f"margin {units.margin_with_unit}"
    )
    return picture(*parts, height=None, alt=alt, class_="fill")


def class_axis(rows: Iterable[ClassFigures]) -> Axis:
    """Return the scale of differences in F1."""
    return _axis([row.f1_difference or 0.0 for row in rows] + [-0.01, 0.01], around_zero=True)


def class_strip(name: str, differences: Sequence[tuple[ArmStyle, float]], axis: Axis) -> Markup:
    """Return the strip of one class, with a mark per arm at its difference in F1."""
    parts: list[Markup] = [line(axis.percent(0), 0, axis.percent(0), "100%", "zero")]
    if differences:
        ends = [axis.percent(edge([d for _, d in differences])) for edge in (min, max)]
        parts.append(line(ends[0], "50%", ends[1], "50%", "rule"))
    parts += [style.mark(axis.percent(value), "50%") for style, value in differences]
    alt = f"{name}: " + ", ".join(f"{style.name} {points(d)}" for style, d in differences)
    return picture(*parts, height=None, alt=alt, class_="fill")


def step_axis(arms: Sequence[ArmResult]) -> Axis:
    """Return the scale of step times in seconds, from 0."""
    return _axis([0.0, *(s for arm in arms if arm.speed for s in arm.speed.step_seconds)])


def step_strip(arm: ArmResult, style: ArmStyle, axis: Axis) -> Markup:
    """Return the strip of an arm, with a mark per run at its median step time."""
    steps = arm.speed.step_seconds if arm.speed else ()
    rule = line(axis.percent(0), "50%", axis.percent(axis.high), "50%", "rule")
    marks = [style.mark(axis.percent(s), "50%", class_="faint") for s in steps]
    alt = f"{style.name}: median step times of {', '.join(map(milliseconds, steps))} ms"
    return picture(rule, *marks, height=None, alt=alt, class_="fill")


def memory_axis(memories: Sequence[Memory]) -> Axis:
    """Return the scale of memory in bytes, from 0."""
    return _axis([0.0, *(max(_parts_total(memory), memory.peak or 0) for memory in memories)])


def memory_head(axis: Axis) -> Markup:
    """Return the header of a column of bars, with round values in MiB or GiB."""
    unit, name = (2**30, "GiB") if axis.high >= 2**31 else (2**20, "MiB")
    scale = Axis(axis.low / unit, axis.high / unit, axis.start, axis.end)
    return strip_axis(scale, lambda value: f"{value:,.4g} {name}", f"Scale: memory in {name}")


def memory_strip(memory: Memory, style: ArmStyle, axis: Axis) -> Markup:
    """Return the parts of the peak as a stacked bar, and the peak as a vertical line."""
    bars: list[Markup] = []
    descriptions: list[str] = []
    total = 0.0
    for index, part in enumerate(MEMORY_PARTS):
        value = getattr(memory, part)
        if not value:
            continue
        start = axis.at(total)
        width = axis.at(total + value) - start
        total += value
        bars.append(element("rect", x=f"{start:.2f}%", width=f"{width:.2f}%", y="22%",
                            height="56%", class_=f"part p{index}"))  # fmt: skip
        descriptions.append(f"{part.replace('_', ' ')} {byte_size(value)}")
    if memory.peak is not None:
        at = axis.percent(memory.peak)
        bars.append(line(at, "10%", at, "90%", "peak"))
        descriptions.append(f"peak {byte_size(memory.peak)}")
    alt = f"{style.name}: {', '.join(descriptions) or 'not measured'}"
    return picture(*bars, height=None, alt=alt, class_="fill")


def part_keys() -> dict[str, Markup]:
    """Return a colour patch for each part of memory, by its heading in the table."""
    names = ("before loading the model", *(part.replace("_", " ") for part in MEMORY_PARTS[1:]))
    return {
        name: picture(
            element("rect", x=1, y=3, width=14, height=10, class_=f"part p{index}"),
            height=16,
            alt="",
            class_="patch",
            hidden=True,
        )
        for index, name in enumerate(names)
    }


def _background(comparison: Comparison, axis: Axis) -> Markup:
    parts: list[Markup] = []
    placebo = next((arm for arm in comparison.arms if arm.is_placebo), None)
    if placebo is not None and placebo.difference is not None:
        low, high = (axis.at(value) for value in placebo.difference.interval95)
        parts.append(element("rect", x=f"{low:.2f}%", width=f"{high - low:.2f}%", y=0,
                             height="100%", class_="band"))  # fmt: skip
    for value, class_ in ((0.0, "zero"), (comparison.margin, "margin"),
                          (-comparison.margin, "margin")):  # fmt: skip
        parts.append(line(axis.percent(value), 0, axis.percent(value), "100%", class_))
    return Markup("").join(parts)


def _parts_total(memory: Memory) -> float:
    return float(sum(getattr(memory, part) or 0 for part in MEMORY_PARTS))


def _axis(values: Sequence[float], *, around_zero: bool = False) -> Axis:
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    room = 0.06 * (high - low) or 1.0
    return Axis(low - room if around_zero else low, high + room, LEFT, RIGHT)
