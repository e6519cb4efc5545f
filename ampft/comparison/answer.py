"""The answer of a comparison in a few short sentences, which stand above the verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ampft.comparison.cost_text import savings_text, speed_up_of
from ampft.comparison.findings import INFERENCE, PREDICTIONS, TRAINING, ArmResult, Comparison
from ampft.comparison.statistics.verdict import BETTER, EQUIVALENT, OUTCOMES, UNDECIDED, WORSE
from ampft.comparison.verdict_text import (
    MAX_CLASSES,
    class_changes,
    covered_models_text,
    needed_text,
)
from ampft.text.numbers import mean_count, points

RELATIONS = {WORSE: "worse than", BETTER: "better than", EQUIVALENT: "equivalent to"}


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
    if not _ranks_costs(comparison):
        return [*_verdicts(comparison, arms), *_changes(comparison, arms)]
    recommendation, named = _recommendation(comparison, arms)
    return [recommendation, *_verdicts(comparison, [arm for arm in arms if arm not in named])]


def _ranks_costs(comparison: Comparison) -> bool:
    """Return whether speed and memory matter to the answer, and not only which model is better."""
    return comparison.kind != PREDICTIONS and not comparison.has_one_model_each


def _recommendation(
    comparison: Comparison, arms: Sequence[ArmResult]
) -> tuple[str, Sequence[ArmResult]]:
    """Return which arm to use, and the arms whose verdict this says already."""
    base, title = comparison.baseline.name, comparison.units.title
    better = [arm for arm in arms if arm.outcome == BETTER and comparison.noun == "arm"]
    if len(better) == 1:
        return f"Use {better[0].name}: it is better than {base} in {title}.", better
    if better:
        text = (
            f"{arm_names_text(better)} are better than {base} in {title}. Which of them is the "
            "best is not decided here, and the largest difference overstates its gain."
        )
        return text, better
    gaining = [arm for arm in arms if savings_text(comparison, arm)]
    if gaining:
        best = max(gaining, key=speed_up_of)
        verb, here = ("Deploy", "") if comparison.kind == INFERENCE else ("Use", " here")
        text = (
            f"{verb} {best.name}: it is {RELATIONS[best.outcome]} {base} in {title}, and it "
            f"{savings_text(comparison, best)}{here}."
        )
        return text, [best]
    native = [arm for arm in arms if arm.outcome == EQUIVALENT and arm.execution != "emulated"]
    if native and comparison.has_disturbed_speeds:
        names = arm_names_text(native)
        text = f"{names} {_be(native)} equivalent to {base} in {title}. Speeds are not ranked."
        return text, native
    return f"On this machine, stay with {base}.", []


def _verdicts(comparison: Comparison, arms: Sequence[ArmResult]) -> Iterator[str]:
    """Yield the verdicts: one sentence for all arms with the same verdict and reservation."""
    base, title = comparison.baseline.name, comparison.units.title
    for outcome, relation in RELATIONS.items():
        by_reservation: dict[str, list[ArmResult]] = {}
        for arm in arms:
            if arm.outcome == outcome:
                by_reservation.setdefault(_reservation(comparison, arm), []).append(arm)
        for reservation, some in by_reservation.items():
            yield f"{arm_names_text(some)} {_be(some)} {relation} {base} in {title}{reservation}."
    if failed := [arm for arm in arms if arm.status != "complete"]:
        yield f"{arm_names_text(failed)} failed."
    has_suspects = bool(comparison.baseline.suspect_runs)
    for arm in arms:
        if arm.status == "complete" and not arm.outcome and (has_suspects or arm.suspect_runs):
            yield f"{arm.name} has no verdict, because the models did not train well."
    yield from _undecided(comparison, arms)


def _reservation(comparison: Comparison, arm: ArmResult) -> str:
    """Return why an arm that is not worse is not recommended; empty if that goes without saying."""
    if not _ranks_costs(comparison) or arm.outcome == WORSE:
        return ""
    if arm.execution == "emulated":
        is_alone = comparison.baseline.execution != "emulated"
        return ", but emulated: measure speed on a GPU" if is_alone else ""
    is_ranked = comparison.kind == TRAINING and not comparison.has_disturbed_speeds
    if is_ranked and arm.outcome == EQUIVALENT and not savings_text(comparison, arm):
        return ", but not shown to be faster or to need less memory"
    return ""


def _changes(comparison: Comparison, arms: Sequence[ArmResult]) -> Iterator[str]:
    """Yield how the answers of single models changed, and for which models the verdicts hold."""
    if not comparison.has_one_model_each:
        return
    for arm in arms:
        yield from _changed_for(comparison, arm)
    if any(arm.outcome in OUTCOMES.values() for arm in arms):
        yield (
            f"This holds for {covered_models_text(comparison)} on examples like these, and says "
            "nothing about training them again."
        )


def _changed_for(comparison: Comparison, arm: ArmResult) -> Iterator[str]:
    """Yield how many answers a model corrects and loses, and for which examples beyond chance."""
    flips, base = arm.flips, comparison.baseline.name
    if flips is None:
        return
    if flips.closer is not None and flips.farther is not None:
        yield (
            f"{arm.name} is closer to the label than {base} in {mean_count(flips.closer)} of "
            f"{comparison.examples:,} examples, and farther from it in "
            f"{mean_count(flips.farther)}."
        )
    elif flips.gained or flips.lost or flips.both_correct:  # masks are hardly ever right as a whole
        yield (
            f"{arm.name} is right in {mean_count(flips.gained)} of {comparison.examples:,} "
            f"examples where {base} is wrong, and wrong in {mean_count(flips.lost)} where {base} "
            "is right."
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
        share = "" if comparison.metric == "accuracy" else "share right "
        listed += [
            f"{examined.noun} {'of' if each.kind == 'length' else 'with'} "
            f"{each.name if each.kind == 'length' else repr(each.name)} "
            f"({share}{points(each.estimate)} points)"
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
