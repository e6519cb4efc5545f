"""Numbers as text: rounding, signs, units and plurals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

MINUS = "\N{MINUS SIGN}"
PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
NOT_MEASURED = "-"
T = TypeVar("T")
R = TypeVar("R")


def or_dash(value: T | None, text: Callable[[T], R]) -> R | str:
    """Return a value as text or cell; "-" for None."""
    return NOT_MEASURED if value is None else text(value)


def decimals_for_margin(margin: float) -> int:
    """Return the decimals to print of a difference in points: 1, or more if the margin is small.

    Args:
        margin: Equivalence margin as a fraction; 0.01 is one point.
    """
    return max(1, 1 + math.ceil(round(-math.log10(100 * margin), 9)))


def number(value: float, decimals: int) -> str:
    """Return a number with a typographic minus sign; one that rounds to zero has no sign."""
    text = f"{value:.{decimals}f}"
    is_zero = not float(text)
    return text.lstrip("-") if is_zero else text.replace("-", MINUS)


def signed_number(value: float, decimals: int) -> str:
    """Return a number with its sign; one that rounds to zero has no sign."""
    text = number(value, decimals)
    return text if text.startswith(MINUS) or not float(text) else f"+{text}"


def points(difference: float, decimals: int = 1) -> str:
    """Return a difference of shares in points, without the unit: "+0.3"."""
    return signed_number(100 * difference, decimals)


@dataclass(frozen=True)
class Units:
    """How values of a metric, and differences between them, are printed."""

    title: str  # Name of the metric, such as "macro F1".
    # Largest difference that does not matter, in the metric's unit. It determines the number of
    # decimals.
    margin: float
    # Whether the metric is a share, printed in percent, with differences in points.
    is_share: bool = True
    # Largest possible difference, at which intervals are cut off; None for no limit.
    largest: float | None = None

    @property
    def factor(self) -> int:
        """Factor that values are multiplied by before they are printed."""
        return 100 if self.is_share else 1

    @property
    def decimals(self) -> int:
        """Number of decimals of a printed value or difference."""
        return decimals_for_margin(self.margin) + (0 if self.is_share else 2)

    @property
    def heading(self) -> str:
        """Heading of a column of values: "accuracy, %"."""
        return f"{self.title}, %" if self.is_share else self.title

    @property
    def difference_suffix(self) -> str:
        """Suffix of "difference" in the heading of a column: ", points" or an empty string."""
        return ", points" if self.is_share else ""

    @property
    def margin_with_unit(self) -> str:
        """The margin with its unit: "1 point", "0.5 points" or "0.01"."""
        value = round(self.factor * self.margin, 6)
        return f"{value:g}{self._points(value)}"

    def value(self, value: float, extra_decimals: int = 0) -> str:
        """Return a value, with `extra_decimals` more decimals than usual."""
        return number(self.factor * value, self.decimals + extra_decimals)

    def difference(self, value: float, extra_decimals: int = 0) -> str:
        """Return a difference with its sign: "+0.3"."""
        return signed_number(self.factor * value, self.decimals + extra_decimals)

    def interval(self, ends: tuple[float, float], extra_decimals: int = 0) -> str:
        """Return an interval of a difference, within the scale: "+0.1 to +0.9"."""
        return " to ".join(self.difference(end, extra_decimals) for end in self.cut(ends))

    def cut(self, ends: tuple[float, float]) -> tuple[float, float]:
        """Return the part of an interval that is on the scale."""
        if self.largest is None:
            return ends
        low, high = (min(max(end, -self.largest), self.largest) for end in ends)
        return low, high

    def difference_with_unit(self, value: float) -> str:
        """Return "+0.3 points", "+1.0 point" or "+0.012"."""
        magnitude = abs(round(self.factor * value, self.decimals))
        return f"{self.difference(value)}{self._points(magnitude)}"

    def capitalized(self) -> str:
        """Return the metric's name with a capital, for the start of a sentence."""
        return f"{self.title[0].upper()}{self.title[1:]}"

    def _points(self, magnitude: float) -> str:
        if not self.is_share:
            return ""
        return " point" if magnitude == 1 else " points"


def percent(share: float, decimals: int = 0) -> str:
    """Return a share as "11 %"."""
    return f"{number(100 * share, decimals)} %"


def confidence_percent(value: float) -> str:
    """Return the confidence level of an interval as "95 %" or "97.5 %"."""
    return f"{round(100 * value, 2):g} %"


def ratio_text(ratio: float) -> str:
    """Return a ratio as "1.06" (below 1.2), "2.4" (below 10) or "12"."""
    if ratio < 1.195:
        return f"{ratio:.2f}"
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def ratio_range(low: float, high: float) -> str:
    """Return the range of several ratios as "1.10 to 1.37", or "1.02" if both ends are equal."""
    start, end = (f"{end:.2f}" if end < 9.995 else f"{end:.1f}" for end in (low, high))
    return start if start == end else f"{start} to {end}"


def p_value(p: float | None) -> str:
    """Return a p-value as "0.34", "0.012" or "< 0.001"; "-" for None."""
    if p is None:
        return NOT_MEASURED
    if p < 0.001:
        return "< 0.001"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def milliseconds(seconds: float) -> str:
    """Return seconds in milliseconds, with at least three digits and without the unit."""
    value = 1000 * seconds
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def mean_count(value: float) -> str:
    """Return a mean number of examples, with one decimal below ten unless it is whole."""
    return f"{value:.1f}" if value < 9.95 and value != round(value) else f"{value:,.0f}"


def count_range(counts: Sequence[int]) -> str:
    """Return the range of the counts of several runs, as "4" or "3 to 4"."""
    if not counts:
        return NOT_MEASURED
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def seed_list(seeds: Sequence[int]) -> str:
    """Return seeds as "seeds 1 to 5", "seeds 3, 7 and 12" or "seed 1"."""
    ordered = sorted(seeds)
    if len(ordered) == 1:
        return f"seed {ordered[0]}"
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"seeds {ordered[0]} to {ordered[-1]}"
    return f"seeds {', '.join(map(str, ordered[:-1]))} and {ordered[-1]}" if ordered else "no seeds"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, as "1 class" or "12 classes"."""
    plural = f"{noun}es" if noun.endswith(("s", "h")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def duration(seconds: float) -> str:
    """Return a duration as "9.4 s", "3 min 05 s" or "2 h 07 min"."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"


def in_epochs(steps: int, steps_per_epoch: int) -> str:
    """Return "= 2 epochs x 9", "= about 2.3 epochs x 9" or "of the 9 of one epoch"."""
    epochs, rest = divmod(steps, steps_per_epoch)
    if not epochs:
        return f"of the {steps_per_epoch} of one epoch"
    if rest:
        return f"= about {steps / steps_per_epoch:.1f} epochs x {steps_per_epoch}"
    return f"= {epochs} epoch{'s' if epochs != 1 else ''} x {steps_per_epoch}"


def byte_size(number: int) -> str:
    """Return a number of bytes as "512 MiB" or "1.93 GiB"."""
    return f"{number / 2**20:.0f} MiB" if number < 2**30 else f"{number / 2**30:.2f} GiB"


def byte_sizes(*numbers: int) -> list[str]:
    """Return numbers of bytes as `byte_size` does, with as many digits as show that they differ."""
    texts = [byte_size(number) for number in numbers]
    for digits in (1, 2, 3):
        if len(set(texts)) == len(set(numbers)):
            return texts
        texts = [f"{number / 2**20:,.{digits}f} MiB" for number in numbers]
    return [f"{number:,} bytes" for number in numbers]


def approximate_duration(seconds: float) -> str:
    """Return an estimated duration, without false precision: "45 s", "12 min" or "2 h 5 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
