"""Labels of ticks, and units that only the HTML report shows."""

from __future__ import annotations

import math

from markupsafe import Markup

from ampft.comparison.report.drawing import element
from ampft.text.numbers import MINUS


def fraction(value: float) -> str:
    """Return the label of a tick, without zeros at its end."""
    return f"{value:.4g}".replace("-", MINUS)


def exponent(value: float) -> Markup:
    """Return the label of a tick at a base-2 logarithm: a power of two."""
    power = element("tspan", f"{round(value)}".replace("-", MINUS), dy=-4, class_="power")
    return Markup("2{}").format(power)


def metric(value: float, decimals: int = 4) -> str:
    """Return a metric with a fixed number of decimals."""
    if not math.isfinite(value):
        return "not finite"
    return f"{value:,.{decimals}f}".replace("-", MINUS)
