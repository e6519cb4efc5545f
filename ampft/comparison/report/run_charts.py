"""Charts: losses, validations and the loss scale over the optimizer steps, and calibration.

Arms are distinguished by colour, dash pattern, shape and name. The colours come from Okabe and Ito
("Color Universal Design", 2008), made darker or lighter per theme until their contrast with the
page is at least 3:1. In the style sheet they are .a0 to .a9.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from ampft.comparison.charts import (
    Axis,
    Plot,
    decimal_tick_label,
    element,
    line,
    picture,
    power_of_two_label,
    text,
)
from ampft.comparison.findings import (
    CALIBRATION_ERROR,
    ArmResult,
    CalibrationBin,
    Comparison,
    TrainingCurve,
)
from ampft.text.escaping import one_line
from ampft.text.numbers import number, percent

LEFT, RIGHT = 9.0, 84.0  # percent; the names of the arms are to the right
NAMES = f"{RIGHT + 2.5}%"
TOP, HEIGHT = 14.0, 250.0  # pixels
MANY_RUNS = 40  # the thin lines of more runs would hide the means
LABEL_GAP = 15.0  # pixels between the baselines of two labels
RUG_ROW_HEIGHT, MAX_RUG_HEIGHT = 5.0, 150.0  # pixels

Points = Mapping[int, float]

BASELINE, PLACEBO, FIRST_MODE, LAST = 0, 1, 2, 9

# Paths around (0, 0), about 9 px high.
_SHAPES = {
    "circle": "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0z",
    "square": "M-4-4h8v8h-8z",
    "diamond": "M0-5.5L5.5 0L0 5.5L-5.5 0z",
    "up": "M0-5.2L5 4H-5z",
    "down": "M0 5.2L5-4H-5z",
    "plus": "M-1.6-5h3.2v3.4h3.4v3.2h-3.4v3.4h-3.2v-3.4h-3.4v-3.2h3.4z",
}
_SHAPE_OF = ("circle", "circle", "circle", "square", "diamond", "up", "down", "plus", "circle",
             "square")  # fmt: skip


@dataclass(frozen=True)
class ArmStyle:
    """The style of one arm in charts."""

    name: str  # Name of the arm, safe to display.
    # Number in the style sheet: .a0 is the baseline, .a1 the placebo, .a2 the first mode.
    number: int

    @property
    def colour(self) -> str:
        """CSS class for stroke and fill."""
        return f"a{self.number}"

    def mark(self, x: str, y: str | float, *, class_: str = "") -> Markup:
        """Return the shape of the arm at a position. The shape of the placebo is hollow."""
        shape = element("path", d=_SHAPES[_SHAPE_OF[self.number]])
        classes = f"mark {self.colour} {class_}".strip()
        return element("svg", shape, x=x, y=y, class_=classes)

    def key(self) -> Markup:
        """Return the line and shape next to the name in a legend."""
        stroke = element("line", x1="0", x2="100%", y1=8, y2=8, class_=f"mean {self.colour}")
        return picture(stroke, self.mark("50%", 8), height=16, alt=None, class_="key")


def arm_styles(arms: Sequence[ArmResult]) -> tuple[ArmStyle, ...]:
    """Return the style of each arm. Colours repeat if there are more modes than colours."""
    styles: list[ArmStyle] = []
    modes = 0
    for index, arm in enumerate(arms):
        color = BASELINE
        if index:
            color = PLACEBO if arm.is_placebo else FIRST_MODE + modes % (LAST - FIRST_MODE + 1)
            modes += not arm.is_placebo
        styles.append(ArmStyle(one_line(arm.name), color))
    return tuple(styles)


@dataclass(frozen=True)
class ArmLines:
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
    every = _lines(comparison.arms, styles, _losses)
    has_differences = loss_difference_chart(comparison, styles) is not None
    lines = [one for one in every if not has_differences or one.style is styles[0] or not one.mean]
    if not lines:
        return None
    tops = [max(run.values()) for one in lines for run in one.runs]
    # The loss of a diverging run would flatten all other lines.
    high = min(max(tops), 1.5 * statistics.median(tops))
    low = min(_values(lines))
    y_axis = _y_axis(0.0 if 0 <= low < 0.4 * high else low, high)
    return _chart(lines, y_axis, decimal_tick_label, alt=_with_ends("Training loss", lines))


def loss_difference_chart(comparison: Comparison, styles: Sequence[ArmStyle]) -> Chart | None:
    """Return the chart of the loss minus the baseline's loss with the same seed.

    None if fewer than two points can be compared.
    """
    base, *others = comparison.arms
    losses = {curve.seed: _losses(curve) for curve in base.curves}

    def difference(one: TrainingCurve) -> Points:
        other = losses.get(one.seed, {})
        return {step: loss - other[step] for step, loss in _losses(one).items() if step in other}

    complete = [
        (arm, style)
        for arm, style in zip(others, styles[1:], strict=True)
        if arm.status == "complete" and base.status == "complete"
    ]
    lines = _lines([arm for arm, _ in complete], [style for _, style in complete], difference)
    if len(_steps(lines)) < 2:
        return None
    y_axis = _y_axis(min(*_values(lines), 0.0), max(*_values(lines), 0.0))
    alt = _with_ends(f"Loss minus the loss of {styles[0].name}", lines)
    return _chart(lines, y_axis, decimal_tick_label, alt=alt)


def validation_chart(comparison: Comparison, styles: Sequence[ArmStyle]) -> Chart | None:
    """Return the chart of the primary metric on validation; None without data."""
    lines = _lines(
        comparison.arms, styles, lambda c: _points(c.validation_steps, c.validation_metric)
    )
    if len(_steps(lines)) < 2:
        return None  # a curve needs two points; the tables have the values of one
    y_axis = _y_axis(min(_values(lines)), max(_values(lines)))
    return _chart(lines, y_axis, decimal_tick_label, alt=_with_ends("Validation metric", lines))


def scale_chart(comparison: Comparison, styles: Sequence[ArmStyle]) -> Chart | None:
    """Return the chart of log2 of the loss scale, with skipped steps; None without a scaler."""

    def logarithms(one: TrainingCurve) -> Points:
        scales = _points(one.steps, one.loss_scale or (None,) * len(one.steps))
        return {step: math.log2(scale) for step, scale in scales.items() if scale > 0}

    # The scale takes few discrete values, so a mean over seeds would not be a scale.
    lines = [replace(one, mean=None) for one in _lines(comparison.arms, styles, logarithms)]
    if not lines:
        return None
    values = _values(lines)
    if len(set(values)) == 1 and not any(c.skipped for arm in comparison.arms for c in arm.curves):
        return None  # nothing happened
    skipped = [
        (style, [c.skipped for c in arm.curves if c.loss_scale is not None])
        for arm, style in zip(comparison.arms, styles, strict=True)
        if any(c.loss_scale is not None for c in arm.curves)
    ]
    alt = "Loss scale over optimizer steps, as powers of two; " + "; ".join(
        f"{style.name} skipped {', '.join(str(len(steps)) for steps in seeds)} steps per seed"
        for style, seeds in skipped
    )
    y_axis = _y_axis(math.floor(min(values)) - 0.5, math.ceil(max(values)) + 0.5)
    rows = [(style, steps) for style, seeds in skipped for steps in seeds]
    return _chart(lines, y_axis, power_of_two_label, alt=alt, rug=rows)


def _losses(one: TrainingCurve) -> Points:
    return _points(one.steps, one.loss)


def _points(steps: Sequence[int], values: Sequence[float | None]) -> Points:
    pairs = zip(steps, values, strict=True)
    return {step: v for step, v in pairs if v is not None and math.isfinite(v)}


def _lines(
    arms: Sequence[ArmResult], styles: Sequence[ArmStyle], of: Callable[[TrainingCurve], Points]
) -> list[ArmLines]:
    lines: list[ArmLines] = []
    for arm, style in zip(arms, styles, strict=True):
        runs = tuple(run for run in map(of, arm.curves) if run)
        if not runs:
            continue
        shared = sorted(set.intersection(*(set(run) for run in runs)))
        has_mean = arm.status == "complete" and len(runs) > 1 and shared
        mean = {step: statistics.fmean(run[step] for run in runs) for step in shared}
        lines.append(ArmLines(style, runs, mean if has_mean else None))
    return lines


def _steps(lines: Sequence[ArmLines]) -> set[int]:
    return {step for one in lines for run in one.runs for step in run}


def _values(lines: Sequence[ArmLines]) -> list[float]:
    return [value for one in lines for run in one.runs for value in run.values()]


def _with_ends(what: str, lines: Sequence[ArmLines]) -> str:
    """Return the text alternative of a chart, with the last value of each arm."""
    last = ", ".join(f"{one.style.name} {number(one.end, 4)}" for one in lines)
    return f"{what} over optimizer steps; at the end {last}"


def _y_axis(low: float, high: float) -> Axis:
    room = 0.04 * (high - low) or abs(high) * 0.05 or 1.0
    return Axis(low - room if low else 0.0, high + room, HEIGHT, TOP)


def _chart(
    lines: Sequence[ArmLines],
    y_axis: Axis,
    label: Callable[[float], str],
    *,
    alt: str,
    rug: Sequence[tuple[ArmStyle, Sequence[int]]] | None = None,
) -> Chart:
    """Return the chart of the lines; with the skipped steps of a rug, they are stairs."""
    is_stepped = rug is not None
    plot = Plot(Axis(0.0, float(max(*_steps(lines), 1)), LEFT, RIGHT), y_axis)
    many = " many" if sum(len(one.runs) for one in lines) > MANY_RUNS else ""
    curves = [
        plot.curve(
            _corners(run) if is_stepped else sorted(run.items()),
            f"{f'seed{many}' if one.mean else 'seed lone'} {one.style.colour}",
        )
        for one in lines
        for run in one.runs
    ]
    curves += [
        plot.curve(sorted(one.mean.items()), f"mean {one.style.colour}")
        for one in lines
        if one.mean
    ]
    marks = [  # of runs with a single point, whose line would be invisible
        one.style.mark(plot.x.percent(step), plot.y.at(value))
        for one in lines
        if len(points := one.mean or one.runs[0]) == 1
        for step, value in points.items()
    ]
    rug_height = min(RUG_ROW_HEIGHT * len(rug or ()), MAX_RUG_HEIGHT)
    below = HEIGHT + rug_height
    ticks = plot.x.ticks(5)
    parts = [
        plot.grid([v for v in y_axis.ticks(5) if not is_stepped or v == round(v)], label),
        *(plot.x.upright(value, below, below + 5, "rule") for value in ticks),
        plot.scale(ticks, "{:,.0f}".format, below, "optimizer step"),
        plot.rule(below),
        plot.area(*curves),
        *marks,
        *_labels(lines, y_axis),
    ]
    if rug:
        parts.append(_rug(rug, Plot(plot.x, Axis(0, 1, below, HEIGHT))))
        parts.append(text("skipped", NAMES, HEIGHT + rug_height / 2 + 4, "tick"))
    svg = picture(*parts, height=below + 36, alt=alt, class_="chart")
    is_clipped = any(value > y_axis.high for value in _values(lines))
    return Chart(svg, tuple(one.style for one in lines), is_clipped)


def _corners(points: Points) -> list[tuple[float, float]]:
    """Return the corners of the stairs through the points."""
    ordered = sorted(points.items())
    between = [(b[0], a[1]) for a, b in itertools.pairwise(ordered)]
    return [p for pair in itertools.zip_longest(ordered, between) for p in pair if p]


def _labels(lines: Sequence[ArmLines], y_axis: Axis) -> list[Markup]:
    """Return labels at the ends of the lines, moved apart where they would overlap."""
    ordered = sorted(lines, key=lambda one: y_axis.at(one.end))
    places: list[float] = []
    for one in ordered:
        at = y_axis.at(one.end)
        places.append(max(at, places[-1] + LABEL_GAP) if places else at)
    if places and places[-1] > HEIGHT:  # then all labels move up
        lowest = [HEIGHT - LABEL_GAP * rank for rank in reversed(range(len(places)))]
        places = [min(pair) for pair in zip(places, lowest, strict=True)]
    parts: list[Markup] = []
    shorter = short_names([one.style.name for one in ordered])
    for one, place in zip(ordered, places, strict=True):
        name, colour = one.style.name, one.style.colour
        leader = line(f"{RIGHT}%", y_axis.at(one.end), f"{RIGHT + 2}%", place, f"leader {colour}")
        parts += [leader, text(shorter[name], NAMES, place + 4, "name")]
    return parts


def short_names(names: Sequence[str], most: int = 10) -> dict[str, str]:
    """Return names of at most so many characters: cut where they stay different."""
    begins = {name: name if len(name) <= most else f"{name[: most - 1]}…" for name in names}
    if len(set(begins.values())) == len(set(names)):
        return begins
    # Names that begin alike differ after their common beginning, or at their ends.
    letters = zip(*(name for name in names if len(name) > most), strict=False)
    first = sum(1 for _ in itertools.takewhile(lambda each: len(set(each)) == 1, letters))
    after = {
        name: begins[name] if len(name) <= most else _cut(f"…{name[first:]}", most)
        for name in names
    }
    if len(set(after.values())) == len(set(names)):
        return after
    return {name: name if len(name) <= most else f"…{name[1 - most :]}" for name in names}


def _cut(name: str, most: int) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _rug(rows: Sequence[tuple[ArmStyle, Sequence[int]]], plot: Plot) -> Markup:
    """Return a row per seed below the plot, with one tick per skipped step."""
    ticks = [
        element(
            "path",
            d="".join(
                f"M{plot.x.inner(step)} {round(1000 * (index + 0.1) / len(rows))}"
                f"v{round(800 / len(rows))}"
                for step in skipped
            ),
            class_=f"skip {style.colour}",
        )
        for index, (style, skipped) in enumerate(rows)
        if skipped
    ]
    return plot.area(*ticks)


PANEL_LEFT, PANEL_RIGHT = 13.0, 96.0  # percent
PANEL_TOP, PANEL_HEIGHT = 8.0, 190.0  # pixels
COUNT_HEIGHT = 34.0  # pixels, for the bars with the number of predictions per bin
MIN_COUNT = 20  # predictions; bins with fewer get a small mark, because their accuracy is noisy


def calibration_panels(
    arms: Sequence[ArmResult], styles: Sequence[ArmStyle]
) -> Iterator[tuple[ArmStyle, float | None, Markup]]:
    """Yield style, calibration error and curve of each arm with predictions.

    The curve is drawn over the baseline's.
    """
    base = (arms[0], styles[0])
    for arm, style in zip(arms, styles, strict=True):
        if any(bin_.count for bin_ in arm.calibration):
            values = arm.metrics.get(CALIBRATION_ERROR)
            error = values.mean if values else None
            yield style, error, _panel(arm, style, base, error)


def _panel(
    arm: ArmResult, style: ArmStyle, base: tuple[ArmResult, ArmStyle], error: float | None
) -> Markup:
    plot = Plot(Axis(0, 1, PANEL_LEFT, PANEL_RIGHT), Axis(0, 1, PANEL_HEIGHT, PANEL_TOP))
    below = PANEL_HEIGHT + COUNT_HEIGHT
    points = _bin_points(arm.calibration)
    curves = [element("path", d="M0 1000L1000 0", class_="margin")]
    if arm is not base[0]:
        curves.append(plot.curve(_bin_points(base[0].calibration), f"seed lone {base[1].colour}"))
    curves.append(plot.curve(points, f"mean {style.colour}"))
    parts = [
        plot.rule(plot.y.at(0.25), "grid"),
        plot.rule(plot.y.at(0.75), "grid"),
        plot.grid((0.0, 0.5, 1.0), decimal_tick_label),
        plot.scale((0.0, 0.5, 1.0), decimal_tick_label, below, "confidence"),
        plot.area(*curves),
    ]
    most = max((bin_.count for bin_ in arm.calibration), default=0)
    for bin_ in arm.calibration:
        if bin_.confidence is not None and bin_.accuracy is not None:
            small = "small" if bin_.count < MIN_COUNT else ""
            place = plot.x.percent(bin_.confidence), plot.y.at(bin_.accuracy)
            parts.append(style.mark(*place, class_=small))
        if bin_.count:
            height = max(1.0, (COUNT_HEIGHT - 6) * bin_.count / most)
            parts.append(plot.x.box(bin_.low, bin_.high, below - height, height, "count"))
    parts.append(plot.rule(below))
    shown = ", ".join(
        f"{percent(accuracy)} correct at confidence {decimal_tick_label(confidence)}"
        for confidence, accuracy in points
    )
    error_text = f", calibration error {percent(error, 1)}" if error is not None else ""
    alt = f"Calibration of {style.name}{error_text}. {shown}"
    return picture(*parts, height=below + 38, alt=alt, class_="chart")


def _bin_points(bins: Sequence[CalibrationBin]) -> list[tuple[float, float]]:
    """Return confidence and accuracy of the bins with at least `MIN_COUNT` predictions."""
    return [
        (bin_.confidence, bin_.accuracy)
        for bin_ in bins
        if bin_.confidence is not None and bin_.accuracy is not None and bin_.count >= MIN_COUNT
    ]
