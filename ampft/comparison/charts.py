"""Charts as inline SVG from escaped parts, whose text keeps its size on a phone.

A picture has no viewBox. It fills the width of its container. Horizontal positions are percentages
of that width, and vertical positions are pixels or percentages, so that text has the same size on a
phone and on a wide screen. Lines of many points are in a nested viewBox of 1000 x 1000 that is
stretched. Colours and line styles are classes of the style sheet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from ampft.text.numbers import MINUS

INNER = 1000  # side of the stretched viewBox of a plot area


def element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element. Children and attribute values are escaped unless they are Markup.

    Args:
        attributes: Attributes. `class_` stands for class, other underscores become hyphens, and
            None omits the attribute.
    """
    values = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_value(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inside = "".join(escape(child) for child in children)
    # Every part has been escaped.
    return Markup(f"<{tag}{values}>{inside}</{tag}>")


def picture(*children: str, height: float | None, alt: str | None, class_: str) -> Markup:
    """Return an SVG that fills the width of its container.

    Args:
        height: Height in pixels; None if the style sheet sets it.
        alt: Text alternative, which describes what the picture shows; None if screen readers skip
            the picture, because adjacent text has the same content.
    """
    if alt is None:
        return element("svg", *children, class_=class_, height=height, aria_hidden="true")
    title = element("title", alt)
    return element(
        "svg", title, *children, class_=class_, height=height, role="img", aria_label=alt
    )


def text(content: str, x: str, y: float | str, class_: str, *, dx: float | None = None) -> Markup:
    """Return a label at `x` (a percentage) and `y` (pixels), moved by `dx` pixels."""
    return element("text", content, x=x, y=y, dx=dx, class_=class_)


def line(x1: str, y1: float | str, x2: str, y2: float | str, class_: str) -> Markup:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


@dataclass(frozen=True)
class Axis:
    """A linear map of values from `low` to `high` to positions from `start` to `end`.

    Positions are percentages of the width or pixels of the height, and `end` may be less than
    `start`. Values beyond the ends map to the ends.
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def percent(self, value: float) -> str:
        """Return the position as a percentage."""
        return f"{_value(self.at(value))}%"

    def inner(self, value: float) -> float:
        """Return the position in the stretched viewBox, rounded to an integer."""
        return round((self.at(value) - self.start) / (self.end - self.start) * INNER)

    def ticks(self, count: int) -> tuple[float, ...]:
        """Return about `count` round values between the ends, in steps of 1, 2 or 5."""
        span = self.high - self.low
        if not (span > 0 and math.isfinite(span)):
            return (self.low,)
        raw = span / count
        size = 10.0 ** math.floor(math.log10(raw))
        step = size * next(factor for factor in (1, 2, 5, 10) if factor * size >= raw * 0.999)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return tuple(index * step for index in range(first, last + 1))

    def upright(self, value: float, top: float | str, bottom: float | str, class_: str) -> Markup:
        """Return a vertical line at a value of a horizontal axis."""
        return line(self.percent(value), top, self.percent(value), bottom, class_)

    def level(self, low: float, high: float, y: float | str, class_: str) -> Markup:
        """Return a horizontal line between two values of a horizontal axis."""
        return line(self.percent(low), y, self.percent(high), y, class_)

    def box(
        self, low: float, high: float, y: float | str, height: float | str, class_: str,
        title: str | None = None,
    ) -> Markup:  # fmt: skip
        """Return a rectangle between two values of a horizontal axis, with a title to hover."""
        titles = () if title is None else (element("title", title),)
        width = f"{_value(self.at(high) - self.at(low))}%"
        return element(
            "rect", *titles, x=self.percent(low), width=width, y=y, height=height, class_=class_
        )


@dataclass(frozen=True)
class Plot:
    """The area between a horizontal axis in percent and a vertical axis in pixels."""

    x: Axis
    y: Axis

    def grid(self, values: Iterable[float], label: Callable[[float], str]) -> Markup:
        """Return a horizontal line at each value, with its label to the left."""
        parts = []
        for value in values:
            y = self.y.at(value)
            parts.append(self.rule(y, "grid"))
            parts.append(text(label(value), f"{_value(self.x.start)}%", y + 4, "tick end", dx=-5))
        return Markup("").join(parts)

    def rule(self, y: float, class_: str = "rule") -> Markup:
        """Return a horizontal line over the whole width, at a position in pixels."""
        return self.x.level(self.x.low, self.x.high, y, class_)

    def scale(
        self, values: Iterable[float], label: Callable[[float], str], y: float, title: str = ""
    ) -> Markup:
        """Return labels of the horizontal axis below `y`, and its title at the right end."""
        parts = [text(label(v), self.x.percent(v), y + 18, "tick middle") for v in values]
        if title:
            parts.append(text(title, self.x.percent(self.x.high), y + 32, "tick end"))
        return Markup("").join(parts)

    def area(self, *lines: Markup) -> Markup:
        """Return a stretched area that contains the lines and spans the two axes."""
        top, bottom = sorted((self.y.start, self.y.end))
        return element(
            "svg",
            *lines,
            x=f"{_value(self.x.start)}%",
            y=top,
            width=f"{_value(self.x.end - self.x.start)}%",
            height=bottom - top,
            viewBox=f"0 0 {INNER} {INNER}",
            preserveAspectRatio="none",
            class_="area",
        )

    def curve(self, points: Sequence[tuple[float, float]], class_: str) -> Markup:
        """Return a line through the points, for `area`."""
        places = "L".join(f"{self.x.inner(x)} {INNER - self.y.inner(y)}" for x, y in points)
        # A line of length 0 with round caps shows a single point as a dot.
        dot = "h0" if len(points) == 1 else ""
        return element("path", d=f"M{places}{dot}" if points else "", class_=class_)


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return value
    short = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if short in ("-0", "") else short


def decimal_tick_label(value: float) -> str:
    """Return a tick label without trailing zeros."""
    return f"{value:z.4g}".replace("-", MINUS)


def power_of_two_label(value: float) -> Markup:
    """Return a tick label for a base-2 logarithm, as a power of two."""
    power = element("tspan", f"{round(value)}".replace("-", MINUS), dy=-4, class_="power")
    return Markup("2{}").format(power)
