"""Chart styles that distinguish arms by colour, dash pattern, shape and name.

The colours come from Okabe and Ito ("Color Universal Design", 2008), made darker or lighter per
theme until their contrast with the page is at least 3:1. In the style sheet they are .a0 to .a9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ampft.comparison.findings import ArmResult
from ampft.text.charts import element, picture
from ampft.text.escaping import one_line

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
    """The style of one arm in charts.

    Attributes:
        name: Name of the arm, safe to display.
        number: Number in the style sheet: .a0 is the baseline, .a1 the placebo, .a2 the first mode.
    """

    name: str
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
        number = BASELINE
        if index:
            number = PLACEBO if arm.is_placebo else FIRST_MODE + modes % (LAST - FIRST_MODE + 1)
            modes += not arm.is_placebo
        styles.append(ArmStyle(one_line(arm.name), number))
    return tuple(styles)
