"""The answer of a comparison in a few short sentences, which stand above the verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ampft.comparison.cost_text import savings_text, speed_up_of
from ampft.comparison.findings import INFERENCE, PREDICTIONS, ArmResult, Comparison
from ampft.comparison.statistics.verdict import BETTER, EQUIVALENT, OUTCOMES, UNDECIDED, WORSE
from ampft.comparison.verdict_text import (
    MAX_CLASSES,
    class_changes,
    covered_models_text,
    needed_text,
)
from ampft.text.numbers import mean_count, points

RELATIONS = {EQUIVALENT: "equivalent to", BETTER: "better than", WORSE: "worse than"}


def answer_text(comparison: Comparison) -> str:
    """Return `answer_sentences` as one text."""
    return " ".join(answer_sentences(comparison))


def answer_sentences(comparison: Comparison) -> list[str]:
    """Return which arm to use, and why; nothing if no arm was compared with the baseline.

    An arm is recommended if it is equivalent or better, and if it ran natively and is faster (95 %
    CI) or needs less memory. If several qualify, the fastest is recommended. Unless the arms are
    modes, being better is enough. No single best is named: the examples that chose it would
    overstate its gain. With one model per arm, nothing is recommended for other trainings.

    Args:
        comparison: Comparison. Its stamps say what the answer depends on.
    """
    baseline = comparison.baseline
    arms = [arm for arm in comparison.arms[1:] if not arm.is_placebo]
    if not arms:
        return []
    suspects = [arm for arm in (baseline, *arms) if arm.suspect_runs]
    if comparison.has_fixed_models and suspects:
        if not any(arm.outcome in OUTCOMES.values() for arm in arms):
            return [f"No answer: {arm_names_text(suspects)} did not train well."]
    elif baseline.status != "complete" or baseline.suspect_runs:
        return [f"No answer: {baseline.name} did not train well with every seed."]
    if comparison.kind == PREDICTIONS or comparison.has_one_model_each:
        return list(_on_predictions(comparison, arms))
    gaining = [arm for arm in arms if savings_text(comparison, arm)]
    best = max(gaining, key=speed_up_of, default=None)
    better = [arm for arm in arms if arm.outcome == BETTER and comparison.noun == "arm"]
    use = _without_gain(comparison, arms)
    title = comparison.units.title
    if len(better) == 1:
        use = f"Use {better[0].name}: it is better than {baseline.name} in {title}."
    elif better:
        use = (
            f"{arm_names_text(better)} are better than {baseline.name} in {title}. Which of them "
            "is the best is not decided here, and the largest difference overstates its gain."
        )
    elif best is not None:
        verb, here = ("Deploy", "") if comparison.kind == INFERENCE else ("Use", " here")
        use = (
            f"{verb} {best.name}: it is {RELATIONS[best.outcome]} {baseline.name} in {title}, and "
            f"it {savings_text(comparison, best)}{here}."
        )
    others = [arm for arm in arms if arm is not best]
    rest = _on_inference(comparison, others)
    if comparison.kind != INFERENCE:
        rest = _on_training(comparison, arms)
    return [use, *rest]


def _without_gain(comparison: Comparison, arms: Sequence[ArmResult]) -> str:
    """Return what to use if no arm is known to be faster: the baseline, if speeds are known."""
    base = comparison.baseline.name
    native = [arm for arm in arms if arm.outcome == EQUIVALENT and arm.execution != "emulated"]
    if not native or not comparison.has_disturbed_speeds:
        return f"On this machine, stay with {base}."
    title = comparison.units.title
    names = arm_names_text(native)
    return f"{names} {_be(native)} equivalent to {base} in {title}. Speeds are not ranked."


def _on_training(comparison: Comparison, arms: Sequence[ArmResult]) -> Iterator[str]:
    """Yield what is known about arms that lose, failed, are emulated or are not decided."""
    losing = [arm for arm in arms if arm.outcome == WORSE]
    if losing:
        yield f"{arm_names_text(losing)} {_be(losing)} worse in {comparison.units.title}."
    without_gain = [
        arm
        for arm in arms
        if arm.outcome == EQUIVALENT
        and arm.execution != "emulated"
        and not savings_text(comparison, arm)
    ]
    if without_gain and not comparison.has_disturbed_speeds:
        yield (
            f"{arm_names_text(without_gain)} {_be(without_gain)} equivalent in "
            f"{comparison.units.title}, but not shown to be faster or to need less memory."
        )
    if failed := [arm for arm in arms if arm.status != "complete"]:
        yield f"{arm_names_text(failed)} failed."
    emulated = [
        arm for arm in arms if arm.outcome in (EQUIVALENT, BETTER) and arm.execution == "emulated"
    ]
    if emulated and comparison.baseline.execution != "emulated":
        yield (
            f"{arm_names_text(emulated)} {_be(emulated)} not worse in {comparison.units.title} but "
            "emulated: measure speed on a GPU."
        )
    yield from _undecided(comparison, arms)


def _on_inference(comparison: Comparison, arms: Sequence[ArmResult]) -> Iterator[str]:
    """Yield what is known about each mode that is not recommended."""
    base, metric = comparison.baseline.name, comparison.units.title
    for arm in arms:
        if arm.status != "complete":
            yield f"{arm.name} failed."
        elif not arm.outcome:
            yield f"{arm.name} has no verdict, because the models did not train well."
        elif arm.outcome == UNDECIDED:
            yield f"The difference of {arm.name} to {base} is not decided."
        else:
            emulated = (
                " (emulated: measure its speed on a GPU)" if arm.execution == "emulated" else ""
            )
            yield f"{arm.name} is {RELATIONS[arm.outcome]} {base} in {metric}{emulated}."


def _on_predictions(comparison: Comparison, arms: Sequence[ArmResult]) -> Iterator[str]:
    """Yield what the verdicts say, without costs, and for which models they hold."""
    for outcome, relation in RELATIONS.items():
        if some := [arm for arm in arms if arm.outcome == outcome]:
            yield (
                f"{arm_names_text(some)} {_be(some)} {relation} {comparison.baseline.name} in "
                f"{comparison.units.title}."
            )
    yield from _undecided(comparison, arms)
    if comparison.has_one_model_each:
        for arm in arms:
            yield from _changed_for(comparison, arm)
    if comparison.has_one_model_each and any(arm.outcome in OUTCOMES.values() for arm in arms):
        models = covered_models_text(comparison)
        yield (
            f"{models.capitalize()}, on examples like these; nothing is said about training them "
            "again."
        )


def _changed_for(comparison: Comparison, arm: ArmResult) -> Iterator[str]:
    """Yield how many answers a model corrects and loses, and for which examples beyond chance."""
    flips, base = arm.flips, comparison.baseline.name
    if flips is None:
        return
    yield (
        f"{arm.name} is right in {mean_count(flips.gained)} of {comparison.examples:,} examples "
        f"where {base} is wrong, and wrong in {mean_count(flips.lost)} where {base} is right."
    )
    worse, better = (_changed(comparison, arm, sign) for sign in (-1, 1))
    if worse:
        yield f"Beyond chance, {arm.name} is worse in {worse}."
    if better:
        yield f"Beyond chance, {arm.name} is better in {better}."
    examined = arm.subgroups
    if not (worse or better) and (examined or any(each.difference for each in arm.classes)):
        kinds = "class, length or frequent word" if examined and examined.has_words else "class"
        yield f"No {kinds} changed beyond chance."


def _changed(comparison: Comparison, arm: ArmResult, sign: int) -> str:
    """Return the classes by F1, and the lengths and words by accuracy, that differ in one way."""
    classes = class_changes(comparison, arm, sign=sign)[:MAX_CLASSES]
    listed = [
        f"class {each.name!r} (F1 {points(each.difference.estimate)} points)"
        for each in classes
        if each.difference is not None
    ]
    if (examined := arm.subgroups) is not None:
        found = examined.losses if sign < 0 else examined.gains
        listed += [
            f"{examined.noun} {'of' if each.kind == 'length' else 'with'} "
            f"{each.name if each.kind == 'length' else repr(each.name)} "
            f"({points(each.estimate)} points)"
            for each in found
            if each.kind != "class" and (each.is_loss or each.is_gain)
        ]
    return ", ".join(listed)


def _undecided(comparison: Comparison, arms: Sequence[ArmResult]) -> Iterator[str]:
    """Yield which differences are not decided, and what would decide a single one."""
    undecided = [arm for arm in arms if arm.outcome == UNDECIDED]
    if not undecided:
        return
    first, *others = undecided
    text = (
        f"The difference{'s' if others else ''} of {arm_names_text(undecided)} to "
        f"{comparison.baseline.name} {_be(undecided)} not decided"
    )
    needed = needed_text(comparison, first.difference) if first.difference else ""
    yield f"{text}: {needed}." if needed and not others else f"{text}."


def _be(arms: Sequence[ArmResult]) -> str:
    return "is" if len(arms) == 1 else "are"


def arm_names_text(arms: Sequence[ArmResult]) -> str:
    """Return the names of arms, such as "bf16 and fp16"; empty for none."""
    *names, last = ["", *(arm.name for arm in arms)]
    return f"{', '.join(names[1:])} and {last}" if len(names) > 1 else last
