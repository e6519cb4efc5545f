"""What a comparison of precisions of inference says: the cost of each, and which to deploy."""

from __future__ import annotations

import math

from ampft.comparison.findings import (
    ArmResult,
    Comparison,
)
from ampft.comparison.inference.cost import BatchTiming
from ampft.comparison.speed_text import speed_words
from ampft.comparison.statistics.speed_up import FASTER, is_reliable_speed
from ampft.comparison.statistics.verdict import BETTER, EQUIVALENT, UNDECIDED, WORSE
from ampft.text.numbers import percent, ratio_text

MIN_SAVING = 0.05  # of the size on disk


def inference_cost_text(comparison: Comparison, arm: ArmResult) -> str:
    """Return one sentence on the speed and the size of a mode."""
    assert arm.inference is not None
    size = _size_words(arm)
    if arm.execution == "emulated":
        return f"{arm.name} is emulated, so its latency was not measured; it is {size}."
    if not are_times_reliable(comparison):
        return f"The speed of {arm.name} is not ranked, because times are unreliable; it is {size}."
    speeds = ", ".join(_timing_words(timing) for timing in arm.inference.timings)
    return f"{arm.name} is {speeds}, and {size}, compared with {comparison.baseline.name}."


def inference_answer(comparison: Comparison) -> str:
    """Return which mode to deploy, and what is known about the others."""
    base, metric = comparison.baseline.name, comparison.units.title
    modes = [arm for arm in comparison.arms[1:] if not arm.is_placebo]
    good = [arm for arm in modes if arm.outcome in (EQUIVALENT, BETTER)]
    gains = {arm.name: inference_gains(comparison, arm) for arm in good}
    best = max((arm for arm in good if gains.get(arm.name)), key=inference_speed_up, default=None)
    sentences = [f"On this machine, stay with {base}."]
    if best is not None:
        relation = "equivalent to" if best.outcome == EQUIVALENT else "better than"
        sentences = [
            f"Deploy {best.name}: its {metric} is {relation} that of {base}, and it is "
            f"{gains[best.name]}."
        ]
    for arm in modes:
        if arm is not best:
            sentences.append(_other(arm, base, metric))
    return " ".join(sentences)


def are_times_reliable(comparison: Comparison) -> bool:
    """Return whether the baseline, measured twice in turns, was as fast as itself."""
    return all(
        is_reliable_speed(timing.speed_up.ratio)
        for arm in comparison.arms
        if arm.is_placebo and arm.inference
        for timing in arm.inference.timings
        if timing.speed_up
    )


def _other(arm: ArmResult, base: str, metric: str) -> str:
    if arm.status != "complete":
        return f"{arm.name} failed."
    if arm.outcome == UNDECIDED:
        return f"The difference of {arm.name} to {base} is not decided."
    relation = {
        EQUIVALENT: f"equivalent to {base}",
        BETTER: f"better than {base}",
        WORSE: f"worse than {base}",
    }[arm.outcome]
    emulated = " (emulated: measure its speed on a GPU)" if arm.execution == "emulated" else ""
    return f"{arm.name} is {relation} in {metric}{emulated}."


def inference_gains(comparison: Comparison, arm: ArmResult) -> str:
    """Return what a mode saves, without intervals, or an empty string."""
    if arm.inference is None or arm.execution != "native":
        return ""
    gains = []
    if are_times_reliable(comparison):
        gains = [
            f"{ratio_text(each.speed_up.ratio)}x faster {_where(each)}"
            for each in arm.inference.timings
            if each.speed_up is not None and each.speed_up.verdict == FASTER
        ]
    ratio = arm.inference.size_ratio
    if ratio is not None and 1 - ratio >= MIN_SAVING:
        gains.append(_size_words(arm))
    return " and ".join([", ".join(gains[:-1]), gains[-1]]) if len(gains) > 1 else "".join(gains)


def inference_speed_up(arm: ArmResult) -> float:
    """Return the geometric mean of the speed-ups over the batch sizes."""
    assert arm.inference is not None
    ratios = [
        math.log(timing.speed_up.ratio) for timing in arm.inference.timings if timing.speed_up
    ]
    return math.exp(sum(ratios) / len(ratios)) if ratios else 0.0


def _timing_words(timing: BatchTiming) -> str:
    assert timing.speed_up is not None
    return speed_words(timing.speed_up, where=_where(timing))


def _where(timing: BatchTiming) -> str:
    return "for single texts" if timing.batch_size == 1 else f"in batches of {timing.batch_size}"


def _size_words(arm: ArmResult) -> str:
    assert arm.inference is not None
    ratio = arm.inference.size_ratio or 1.0
    if abs(ratio - 1) < 0.005:
        return "as large on disk"
    if ratio < 1:
        return f"{percent(1 - ratio)} smaller on disk"
    return f"{percent(ratio - 1)} larger on disk"
