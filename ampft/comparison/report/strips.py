"""Charts of one row: what a table shows beside its numbers, on one scale from top to bottom.

A strip fills its cell, so that zero lines and margins run through the whole table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from markupsafe import Markup

from ampft.comparison.findings import ArmResult, ClassFigures, Comparison, Memory
from ampft.comparison.report.arm_styles import Look
from ampft.comparison.report.drawing import Axis, element, joined, line, picture, text
from ampft.text.numbers import Units, level, milliseconds, points, signed, size

LEFT, RIGHT = 5.0, 95.0  # per cent of the cell
MEMORY_PARTS = ("baseline", "weights", "gradients", "optimizer_state", "activations", "rest")


def strip_axis(axis: Axis, label: Callable[[float], str], says: str) -> Markup:
    """Return the head of a column of strips: round values above their ticks."""
    marks: list[Markup] = []
    for value in axis.ticks(5):
        marks.append(text(label(value), axis.percent(value), 11, "tick middle"))
        marks.append(line(axis.percent(value), 15, axis.percent(value), 20, "rule"))
    return picture(*marks, height=20, says=says, class_="head")


def points_head(axis: Axis, units: Units | None = None) -> Markup:
    """Return the head of a column of differences, labelled in points or in the metric's own unit.

    Args:
        axis: Scale of the column.
        units: Units of the metric; None for shares, in points.
    """
    factor = 100 if units is None else units.factor
    ticks = axis.ticks(5)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 0.01
    decimals = max(0, -math.floor(math.log10(factor * step) + 1e-9))
    says = "Scale of differences" + (" in points" if factor == 100 else "")
    return strip_axis(axis, lambda value: signed(factor * value, decimals), says)


def difference_axis(comparison: Comparison, *, of_fp32: bool = False) -> Axis:
    """Return the scale of all differences: their intervals, their seeds, zero and the margin."""
    values = [-comparison.margin, comparison.margin]
    for arm in comparison.arms:
        for found in (arm.difference, arm.difference_fp32 if of_fp32 else None):
            if found is not None:
                values += [*found.interval95, *found.per_seed]
    return _axis(values, around_zero=True)


def difference_strip(
    comparison: Comparison, arm: ArmResult, look: Look, axis: Axis, *, of_fp32: bool = False
) -> Markup:
    """Return dot and whiskers of an arm: estimate, 90 and 95 % interval, seeds as small ticks."""
    found = arm.difference_fp32 if of_fp32 else arm.difference
    parts = [_ground(comparison, axis)]
    base = comparison.baseline.name
    if found is None:
        says = f"{look.name}: no difference to {base}"
        return picture(*parts, height=None, says=says, class_="fill")
    for value in found.per_seed:
        parts.append(line(axis.percent(value), "26%", axis.percent(value), "40%", look.colour))
    for (low, high), class_ in ((found.interval95, "whisker"), (found.interval90, "inner")):
        ends = axis.percent(low), axis.percent(high)
        parts.append(line(ends[0], "60%", ends[1], "60%", f"{class_} {look.colour}"))
    parts.append(look.mark(axis.percent(found.estimate), "60%"))
    units = comparison.units
    says = (
        f"{look.name} minus {base}: {units.in_words(found.estimate)}, "
        f"{level(found.level95)} interval {units.interval(found.interval95)}; "
        f"the margin is {units.difference(comparison.margin)}"
    )
    return picture(*parts, height=None, says=says, class_="fill")


def class_axis(rows: Iterable[ClassFigures]) -> Axis:
    """Return the scale of differences in F1."""
    return _axis([row.f1_difference or 0.0 for row in rows] + [-0.01, 0.01], around_zero=True)


def class_strip(name: str, differences: Sequence[tuple[Look, float]], axis: Axis) -> Markup:
    """Return one class: a mark per arm at its difference in F1."""
    parts: list[Markup] = [line(axis.percent(0), 0, axis.percent(0), "100%", "zero")]
    if differences:
        ends = [axis.percent(edge([d for _, d in differences])) for edge in (min, max)]
        parts.append(line(ends[0], "50%", ends[1], "50%", "rule"))
    parts += [look.mark(axis.percent(value), "50%") for look, value in differences]
    says = f"{name}: " + ", ".join(f"{look.name} {points(d)}" for look, d in differences)
    return picture(*parts, height=None, says=says, class_="fill")


def step_axis(arms: Sequence[ArmResult]) -> Axis:
    """Return the scale of step times, seconds from 0."""
    return _axis([0.0, *(s for arm in arms if arm.speed for s in arm.speed.step_seconds)])


def step_strip(arm: ArmResult, look: Look, axis: Axis) -> Markup:
    """Return the runs of an arm: one mark per run at its median step."""
    steps = arm.speed.step_seconds if arm.speed else ()
    rule = line(axis.percent(0), "50%", axis.percent(axis.high), "50%", "rule")
    marks = [look.mark(axis.percent(s), "50%", class_="faint") for s in steps]
    says = f"{look.name}: median steps of {', '.join(map(milliseconds, steps))} ms"
    return picture(rule, *marks, height=None, says=says, class_="fill")


def memory_axis(found: Sequence[Memory]) -> Axis:
    """Return the scale of memory, bytes from 0."""
    return _axis([0.0, *(max(_parts_total(memory), memory.peak or 0) for memory in found)])


def memory_head(axis: Axis) -> Markup:
    """Return the head of a column of bars, at round values of MiB or GiB."""
    unit, name = (2**30, "GiB") if axis.high >= 2**31 else (2**20, "MiB")
    scale = Axis(axis.low / unit, axis.high / unit, axis.start, axis.end)
    return strip_axis(scale, lambda value: f"{value:,.4g} {name}", f"Scale of memory in {name}")


def memory_strip(memory: Memory, look: Look, axis: Axis) -> Markup:
    """Return the parts of the peak as one bar; the peak as a line where it is not their sum."""
    bars: list[Markup] = []
    said: list[str] = []
    below = 0.0
    for index, part in enumerate(MEMORY_PARTS):
        value = getattr(memory, part)
        if not value:
            continue
        start = axis.at(below)
        width = axis.at(below + value) - start
        below += value
        bars.append(element("rect", x=f"{start:.2f}%", width=f"{width:.2f}%", y="22%",
                            height="56%", class_=f"part p{index}"))  # fmt: skip
        said.append(f"{part.replace('_', ' ')} {size(value)}")
    if memory.peak is not None:
        at = axis.percent(memory.peak)
        bars.append(line(at, "10%", at, "90%", "peak"))
        said.append(f"peak {size(memory.peak)}")
    says = f"{look.name}: {', '.join(said) or 'not measured'}"
    return picture(*bars, height=None, says=says, class_="fill")


def part_keys() -> tuple[tuple[Markup, str], ...]:
    """Return a patch and a name for each part of memory."""
    names = ("process before the model", *(part.replace("_", " ") for part in MEMORY_PARTS[1:]))
    return tuple(
        (
            picture(
                element("rect", x=1, y=3, width=14, height=10, class_=f"part p{index}"),
                height=16, says="", class_="patch", hidden=True,
            ),
            name,
        )
        for index, name in enumerate(names)
    )  # fmt: skip


def _ground(comparison: Comparison, axis: Axis) -> Markup:
    parts: list[Markup] = []
    twin = next((arm for arm in comparison.arms if arm.is_placebo), None)
    if twin is not None and twin.difference is not None:
        low, high = (axis.at(value) for value in twin.difference.interval95)
        parts.append(element("rect", x=f"{low:.2f}%", width=f"{high - low:.2f}%", y=0,
                             height="100%", class_="band"))  # fmt: skip
    for value, class_ in ((0.0, "zero"), (comparison.margin, "margin"),
                          (-comparison.margin, "margin")):  # fmt: skip
        parts.append(line(axis.percent(value), 0, axis.percent(value), "100%", class_))
    return joined(parts)


def _parts_total(memory: Memory) -> float:
    return float(sum(getattr(memory, part) or 0 for part in MEMORY_PARTS))


def _axis(values: Sequence[float], *, around_zero: bool = False) -> Axis:
    finite = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(finite), max(finite)
    room = 0.06 * (high - low) or 1.0
    return Axis(low - room if around_zero else low, high + room, LEFT, RIGHT)
