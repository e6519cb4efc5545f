"""How often predictions of a confidence are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ampft.comparison.findings import CALIBRATION_ERROR, ArmResult, CalibrationBin
from ampft.comparison.report.arm_styles import Look
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

LEFT, RIGHT = 13.0, 96.0  # per cent
TOP, HEIGHT = 8.0, 190.0  # pixels
COUNTS = 34.0  # pixels, for the bars of how many predictions a bin holds
FEW = 20  # predictions; the accuracy of fewer says little, and its mark is small


@dataclass(frozen=True)
class Panel:
    """One arm's curve over the baseline's."""

    look: Look
    error: float | None
    svg: Markup


def calibration_panels(arms: Sequence[ArmResult], looks: Sequence[Look]) -> tuple[Panel, ...]:
    """Return a panel for each arm that has predictions; the baseline's line in each."""
    base = arms[0]
    return tuple(
        Panel(look, _error(arm), _panel(arm, look, base, looks[0]))
        for arm, look in zip(arms, looks, strict=True)
        if any(found.count for found in arm.calibration)
    )


def _error(arm: ArmResult) -> float | None:
    found = arm.metrics.get(CALIBRATION_ERROR)
    return found.mean if found else None


def _panel(arm: ArmResult, look: Look, base: ArmResult, base_look: Look) -> Markup:
    across, up = Axis(0, 1, LEFT, RIGHT), Axis(0, 1, HEIGHT, TOP)
    lines = [element("path", d="M0 1000L1000 0", class_="margin")]
    if arm is not base:
        lines.append(curve(_pairs(base.calibration), across, up, f"seed lone {base_look.colour}"))
    lines.append(curve(_pairs(arm.calibration), across, up, f"mean {look.colour}"))
    parts = [*_grid(across, up), plot_area(across, up, lines)]
    for one in arm.calibration:
        if one.confidence is not None and one.accuracy is not None:
            small = "small" if one.count < FEW else ""
            x, y = across.percent(one.confidence), up.at(one.accuracy)
            parts.append(look.mark(x, y, class_=small))
    parts += _bars(arm.calibration, across)
    return picture(*parts, height=HEIGHT + COUNTS + 38, says=_says(arm, look), class_="chart")


def _pairs(bins: Sequence[CalibrationBin]) -> list[tuple[float, float]]:
    """Where the curve runs: through the bins that hold enough to be believed."""
    return [
        (one.confidence, one.accuracy)
        for one in bins
        if one.confidence is not None and one.accuracy is not None and one.count >= FEW
    ]


def _grid(across: Axis, up: Axis) -> list[Markup]:
    parts: list[Markup] = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        y, x = up.at(value), across.percent(value)
        parts.append(line(f"{LEFT}%", y, f"{RIGHT}%", y, "grid"))
        if value in (0.0, 0.5, 1.0):
            parts.append(text(fraction(value), f"{LEFT - 2}%", y + 4, "tick end"))
            parts.append(text(fraction(value), x, HEIGHT + COUNTS + 18, "tick middle"))
    parts.append(text("confidence", f"{RIGHT}%", HEIGHT + COUNTS + 34, "tick end"))
    return parts


def _bars(bins: Sequence[CalibrationBin], across: Axis) -> list[Markup]:
    most = max((one.count for one in bins), default=0)
    parts: list[Markup] = []
    for one in bins:
        if one.count:
            height = max(1.0, (COUNTS - 6) * one.count / most)
            left, right = across.at(one.low), across.at(one.high)
            bar = {"x": f"{left:.2f}%", "width": f"{right - left:.2f}%", "class_": "count"}
            parts.append(element("rect", y=HEIGHT + COUNTS - height, height=height, **bar))
    below = HEIGHT + COUNTS
    parts.append(line(f"{LEFT}%", below, f"{RIGHT}%", below, "rule"))
    return parts


def _says(arm: ArmResult, look: Look) -> str:
    error = _error(arm)
    words = f", calibration error {percent(error, 1)}" if error is not None else ""
    said = ", ".join(
        f"{percent(one.accuracy)} right at confidence {fraction(one.confidence)}"
        for one in arm.calibration
        if one.confidence is not None and one.accuracy is not None and one.count >= FEW
    )
    return f"Calibration of {look.name}{words}. {said}"
