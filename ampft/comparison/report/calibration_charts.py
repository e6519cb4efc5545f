"""Calibration charts: accuracy of the predictions by confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ampft.comparison.findings import CALIBRATION_ERROR, ArmResult, CalibrationBin
from ampft.comparison.report.arm_styles import ArmStyle
from ampft.comparison.report.drawing import (
    Axis,
    curve,
    element,
    fraction,
    line,
    picture,
    plot_area,
    text,
)
from ampft.text.numbers import percent

LEFT, RIGHT = 13.0, 96.0  # percent
TOP, HEIGHT = 8.0, 190.0  # pixels
COUNT_HEIGHT = 34.0  # pixels, for the bars with the number of predictions per bin
MIN_COUNT = 20  # predictions; bins with fewer get a small mark, because their accuracy is noisy


@dataclass(frozen=True)
class Panel:
    """The calibration curve of one arm, with the baseline's curve."""

    style: ArmStyle
    error: float | None
    svg: Markup


def calibration_panels(arms: Sequence[ArmResult], styles: Sequence[ArmStyle]) -> tuple[Panel, ...]:
    """Return a panel for each arm with predictions, which also shows the baseline."""
    base = arms[0]
    return tuple(
        Panel(style, _error(arm), _panel(arm, style, base, styles[0]))
        for arm, style in zip(arms, styles, strict=True)
        if any(bin_.count for bin_ in arm.calibration)
    )


def _error(arm: ArmResult) -> float | None:
    values = arm.metrics.get(CALIBRATION_ERROR)
    return values.mean if values else None


def _panel(arm: ArmResult, style: ArmStyle, base: ArmResult, base_style: ArmStyle) -> Markup:
    x_axis, y_axis = Axis(0, 1, LEFT, RIGHT), Axis(0, 1, HEIGHT, TOP)
    lines = [element("path", d="M0 1000L1000 0", class_="margin")]
    if arm is not base:
        lines.append(
            curve(_pairs(base.calibration), x_axis, y_axis, f"seed lone {base_style.colour}")
        )
    lines.append(curve(_pairs(arm.calibration), x_axis, y_axis, f"mean {style.colour}"))
    parts = [*_grid(x_axis, y_axis), plot_area(x_axis, y_axis, lines)]
    for bin_ in arm.calibration:
        if bin_.confidence is not None and bin_.accuracy is not None:
            small = "small" if bin_.count < MIN_COUNT else ""
            x, y = x_axis.percent(bin_.confidence), y_axis.at(bin_.accuracy)
            parts.append(style.mark(x, y, class_=small))
    parts += _bars(arm.calibration, x_axis)
    return picture(
        *parts, height=HEIGHT + COUNT_HEIGHT + 38, alt=_alt_text(arm, style), class_="chart"
    )


def _pairs(bins: Sequence[CalibrationBin]) -> list[tuple[float, float]]:
    """Return the points of the curve: bins with at least `MIN_COUNT` predictions."""
    return [
        (bin_.confidence, bin_.accuracy)
        for bin_ in bins
        if bin_.confidence is not None and bin_.accuracy is not None and bin_.count >= MIN_COUNT
    ]


def _grid(x_axis: Axis, y_axis: Axis) -> list[Markup]:
    parts: list[Markup] = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        y, x = y_axis.at(value), x_axis.percent(value)
        parts.append(line(f"{LEFT}%", y, f"{RIGHT}%", y, "grid"))
        if value in (0.0, 0.5, 1.0):
            parts.append(text(fraction(value), f"{LEFT - 2}%", y + 4, "tick end"))
            parts.append(text(fraction(value), x, HEIGHT + COUNT_HEIGHT + 18, "tick middle"))
    parts.append(text("confidence", f"{RIGHT}%", HEIGHT + COUNT_HEIGHT + 34, "tick end"))
    return parts


def _bars(bins: Sequence[CalibrationBin], x_axis: Axis) -> list[Markup]:
    max_count = max((bin_.count for bin_ in bins), default=0)
    parts: list[Markup] = []
    for bin_ in bins:
        if bin_.count:
            height = max(1.0, (COUNT_HEIGHT - 6) * bin_.count / max_count)
            left, right = x_axis.at(bin_.low), x_axis.at(bin_.high)
            bar = {"x": f"{left:.2f}%", "width": f"{right - left:.2f}%", "class_": "count"}
            parts.append(element("rect", y=HEIGHT + COUNT_HEIGHT - height, height=height, **bar))
    below = HEIGHT + COUNT_HEIGHT
    parts.append(line(f"{LEFT}%", below, f"{RIGHT}%", below, "rule"))
    return parts


def _alt_text(arm: ArmResult, style: ArmStyle) -> str:
    error = _error(arm)
    error_text = f", calibration error {percent(error, 1)}" if error is not None else ""
    points = ", ".join(
        f"{percent(bin_.accuracy)} correct at confidence {fraction(bin_.confidence)}"
        for bin_ in arm.calibration
        if bin_.confidence is not None and bin_.accuracy is not None and bin_.count >= MIN_COUNT
    )
    return f"Calibration of {style.name}{error_text}. {points}"
