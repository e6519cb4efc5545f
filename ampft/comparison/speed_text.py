"""A speed-up in words, always with its number and its interval."""

from __future__ import annotations

from ampft.comparison.statistics.speed_up import (
    AS_FAST,
    EQUIVALENCE_LEVEL,
    LEVEL,
    NOT_DECIDED,
    SLOWER,
    TOLERANCE,
    SpeedUp,
)
from ampft.text.numbers import level, percent, ratio_range, ratio_text


def speed_words(speed_up: SpeedUp, *, base: str = "", where: str = "") -> str:
    """Return the verdict on a speed that was measured in turns, to follow "bf16 is".

    Args:
        speed_up: Speed-up with its verdict.
        base: Name of the baseline; empty if the sentence says it elsewhere.
        where: What was measured, such as "for single texts"; empty for training.
    """
    ratio, interval, confidence = speed_up.ratio, speed_up.interval95, LEVEL
    words = "not shown to be faster or slower"
    if speed_up.verdict == AS_FAST:
        interval, confidence = speed_up.interval90, EQUIVALENCE_LEVEL
        words = f"as fast{f' as {base}' if base else ''} within {percent(TOLERANCE - 1)}"
    elif speed_up.verdict != NOT_DECIDED and interval is not None:
        if speed_up.verdict == SLOWER:
            ratio, interval = 1 / ratio, (1 / interval[1], 1 / interval[0])
        words = f"{ratio_text(ratio)}x {speed_up.verdict}"
    if base and speed_up.verdict != AS_FAST:
        words += f" than {base}"
    evidence = f"{level(confidence)} CI {ratio_range(*interval)}" if interval else "one seed"
    if speed_up.verdict in (AS_FAST, NOT_DECIDED):
        evidence = f"speed-up {ratio_text(ratio)}x, {evidence}"
    return f"{' '.join(filter(None, (words, where)))} ({evidence})"
