"""Labels of ticks, and units that only the HTML report shows."""

from __future__ import annotations

import math

from ampft.comparison.numbers import MINUS

_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def fraction(value: float) -> str:
    """Return the label of a tick, without zeros at its end."""
    return f"{value:.4g}".replace("-", MINUS)


def exponent(value: float) -> str:
    """Return the label of a tick at a base-2 logarithm: a power of two."""
    return f"2{str(round(value)).translate(_SUPERSCRIPT)}"


def metric(value: float, decimals: int = 4) -> str:
    """Return a metric with a fixed number of decimals."""
    if not math.isfinite(value):
        return "not finite"
    return f"{value:,.{decimals}f}".replace("-", MINUS)
