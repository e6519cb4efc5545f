"""Calibration charts: accuracy of the predictions by confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ampft.comparison.findings import CALIBRATION_ERROR, ArmResult, CalibrationBin
from ampft.comparison.report.arm_styles import ArmStyle
from ampft.text.charts import Axis, Plot, element, fraction, picture
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
    base = (arms[0], styles[0])
    panels: list[Panel] = []
    for arm, style in zip(arms, styles, strict=True):
        if any(bin_.count for bin_ in arm.calibration):
            values = arm.metrics.get(CALIBRATION_ERROR)
            error = values.mean if values else None
            panels.append(Panel(style, error, _panel(arm, style, base, error)))
    return tuple(panels)


def _panel(
    arm: ArmResult, style: ArmStyle, base: tuple[ArmResult, ArmStyle], error: float | None
) -> Markup:
    plot = Plot(Axis(0, 1, LEFT, RIGHT), Axis(0, 1, HEIGHT, TOP))
    below = HEIGHT + COUNT_HEIGHT
    points = _points(arm.calibration)
    curves = [element("path", d="M0 1000L1000 0", class_="margin")]
    if arm is not base[0]:
        curves.append(plot.curve(_points(base[0].calibration), f"seed lone {base[1].colour}"))
    curves.append(plot.curve(points, f"mean {style.colour}"))
    parts = [
        plot.rule(plot.y.at(0.25), "grid"),
        plot.rule(plot.y.at(0.75), "grid"),
        plot.grid((0.0, 0.5, 1.0), fraction),
        plot.scale((0.0, 0.5, 1.0), fraction, below, "confidence"),
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
        f"{percent(accuracy)} correct at confidence {fraction(confidence)}"
        for confidence, accuracy in points
    )
    error_text = f", calibration error {percent(error, 1)}" if error is not None else ""
    alt = f"Calibration of {style.name}{error_text}. {shown}"
    return picture(*parts, height=below + 38, alt=alt, class_="chart")


def _points(bins: Sequence[CalibrationBin]) -> list[tuple[float, float]]:
    """Return confidence and accuracy of the bins with at least `MIN_COUNT` predictions."""
    return [
        (bin_.confidence, bin_.accuracy)
        for bin_ in bins
        if bin_.confidence is not None and bin_.accuracy is not None and bin_.count >= MIN_COUNT
    ]
