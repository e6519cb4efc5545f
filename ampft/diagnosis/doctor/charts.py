"""The pictures of doctor.html: exponents of the gradient, loss scales, and errors of modules."""

from __future__ import annotations

import math

from markupsafe import Markup

from ampft.comparison.report.drawing import (
    Axis,
    curve,
    element,
    exponent,
    line,
    picture,
    plot_area,
    text,
)
from ampft.diagnosis.doctor.findings import Alignment, BatchMean, Diagnosis, ModuleError
from ampft.diagnosis.doctor.ranges import BINARY16
from ampft.diagnosis.doctor.show import shown_modules, summary
from ampft.text.numbers import percent

LEFT, RIGHT = 8.0, 98.0  # percent
HEIGHT, TOP, BOTTOM = 290.0, 66.0, 250.0  # pixels
ALIGNMENT_HEIGHT, ALIGNMENT_TOP, ALIGNMENT_BOTTOM = 300.0, 20.0, 262.0
SMALLEST = round(math.log2(BINARY16.smallest_subnormal))
NORMAL = round(math.log2(BINARY16.smallest_normal))
END = 16  # binary16 ends below 2^16
SHOWN_BELOW = 1e-6  # share of the gradient; rarer exponents do not widen the axis


def exponent_chart(diagnosis: Diagnosis) -> Markup | None:
    """Return the histogram of the gradient's exponents with binary16's range; None without one.

    As in figure 2 of Micikevicius et al., "Mixed Precision Training" (2018).
    """
    counts = {int(e): count for e, count in diagnosis.gradient_exponents.items()}
    total = sum(counts.values())
    shown = {e: count / total for e, count in counts.items() if count > SHOWN_BELOW * total}
    if not shown:
        return None
    scale = _scale(diagnosis)
    shift = round(math.log2(scale))
    low = min(*shown, SMALLEST - shift) - 2
    high = max(*shown, END) + 2
    x_axis = Axis(low, high, LEFT, RIGHT)
    y_axis = Axis(0.0, max(shown.values()) * 1.05, BOTTOM, TOP)
    parts = _grid(x_axis, y_axis)
    parts += _range(x_axis, 0, TOP - 44, "fp16 without a loss scale")
    if shift:
        parts += _range(x_axis, shift, TOP - 18, f"fp16 with a loss scale of {scale:,.0f}")
    width = (RIGHT - LEFT) / (high - low) * 0.86
    for e, share in sorted(shown.items()):
        top = y_axis.at(share)
        is_lost = e < SMALLEST - shift
        parts.append(
            element(
                "rect", element("title", f"2^{e}: {percent(share, 2)}"), x=x_axis.percent(e + 0.07),
                y=top, width=f"{width:.3f}%", height=max(BOTTOM - top, 1),
                class_="lost" if is_lost else "kept",
            )
        )  # fmt: skip
    lost = sum(share for e, share in shown.items() if e < SMALLEST)
    lost_scaled = sum(share for e, share in shown.items() if e < SMALLEST - shift)
    alt = (
        f"Histogram of the exponents of the gradient. Below 2^-24: {percent(lost, 1)} without a "
        f"loss scale, {percent(lost_scaled, 1)} with a scale of {scale:g}."
    )
    return picture(*parts, height=HEIGHT, alt=alt, class_="chart")


def lost_chart(diagnosis: Diagnosis) -> Markup | None:
    """Return the share of the gradient that is lost over the loss scale; None without gradients."""
    scales = diagnosis.loss_scales
    if scales is None or not diagnosis.gradient_exponents:
        return None
    points = [(math.log2(float(scale)), share) for scale, share in scales.lost.items()]
    x_axis = Axis(points[0][0], points[-1][0], LEFT, RIGHT)
    top = max(max(share for _, share in points), 2 * scales.tolerated)
    y_axis = Axis(0.0, top, BOTTOM - 30, 20.0)
    parts = []
    if scales.largest is not None and scales.largest < float(2 ** points[-1][0]):
        first = math.log2(scales.largest)
        left = x_axis.at(first + 0.5)  # between the last scale that fits and the next
        parts.append(
            element("rect", x=f"{left:.2f}%", y=20, width=f"{RIGHT - left:.2f}%",
                    height=BOTTOM - 50, class_="band")
        )  # fmt: skip
        parts.append(text("overflow", f"{min(left + 1, 88):.2f}%", 34, "tick"))
    parts += _share_lines(y_axis)
    for value in range(round(x_axis.low), round(x_axis.high) + 1, 4):
        parts.append(text(exponent(value), x_axis.percent(value), BOTTOM - 12, "tick middle"))
    level = y_axis.at(scales.tolerated)
    parts.append(line(f"{LEFT}%", level, f"{RIGHT}%", level, "margin"))
    parts.append(plot_area(x_axis, y_axis, [curve(points, x_axis, y_axis, "mean a0")]))
    alt = f"Share of the gradient below 2^-24 over the loss scale, from {percent(points[0][1], 1)}"
    return picture(*parts, height=BOTTOM, alt=alt, class_="chart")


def alignment_chart(alignment: Alignment) -> Markup | None:
    """Return the errors of outputs and gradients with their intervals; None without errors."""
    modules = shown_modules(alignment)
    if not modules:
        return None
    values = [each.outputs for each in modules]
    values += [each.gradients for each in modules if each.gradients is not None]
    ends = [end for each in values for end in (each.mean, each.high) if end]
    lows = [each.mean for each in values if each.mean > 0]
    y_axis = Axis(
        math.floor(math.log2(min(lows))),
        math.ceil(math.log2(max(ends))),
        ALIGNMENT_BOTTOM,
        ALIGNMENT_TOP,
    )
    x_axis = Axis(-0.5, len(modules) - 0.5, LEFT, RIGHT)
    parts = []
    step = max(1, round((y_axis.high - y_axis.low) / 6))
    for power in range(round(y_axis.low), round(y_axis.high) + 1, step):
        y = y_axis.at(power)
        parts.append(line(f"{LEFT}%", y, f"{RIGHT}%", y, "grid"))
        parts.append(text(exponent(power), f"{LEFT - 0.8}%", y + 4, "tick end"))
    for position, each in enumerate(modules):
        if each.gradients is not None and each.gradients.mean > 0:
            parts += _mark(each, each.gradients, "gradient", position + 0.2, x_axis, y_axis)
        parts += _mark(each, each.outputs, each.role or "carried", position, x_axis, y_axis)
    parts.append(text("first module", f"{LEFT}%", ALIGNMENT_BOTTOM + 20, "tick"))
    parts.append(text("last module", f"{RIGHT}%", ALIGNMENT_BOTTOM + 20, "tick end"))
    alt = (
        f"Relative error of {len(modules)} modules in {alignment.mode}, in the order of the "
        f"forward pass, from 2^{y_axis.low:.0f} to 2^{y_axis.high:.0f}. {summary(alignment)}"
    )
    return picture(*parts, height=ALIGNMENT_HEIGHT, alt=alt, class_="chart")


def _mark(
    module: ModuleError,
    value: BatchMean,
    class_: str,
    position: float,
    x_axis: Axis,
    y_axis: Axis,
) -> list[Markup]:
    """Return a point and its interval."""
    x, y = x_axis.percent(position), y_axis.at(math.log2(value.mean))
    what = "gradient" if class_ == "gradient" else "output"
    label = element("title", f"{module.module}: {what} {value.mean:.2g} ({class_})")
    point = element("circle", label, cx=x, cy=y, r=3 if class_ != "gradient" else 2, class_=class_)
    if value.low is None or value.high is None:
        return [point]
    low = y_axis.at(math.log2(value.low)) if value.low > 0 else ALIGNMENT_BOTTOM
    return [line(x, low, x, y_axis.at(math.log2(value.high)), f"interval {class_}"), point]


def _scale(diagnosis: Diagnosis) -> float:
    scales = diagnosis.loss_scales
    if scales is None or scales.initial is None:
        return 1.0
    return scales.found or scales.largest or 1.0


def _share_lines(y_axis: Axis) -> list[Markup]:
    """Return horizontal lines at round shares, with their labels."""
    parts = []
    for value in y_axis.ticks(4):
        y = y_axis.at(value)
        parts.append(line(f"{LEFT}%", y, f"{RIGHT}%", y, "grid"))
        decimals = 0 if y_axis.high > 0.04 else 1
        parts.append(text(percent(value, decimals), f"{LEFT - 0.8}%", y + 4, "tick end"))
    return parts


def _grid(x_axis: Axis, y_axis: Axis) -> list[Markup]:
    parts = _share_lines(y_axis)
    first = math.ceil(x_axis.low / 8) * 8
    for value in range(first, round(x_axis.high) + 1, 8):
        parts.append(text(exponent(value), x_axis.percent(value), BOTTOM + 18, "tick middle"))
    return parts


def _range(x_axis: Axis, shift: int, y: float, label: str) -> list[Markup]:
    """Return a bar over the exponents that binary16 has, its subnormal part lighter."""
    ends = [x_axis.at(end - shift) for end in (SMALLEST, NORMAL, END)]
    bars = [
        element("rect", x=f"{start:.2f}%", y=y + 6, width=f"{end - start:.2f}%", height=9,
                class_=class_)
        for start, end, class_ in zip(ends, ends[1:], ("subnormal", "normal"), strict=False)
    ]  # fmt: skip
    return [*bars, text(label, f"{ends[0]:.2f}%", y + 2, "tick")]
