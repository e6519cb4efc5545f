"""The pictures of doctor.html: exponents of the gradient, and what each loss scale loses."""

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
from ampft.diagnosis.doctor.findings import Diagnosis
from ampft.diagnosis.doctor.ranges import BINARY16
from ampft.text.numbers import percent

LEFT, RIGHT = 8.0, 98.0  # percent
HEIGHT, TOP, BOTTOM = 290.0, 66.0, 250.0  # pixels
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
