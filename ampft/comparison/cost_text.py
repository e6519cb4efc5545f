"""What an arm costs in sentences: speed and memory of training, or speed and size of inference."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ampft.comparison.findings import INFERENCE, TRAINING, ArmResult, Comparison
from ampft.comparison.statistics.speed_up import (
    AS_FAST,
    EQUIVALENCE_LEVEL,
    FASTER,
    LEVEL,
    NOT_DECIDED,
    SLOWER,
    TOLERANCE,
    SpeedUp,
    is_reliable_speed,
)
from ampft.comparison.statistics.verdict import BETTER, EQUIVALENT
from ampft.text.numbers import confidence_percent, percent, ratio_range, ratio_text

MEMORY_TOLERANCE = 0.01  # relative; two runs of the same mode differ by up to about this much
MIN_SAVING = 0.05  # of the baseline's memory or size; smaller savings do not justify a change


def cost_text(comparison: Comparison, arm: ArmResult) -> str:
    """Return one sentence on the cost of an arm; empty if costs are unknown.

    Args:
        arm: Neither the baseline nor the placebo.
    """
    if arm.inference is not None:
        return _inference_cost(comparison, arm)
    return _training_cost(comparison, arm) if comparison.kind == TRAINING else ""


def speed_words(speed_up: SpeedUp, *, base: str = "", where: str = "") -> str:
    """Return the verdict on a speed that was measured in turns, to follow "bf16 is".

    Args:
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
    evidence = (
        f"{confidence_percent(confidence)} CI {ratio_range(*interval)}" if interval else "one seed"
    )
    if speed_up.verdict in (AS_FAST, NOT_DECIDED):
        evidence = f"speed-up {ratio_text(ratio)}x, {evidence}"
    return f"{' '.join(filter(None, (words, where)))} ({evidence})"


def savings_text(comparison: Comparison, arm: ArmResult) -> str:
    """Return what time or memory an arm that is not worse saves, such as "is 1.5x faster"."""
    if arm.outcome not in (EQUIVALENT, BETTER):
        return ""
    if comparison.kind != INFERENCE:
        return " and ".join(_training_gains(comparison, arm))
    *gains, last = ["", *_inference_gains(comparison, arm)]
    return f"is {' and '.join(filter(None, (', '.join(gains[1:]), last)))}" if last else ""


def speed_up_of(arm: ArmResult) -> float:
    """Return how much faster an arm is than the baseline; 0 if it is unknown.

    For inference, it is the geometric mean over the batch sizes.
    """
    if arm.inference is None:
        return arm.speed.speed_up.ratio if arm.speed and arm.speed.speed_up else 0.0
    ratios = [math.log(each.speed_up.ratio) for each in arm.inference.timings if each.speed_up]
    return math.exp(sum(ratios) / len(ratios)) if ratios else 0.0


def _training_gains(comparison: Comparison, arm: ArmResult) -> Iterator[str]:
    if not {arm.execution, comparison.baseline.execution} <= {"native", "unproven"}:
        return
    measured = arm.speed.speed_up if arm.speed and comparison.has_reliable_speeds else None
    if measured and measured.verdict == FASTER and measured.ratio >= TOLERANCE:
        yield f"is {ratio_text(measured.ratio)}x faster"
    if arm.memory and arm.memory.ratio and 1 - arm.memory.ratio >= MIN_SAVING:
        yield f"needs {percent(1 - arm.memory.ratio)} less memory"


def _inference_gains(comparison: Comparison, arm: ArmResult) -> Iterator[str]:
    if arm.inference is None or arm.execution != "native":
        return
    for each in arm.inference.timings if _are_times_reliable(comparison) else ():
        if each.speed_up is not None and each.speed_up.verdict == FASTER:
            yield f"{ratio_text(each.speed_up.ratio)}x faster {_where(each.batch_size)}"
    ratio = arm.inference.size_ratio
    if ratio is not None and 1 - ratio >= MIN_SAVING:
        yield _size_words(ratio)


def _training_cost(comparison: Comparison, arm: ArmResult) -> str:
    baseline = comparison.baseline
    if arm.execution == "emulated":
        return f"{arm.name} is emulated, so its speed says nothing about its speed on a GPU."
    memory = _memory_words(arm) if baseline.status == "complete" else None
    speed_up = arm.speed.speed_up if arm.speed else None
    is_ranked = baseline.status == "complete" and comparison.has_reliable_speeds
    if not is_ranked or speed_up is None or speed_up.verdict is None:
        return _unranked(comparison, arm, memory)
    speed = speed_words(speed_up, base=baseline.name)
    if memory is None:
        return f"{arm.name} is {speed}."
    is_opposite = (speed_up.verdict, memory[0]) in ((FASTER, -1), (SLOWER, 1))
    link = "but" if is_opposite else "and"
    return f"{arm.name} is {speed} {link} needs {memory[1]}."


def _unranked(comparison: Comparison, arm: ArmResult, memory: tuple[int, str, str] | None) -> str:
    """Return why a mode is not ranked against the baseline."""
    baseline = comparison.baseline
    is_timed = arm.speed is not None and bool(arm.speed.step_seconds)
    if baseline.status != "complete" and (is_timed or arm.memory is not None):
        return (
            f"Speed and memory of {arm.name} are not ranked because {baseline.name} has diverged "
            "or unfinished runs."
        )
    why = "was not measured"
    if is_timed and baseline.execution == "emulated":
        why = f"is not ranked because {baseline.name} is emulated"
    elif is_timed and comparison.has_disturbed_speeds:
        why = "is not ranked because several runs trained at the same time"
    elif is_timed and comparison.placebo_speed and not comparison.has_reliable_speeds:
        why = (
            f"is not ranked because the placebo, which computes the same as {baseline.name}, ran "
            f"at {ratio_text(comparison.placebo_speed)}x its speed"
        )
    elif arm.speed is not None and arm.speed.speed_up is not None:
        why = (
            f"is not ranked because its runs did not take turns with the runs of {baseline.name} "
            f"(speed-up {ratio_text(arm.speed.speed_up.ratio)}x, which drift of the machine can "
            "cause)"
        )
    if memory is not None:
        return f"{arm.name} needs {memory[1]} {memory[2]} {baseline.name}; its speed {why}."
    if is_timed:
        return f"The speed of {arm.name} {why}."
    return f"Speed and memory of {arm.name} were not measured."


def _memory_words(arm: ArmResult) -> tuple[int, str, str] | None:
    """Return 1 for less, -1 for more or 0; the text; and the word that links it to the baseline."""
    ratio = arm.memory.ratio if arm.memory else None
    if ratio is None:
        return None
    if abs(ratio - 1) < MEMORY_TOLERANCE:
        return 0, "as much memory", "as"
    if ratio < 1:
        return 1, f"{percent(1 - ratio)} less memory", "than"
    return -1, f"{percent(ratio - 1)} more memory", "than"


def _inference_cost(comparison: Comparison, arm: ArmResult) -> str:
    assert arm.inference is not None
    size = _size_words(arm.inference.size_ratio)
    if arm.execution == "emulated":
        return f"{arm.name} is emulated, so its latency was not measured; it is {size}."
    if not _are_times_reliable(comparison):
        return f"The speed of {arm.name} is not ranked, because times are unreliable; it is {size}."
    speeds = ", ".join(
        speed_words(each.speed_up, where=_where(each.batch_size))
        for each in arm.inference.timings
        if each.speed_up is not None
    )
    return f"{arm.name} is {speeds}, and {size}, compared with {comparison.baseline.name}."


def _are_times_reliable(comparison: Comparison) -> bool:
    """Return whether the baseline, measured twice in turns, was as fast as itself."""
    return all(
        is_reliable_speed(timing.speed_up.ratio)
        for arm in comparison.arms
        if arm.is_placebo and arm.inference
        for timing in arm.inference.timings
        if timing.speed_up
    )


def _where(batch_size: int) -> str:
    return "for single texts" if batch_size == 1 else f"in batches of {batch_size}"


def _size_words(size_ratio: float | None) -> str:
    ratio = size_ratio or 1.0
    if abs(ratio - 1) < 0.005:
        return "as large on disk"
    difference, word = (1 - ratio, "smaller") if ratio < 1 else (ratio - 1, "larger")
    return f"{percent(difference)} {word} on disk"
