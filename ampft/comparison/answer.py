"""The answer of a comparison in a few short sentences, which stand above the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from ampft.comparison.findings import (
    INFERENCE,
    PREDICTIONS,
    ArmResult,
    Comparison,
)
from ampft.comparison.inference.text import inference_answer, inference_gains, inference_speed_up
from ampft.comparison.statistics.speed_up import FASTER, TOLERANCE
from ampft.comparison.statistics.verdict import BETTER, EQUIVALENT, UNDECIDED, WORSE
from ampft.comparison.verdict_text import needed_text
from ampft.text.numbers import percent, ratio_text

NOT_WORSE = (EQUIVALENT, BETTER)
MIN_SAVING = 0.05  # of the baseline's peak memory; smaller savings do not justify a change


def answer_text(comparison: Comparison) -> str:
    """Return which arm to use, or an empty string if no arm was compared with the baseline.

    An arm is recommended if it is equivalent or better, and if it ran natively and is faster (95 %
    CI) or needs less memory. If several qualify, the fastest is recommended. Unless the arms are
    modes, being better is enough. No single best is named: the examples that chose it would
    overstate its gain.

    Args:
        comparison: Comparison. Its stamps say what the answer depends on.
    """
    baseline = comparison.baseline
    arms = [arm for arm in comparison.arms[1:] if not arm.is_placebo]
    if not arms:
        return ""
    if baseline.status != "complete" or baseline.suspect_runs:
        return f"No answer: {baseline.name} did not train well with every seed."
    better = [arm for arm in arms if _is_not_worse(arm) and arm.outcome == BETTER]
    gains = {arm.name: gain for arm in arms if (gain := _gain(comparison, arm))}
    best = max((arm for arm in arms if arm.name in gains), key=_speed_up, default=None)
    metric = comparison.units.title
    if comparison.kind == INFERENCE:
        return inference_answer(comparison)
    if comparison.kind == PREDICTIONS:
        return _answer_of_predictions(comparison, arms)
    sentences = [f"On this machine, stay with {baseline.name}."]
    if comparison.noun == "arm" and better:
        sentences = [_better_text(better, baseline, metric)]
    elif best is not None:
        relation = "equivalent to" if best.outcome == EQUIVALENT else "better than"
        sentences = [
            f"Use {best.name}: its {metric} is {relation} that of {baseline.name}, and it "
            f"{gains[best.name]} here."
        ]
    undecided = [arm for arm in arms if arm.outcome == UNDECIDED]
    emulated = [arm for arm in arms if _is_not_worse(arm) and arm.execution == "emulated"]
    if emulated and baseline.execution != "emulated":
        sentences.append(
            f"{listed(emulated)} {_be(emulated)} not worse in {metric} but emulated: measure "
            "speed on a GPU."
        )
    if undecided:
        sentences.append(_undecided_text(comparison, undecided))
    return " ".join(sentences)


def _undecided_text(comparison: Comparison, undecided: Sequence[ArmResult]) -> str:
    """Return that a difference is not decided, and what would decide it."""
    base, (first, *others) = comparison.baseline.name, undecided
    difference = "difference" if not others else "differences"
    text = f"The {difference} of {listed(undecided)} to {base} {_be(undecided)} not decided"
    needed = needed_text(comparison, first.difference) if first.difference else ""
    return f"{text}: {needed}." if needed and not others else f"{text}."


def _better_text(better: list[ArmResult], baseline: ArmResult, metric: str) -> str:
    if len(better) == 1:
        return f"Use {better[0].name}: its {metric} is better than that of {baseline.name}."
    return (
        f"{listed(better)} are better than {baseline.name} in {metric}. Which of them is the best "
        "is not decided here, and the largest difference overstates its gain."
    )


def _answer_of_predictions(comparison: Comparison, arms: Sequence[ArmResult]) -> str:
    """Return what the verdicts say about arms whose costs are unknown."""
    baseline, metric = comparison.baseline.name, comparison.units.title
    words = {
        EQUIVALENT: f"equivalent to {baseline} in {metric}",
        BETTER: f"better than {baseline} in {metric}",
        WORSE: f"worse than {baseline} in {metric}",
    }
    by_verdict = {verdict: [arm for arm in arms if arm.outcome == verdict] for verdict in words}
    sentences = [
        f"{listed(some)} {_be(some)} {words[verdict]}."
        for verdict, some in by_verdict.items()
        if some
    ]
    if undecided := [arm for arm in arms if arm.outcome == UNDECIDED]:
        sentences.append(_undecided_text(comparison, undecided))
    return " ".join(sentences)


def gain_text(comparison: Comparison, arm: ArmResult) -> str:
    """Return what an arm that is not worse saves, such as "is 1.5x faster", or an empty string."""
    if comparison.kind == INFERENCE:
        gains = inference_gains(comparison, arm) if _is_not_worse(arm) else ""
        return f"is {gains}" if gains else ""
    return _gain(comparison, arm)


def speed_up_of(arm: ArmResult) -> float:
    """Return how much faster an arm is than the baseline; 0 if it is unknown."""
    return inference_speed_up(arm) if arm.inference else _speed_up(arm)


def _is_not_worse(arm: ArmResult) -> bool:
    return arm.outcome in NOT_WORSE


def _speed_up(arm: ArmResult) -> float:
    return arm.speed.speed_up.ratio if arm.speed and arm.speed.speed_up else 0.0


def _gain(comparison: Comparison, arm: ArmResult) -> str:
    """Return what an arm that is not worse saves, such as "is 1.5x faster", or an empty string."""
    timed = {"native", "unproven"}
    if not _is_not_worse(arm) or not {arm.execution, comparison.baseline.execution} <= timed:
        return ""
    gains = []
    measured = arm.speed.speed_up if arm.speed and comparison.has_reliable_speeds else None
    if measured and measured.verdict == FASTER and measured.ratio >= TOLERANCE:
        gains.append(f"is {ratio_text(measured.ratio)}x faster")
    if arm.memory and arm.memory.ratio and 1 - arm.memory.ratio >= MIN_SAVING:
        gains.append(f"needs {percent(1 - arm.memory.ratio)} less memory")
    return " and ".join(gains)


def _be(arms: Sequence[ArmResult]) -> str:
    return "is" if len(arms) == 1 else "are"


def listed(arms: Sequence[ArmResult]) -> str:
    """Return the names of arms, such as "bf16 and fp16"; empty for none."""
    if not arms:
        return ""
    names = [arm.name for arm in arms]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
