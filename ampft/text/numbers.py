"""Numbers in words, the same everywhere: rounding, signs, units, plurals."""

from __future__ import annotations

import math
from collections.abc import Sequence

MINUS = "\N{MINUS SIGN}"
PLUS_MINUS = "\N{PLUS-MINUS SIGN}"
NOT_MEASURED = "-"
METRIC_NAMES = {
    "accuracy": "accuracy",
    "macro_f1": "macro F1",
    "balanced_accuracy": "balanced accuracy",
    "matthews": "Matthews correlation",
    "log_loss": "log loss",
    "brier": "Brier score",
    "ece": "calibration error",
}


def metric_name(metric: str) -> str:
    """Return a metric's name for people, such as "macro F1"."""
    return METRIC_NAMES.get(metric, metric)


def point_decimals(margin: float) -> int:
    """Return the decimals of a difference in points: 1, and more where the margin is below 1.

    Args:
        margin: As a fraction; 0.01 is one point.
    """
    return max(1, 1 + math.ceil(round(-math.log10(100 * margin), 9)))


def number(value: float, decimals: int) -> str:
    """Return a number with a real minus sign; what rounds to zero has no sign."""
    shown = f"{value:.{decimals}f}"
    is_zero = not float(shown)
    return shown.lstrip("-") if is_zero else shown.replace("-", MINUS)


def signed(value: float, decimals: int) -> str:
    """Return a number with its sign; what rounds to zero has none."""
    shown = number(value, decimals)
    return shown if shown.startswith(MINUS) or not float(shown) else f"+{shown}"


def points(difference: float, decimals: int = 1) -> str:
    """Return a difference of shares in points, without the unit: "+0.3"."""
    return signed(100 * difference, decimals)


def points_in_words(difference: float, decimals: int = 1) -> str:
    """Return "+0.3 point" or "+1.2 points"; up to one is singular."""
    shown = points(difference, decimals)
    size = float(shown.replace(MINUS, ""))
    return f"{shown} point" + "s" * (abs(size) > 1 or size == 0)


def interval(ends: tuple[float, float], decimals: int = 1) -> str:
    """Return an interval of a difference of shares in points: "+0.1 to +0.9"."""
    return " to ".join(points(end, decimals) for end in ends)


def percent(share: float, decimals: int = 0) -> str:
    """Return a share as "11 %"."""
    return f"{number(100 * share, decimals)} %"


def level(value: float) -> str:
    """Return the level of an interval as "95 %" or "97.5 %"."""
    return f"{round(100 * value, 2):g} %"


def times(ratio: float) -> str:
    """Return a ratio as "2.4"; as "1.06" where one decimal would be coarse, "12" from ten on."""
    if ratio < 1.195:
        return f"{ratio:.2f}"
    return f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"


def ratio_range(low: float, high: float) -> str:
    """Return the least and greatest of several ratios as "1.10 to 1.37", or "1.02" if equal."""
    least, most = (f"{end:.2f}" if end < 9.995 else f"{end:.1f}" for end in (low, high))
    return least if least == most else f"{least} to {most}"


def p_value(p: float | None) -> str:
    """Return "0.34", "0.012" or "< 0.001"; "-" where there is none."""
    if p is None:
        return NOT_MEASURED
    if p < 0.001:
        return "< 0.001"
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def milliseconds(seconds: float) -> str:
    """Return seconds in milliseconds, three digits or more, without the unit."""
    value = 1000 * seconds
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def mean_count(value: float) -> str:
    """Return a mean number of examples: whole from ten on, with one decimal below."""
    return f"{value:.1f}" if value < 9.95 and value != round(value) else f"{value:,.0f}"


def count_range(counts: Sequence[int]) -> str:
    """Return counts of several runs as "4" or "3 to 4"."""
    if not counts:
        return NOT_MEASURED
    least, most = min(counts), max(counts)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def seed_words(seeds: Sequence[int]) -> str:
    """Return "seeds 1 to 5", "seeds 3, 7 and 12" or "seed 1"."""
    ordered = sorted(seeds)
    if len(ordered) == 1:
        return f"seed {ordered[0]}"
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"seeds {ordered[0]} to {ordered[-1]}"
    return f"seeds {', '.join(map(str, ordered[:-1]))} and {ordered[-1]}" if ordered else "no seeds"


def counted(number: int, noun: str) -> str:
    """Return "1 class" or "12 classes"."""
    plural = f"{noun}es" if noun.endswith(("s", "h")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def duration(seconds: float) -> str:
    """Return "9.4 s", "3 min 05 s" or "2 h 07 min"."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(number: int) -> str:
    """Return bytes as "512 MiB" or "1.93 GiB"."""
    return f"{number / 2**20:.0f} MiB" if number < 2**30 else f"{number / 2**30:.2f} GiB"


def about(seconds: float) -> str:
    """Return seconds as precisely as an estimate deserves: "45 s", "12 min", "2 h 5 min"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
