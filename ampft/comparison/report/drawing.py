"""Inline SVG from escaped parts, with widths in per cent so that text keeps its size everywhere.

A picture has no viewBox: it is as wide as its place, and horizontal positions are percentages of
that, while vertical ones are pixels. A phone and a wide screen then show the same characters at
the same size. Lines of many points lie in a nested viewBox of 1000 x 1000 that is stretched.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from ampft.text.escaping import inert
from ampft.text.numbers import MINUS

_BREAKS = re.compile(r"[ \t\r\n\f\v]+")
INNER = 1000  # side of the stretched viewBox of a plot area


def shown(text: str) -> str:
    """Return foreign text on one line, without characters that move, hide or reverse others."""
    return inert(_BREAKS.sub(" ", text).strip())


def element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element; children and values are escaped unless they are Markup.

    Args:
        tag: Its name, ours.
        children: Text or elements.
        attributes: `class_` is class, and an underscore a hyphen elsewhere; None is left out.
    """
    values = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inside = "".join(escape(child) for child in children)
    # Every part is escaped.
    return Markup(f"<{tag}{values}>{inside}</{tag}>")


def joined(parts: Iterable[str]) -> Markup:
    """Return the parts one after another, escaped unless they are Markup."""
    return Markup("").join(parts)


def picture(
    *children: str, height: float | None, says: str, class_: str, hidden: bool = False
) -> Markup:
    """Return an SVG that is as wide as its place.

    Args:
        children: Elements.
        height: Pixels; None where the style sheet stretches it.
        says: What a reader sees in it, in words; the text alternative.
        class_: Of the style sheet.
        hidden: Whether it repeats what stands beside it, so that nobody needs it read out.
    """
    if hidden:
        return element("svg", *children, class_=class_, height=height, aria_hidden="true")
    title = element("title", says)
    return element(
        "svg", title, *children, class_=class_, height=height, role="img", aria_label=says
    )


def text(words: str, x: str, y: float | str, class_: str = "", **attributes: str) -> Markup:
    """Return a label at `x` (a percentage) and `y` (pixels or a percentage)."""
    return element("text", words, x=x, y=y, class_=class_ or None, **attributes)


def line(x1: str, y1: float | str, x2: str, y2: float | str, class_: str) -> Markup:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` on positions from `start` to `end`.

    Positions are per cent of the width or pixels of the height, as the axis is used; `end` may be
    less than `start`. Values beyond the ends lie on the ends.
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the position of a value."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def percent(self, value: float) -> str:
        """Return the position as a percentage."""
        return f"{_value(self.at(value))}%"

    def inner(self, value: float) -> float:
        """Return the position in the stretched viewBox, whole numbers."""
        return round((self.at(value) - self.start) / (self.end - self.start) * INNER)

    def holds(self, value: float) -> bool:
        """Return whether the value is finite and not beyond the ends."""
        return math.isfinite(value) and self.low <= value <= self.high

    def ticks(self, wanted: int) -> tuple[float, ...]:
        """Return some `wanted` round values between the ends: steps of 1, 2 or 5."""
        span = self.high - self.low
        if not (span > 0 and math.isfinite(span)):
            return (self.low,)
        raw = span / wanted
        size = 10.0 ** math.floor(math.log10(raw))
        step = size * next(factor for factor in (1, 2, 5, 10) if factor * size >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return tuple(index * step for index in range(first, last + 1))


def plot_area(across: Axis, up: Axis, lines: Sequence[Markup]) -> Markup:
    """Return the stretched area that holds the lines, as wide and high as the two axes."""
    top, bottom = min(up.start, up.end), max(up.start, up.end)
    return element(
        "svg",
        *lines,
        x=f"{_value(across.start)}%",
        y=top,
        width=f"{_value(across.end - across.start)}%",
        height=bottom - top,
        viewBox=f"0 0 {INNER} {INNER}",
        preserveAspectRatio="none",
        class_="area",
    )


def curve(
    points: Sequence[tuple[float, float] | None], across: Axis, up: Axis, class_: str
) -> Markup:
    """Return a line through the points, broken where one is None."""
    parts, pen = [], "M"
    for point in points:
        if point is None:
            pen = "M"
            continue
        x = across.inner(point[0])
        parts.append(f"{pen}{x} {INNER - up.inner(point[1])}")
        pen = "L"
    # A single point has no length: round caps show it as a dot.
    return element("path", d="".join(parts) + ("h0" if len(parts) == 1 else ""), class_=class_)


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return value
    short = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if short in ("-0", "") else short


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
