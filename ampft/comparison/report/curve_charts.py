"""Training charts: loss, validation metric and loss scale over the optimizer steps."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from ampft.comparison.findings import ArmResult, Comparison, Curve
from ampft.comparison.report.arm_styles import ArmStyle
from ampft.comparison.report.drawing import (
    Axis,
    curve,
    element,
    exponent,
    fraction,
    line,
    picture,
    plot_area,
    text,
)
from ampft.text.numbers import number

LEFT, RIGHT = 9.0, 84.0  # percent; the names of the arms are to the right
TOP, HEIGHT = 14.0, 250.0  # pixels
MANY_RUNS = 40  # the thin lines of more runs would hide the means
LABEL_GAP = 15.0  # pixels between the baselines of two labels
RUG_ROW_HEIGHT, MAX_RUG_HEIGHT = 5.0, 150.0  # pixels

Points = Mapping[int, float]


@dataclass(frozen=True)
class Lines:
    """The runs of one arm in one chart: thin lines, and their mean if the arm has one."""

    style: ArmStyle
    runs: tuple[Points, ...]
    mean: Points | None

    @property
    def end(self) -> float:
        """Value at the label: the last one of the mean, or of the longest run without a mean."""
        points = self.mean or max(self.runs, key=lambda run: max(run, default=-1))
        return points[max(points)]


@dataclass(frozen=True)
class Chart:
    """A chart with facts for its caption."""

    svg: Markup
    styles: tuple[ArmStyle, ...]
    is_clipped: bool


def loss_chart(comparison: Comparison, styles: Sequence[ArmStyle]) -> Chart | None:
    """Return the chart of the training loss; None without data.

    It shows the baseline and the arms without a mean. The curves of the others would coincide with
    the baseline's curves; `loss_difference_chart` shows how they differ.
    """
    every = _lines(comparison.arms, styles, lambda c: _points(c.steps, c.loss))
    has_differences = loss_difference_chart(comparison, styles) is not None
    lines = [one for one in every if not has_differences or one.style is styles[0] or not one.mean]
    if not lines:
        return None
    tops = [max(run.values()) for one in lines for run in one.runs]
    # The loss of a diverging run would flatten all other lines.
    high = min(max(tops), 1.5 * statistics.median(tops))
    low = min(value for one in lines for run in one.runs for value in run.values())
    y_axis = _y_axis(0.0 if 0 <= low < 0.4 * high else low, high)
    last = ", ".join(f"{one.style.name} {number(one.end, 4)}" for one in lines)
    return _chart(
        lines, y_axis, fraction, alt=f"Training loss over optimizer steps; at the end {last}"
    )


def loss_difference_chart(comparison: Comparison, styles: Sequence[ArmStyle]) -> Chart | None:
    """Return the chart of the loss minus the baseline's loss with the same seed.

    None if fewer than two points can be compared.
    """
    base, *others = comparison.arms
    losses = {curve.seed: _points(curve.steps, curve.loss) for curve in base.curves}

    def difference(one: Curve) -> Points:
        other = losses.get(one.seed, {})
        points = _points(one.steps, one.loss)
        return {step: points[step] - other[step] for step in points if step in other}

    complete = [
        (arm, style)
        for arm, style in zip(others, styles[1:], strict=True)
        if arm.status == "complete" and base.status == "complete"
    ]
    lines = _lines([arm for arm, _ in complete], [style for _, style in complete], difference)
    steps = {step for one in lines for run in one.runs for step in run}
    if len(steps) < 2:
        return None
    values = [value for one in lines for run in one.runs for value in run.values()]
    last = ", ".join(f"{one.style.name} {number(one.end, 4)}" for one in lines)
    alt = f"Loss minus that of {styles[0].name} over optimizer steps; at the end {last}"
    return _chart(lines, _y_axis(min(*values, 0.0), max(*values, 0.0)), fraction, alt=alt)


def validation_chart(comparison: Comparison, styles: Sequence[ArmStyle]) -> Chart | None:
    """Return the chart of the primary metric on validation; None without data."""
    lines = _lines(
        comparison.arms, styles, lambda c: _points(c.validation_steps, c.validation_metric)
    )
    if len({step for one in lines for run in one.runs for step in run}) < 2:
        return None  # a curve needs two points; the tables have the values of one
    values = [value for one in lines for run in one.runs for value in run.values()]
    last = ", ".join(f"{one.style.name} {number(one.end, 4)}" for one in lines)
    alt = f"Validation metric over optimizer steps; at the end {last}"
    return _chart(lines, _y_axis(min(values), max(values)), fraction, alt=alt)


def scale_chart(comparison: Comparison, styles: Sequence[ArmStyle]) -> Chart | None:
    """Return the chart of log2 of the loss scale, with skipped steps; None without a scaler."""

    def logarithms(one: Curve) -> Points:
        scales = one.loss_scale or ()
        return {
            step: math.log2(scale)
            for step, scale in zip(one.steps, scales, strict=False)
            if scale is not None and math.isfinite(scale) and scale > 0
        }

    # The scale takes few discrete values, so a mean over seeds would not be a scale.
    lines = [replace(one, mean=None) for one in _lines(comparison.arms, styles, logarithms)]
    if not lines:
        return None
    values = [value for one in lines for run in one.runs for value in run.values()]
    if len(set(values)) == 1 and not any(c.skipped for arm in comparison.arms for c in arm.curves):
        return None  # nothing happened
    y_axis = _y_axis(math.floor(min(values)) - 0.5, math.ceil(max(values)) + 0.5)
    rugs = [
        (style, [c.skipped for c in arm.curves if c.loss_scale is not None])
        for arm, style in zip(comparison.arms, styles, strict=True)
        if any(c.loss_scale is not None for c in arm.curves)
    ]
    alt = "Loss scale over optimizer steps, as powers of two; " + "; ".join(
        f"{style.name} skipped {', '.join(str(len(s)) for s in seeds)} steps per seed"
        for style, seeds in rugs
    )
    return _chart(lines, y_axis, exponent, alt=alt, rugs=rugs, is_stepped=True)


def _points(steps: Sequence[int], values: Sequence[float | None]) -> Points:
    pairs = zip(steps, values, strict=True)
    return {step: v for step, v in pairs if v is not None and math.isfinite(v)}


def _lines(
    arms: Sequence[ArmResult], styles: Sequence[ArmStyle], of: Callable[[Curve], Points]
) -> list[Lines]:
    lines: list[Lines] = []
    for arm, style in zip(arms, styles, strict=True):
        runs = tuple(run for run in map(of, arm.curves) if run)
        if not runs:
            continue
        shared = sorted(set.intersection(*(set(run) for run in runs)))
        has_mean = arm.status == "complete" and len(runs) > 1 and shared
        mean = {step: statistics.fmean(run[step] for run in runs) for step in shared}
        lines.append(Lines(style, runs, mean if has_mean else None))
    return lines


def _y_axis(low: float, high: float) -> Axis:
    room = 0.04 * (high - low) or abs(high) * 0.05 or 1.0
    return Axis(low - room if low else 0.0, high + room, HEIGHT, TOP)


def _chart(
    lines: Sequence[Lines],
    y_axis: Axis,
    label: Callable[[float], str],
    *,
    alt: str,
    rugs: Sequence[tuple[ArmStyle, Sequence[Sequence[int]]]] = (),
    is_stepped: bool = False,
) -> Chart:
    last = max(step for one in lines for run in one.runs for step in run)
    x_axis = Axis(0.0, float(max(last, 1)), LEFT, RIGHT)
    curves: list[Markup] = []
    many = " many" if sum(len(one.runs) for one in lines) > MANY_RUNS else ""
    for one in lines:
        thin = f"seed{many}" if one.mean else "seed lone"
        curves += [
            _curve(run, x_axis, y_axis, f"{thin} {one.style.colour}", is_stepped)
            for run in one.runs
        ]
    curves += [
        _curve(o.mean, x_axis, y_axis, f"mean {o.style.colour}", False) for o in lines if o.mean
    ]
    rows = [(style, skipped) for style, seeds in rugs for skipped in seeds]
    rug = min(RUG_ROW_HEIGHT * len(rows), MAX_RUG_HEIGHT)
    parts = [
        *_grid(x_axis, y_axis, label, below=HEIGHT + rug, integers_only=is_stepped),
        plot_area(x_axis, y_axis, curves),
        *_single_points(lines, x_axis, y_axis),
        *_labels(lines, y_axis),
    ]
    if rows:
        parts.append(_rug(rows, x_axis, rug))
        parts.append(text("skipped", f"{RIGHT + 2.5}%", HEIGHT + rug / 2 + 4, "tick"))
    height = HEIGHT + rug + 36
    is_clipped = any(v > y_axis.high for one in lines for run in one.runs for v in run.values())
    svg = picture(*parts, height=height, alt=alt, class_="chart")
    return Chart(svg, tuple(one.style for one in lines), is_clipped)


def _curve(points: Points, x_axis: Axis, y_axis: Axis, class_: str, is_stepped: bool) -> Markup:
    ordered = [(float(step), points[step]) for step in sorted(points)]
    if is_stepped:
        corners = [(b[0], a[1]) for a, b in itertools.pairwise(ordered)]
        ordered = [p for pair in itertools.zip_longest(ordered, corners) for p in pair if p]
    return curve(ordered, x_axis, y_axis, class_)


def _single_points(lines: Sequence[Lines], x_axis: Axis, y_axis: Axis) -> list[Markup]:
    """Return marks of runs with a single point, whose line would be invisible."""
    single = [(one, points) for one in lines if len(points := one.mean or one.runs[0]) == 1]
    return [
        one.style.mark(x_axis.percent(step), y_axis.at(value))
        for one, points in single
        for step, value in points.items()
    ]


def _grid(
    x_axis: Axis, y_axis: Axis, label: Callable[[float], str], *, below: float, integers_only: bool
) -> list[Markup]:
    left, right = f"{LEFT}%", f"{RIGHT}%"
    parts: list[Markup] = []
    for value in y_axis.ticks(5):
        if integers_only and value != round(value):
            continue
        y = y_axis.at(value)
        parts.append(line(left, y, right, y, "grid"))
        parts.append(text(label(value), f"{LEFT - 1}%", y + 4, "tick end"))
    for value in x_axis.ticks(5):
        x = x_axis.percent(value)
        parts.append(line(x, below, x, below + 5, "rule"))
        parts.append(text(f"{value:,.0f}", x, below + 18, "tick middle"))
    parts.append(line(left, below, right, below, "rule"))
    parts.append(text("optimizer step", right, below + 32, "tick end"))
    return parts


def _labels(lines: Sequence[Lines], y_axis: Axis) -> list[Markup]:
    """Return labels at the ends of the lines, moved apart where they would overlap."""
    ordered = sorted(lines, key=lambda one: y_axis.at(one.end))
    places: list[float] = []
    for one in ordered:
        at = y_axis.at(one.end)
        places.append(max(at, places[-1] + LABEL_GAP) if places else at)
    # If labels are moved beyond the bottom, all of them move up.
    excess = max(0.0, places[-1] - HEIGHT) if places else 0.0
    parts: list[Markup] = []
    for index in reversed(range(len(places))):
        limit = HEIGHT - LABEL_GAP * (len(places) - 1 - index)
        places[index] = min(places[index], limit) if excess else places[index]
    for one, place in zip(ordered, places, strict=True):
        start, end = f"{RIGHT}%", f"{RIGHT + 2}%"
        leader = line(start, y_axis.at(one.end), end, place, f"leader {one.style.colour}")
        parts += [leader, text(_short(one.style.name), f"{RIGHT + 2.5}%", place + 4, "name")]
    return parts


def _short(name: str) -> str:
    return name if len(name) <= 10 else f"{name[:9]}…"


def _rug(rows: Sequence[tuple[ArmStyle, Sequence[int]]], x_axis: Axis, height: float) -> Markup:
    """Return a row per seed below the plot, with one tick per skipped step."""
    ticks = [
        element(
            "path",
            d="".join(
                f"M{x_axis.inner(step)} {round(1000 * (index + 0.1) / len(rows))}"
                f"v{round(800 / len(rows))}"
                for step in skipped
            ),
            class_=f"skip {style.colour}",
        )
        for index, (style, skipped) in enumerate(rows)
        if skipped
    ]
    return plot_area(x_axis, Axis(0, 1, HEIGHT + height, HEIGHT), ticks)
