"""The verdict on each mode in sentences: speed, memory, metric and uncertainty."""

from __future__ import annotations

from collections.abc import Iterator

from ampft.comparison.cost_text import cost_text
from ampft.comparison.findings import INFERENCE, ArmResult, ClassFigures, Comparison
from ampft.comparison.settings import MIN_SEEDS
from ampft.comparison.statistics.power import MAX_SEEDS
from ampft.comparison.statistics.verdict import BETTER, EQUIVALENT, OUTCOMES, Difference, Verdict
from ampft.text.numbers import confidence_percent, counted, mean_count, percent, points, seed_list

MAX_CLASSES = 3  # in a sentence
SHORT_INTERVAL = (
    ", so that the interval may be too short on one side, and other examples may reverse the "
    "verdict"
)
# 7 to 10 % with lognormal effects, 36 to 85 % with one in 20: `benchmarks/LOG.md`, "The price of an
# allowance for lognormal effects of seeds".
UNEVEN_SEEDS = (
    "equivalence assumes that no rare training loses far more than the others: effects of seeds as "
    "skewed as exponential ones are allowed for; with more skewed ones, a loss of the margin "
    "passes in about 10 % of comparisons instead of 5 %"
)


def verdict_texts(comparison: Comparison) -> tuple[str, ...]:
    """Return the verdict on each mode, in the order of the arms.

    Args:
        comparison: Comparison with the baseline, the placebo and the other arms.

    Returns:
        A few sentences for each arm except the baseline and the placebo.
    """
    return tuple(verdict_text(comparison, arm) for arm in comparison.arms[1:] if not arm.is_placebo)


def verdict_text(comparison: Comparison, arm: ArmResult) -> str:
    """Return the verdict on one mode: its speed and memory, then the metric.

    Args:
        arm: Neither the baseline nor the placebo. A reason that one of its runs recorded is quoted
            verbatim, so the caller must escape the text for display.
    """
    if arm.status != "complete":
        return incomplete_text(arm)
    suspect = next((side for side in (comparison.baseline, arm) if side.suspect_runs), None)
    has_verdict = arm.difference is not None and arm.difference.verdict is not None
    if suspect is not None and not has_verdict:
        return suspect_text(arm, suspect)
    if arm.difference is None:
        metric = mean_difference_text(comparison, arm)
    else:
        difference = difference_text(comparison, arm.difference)
        metric = f"{difference}: {decision_text(comparison, arm.difference)}"
    changed = changed_predictions(comparison, arm)
    sentences = [
        cost_text(comparison, arm),
        f"{metric}.",
        f"{changed}." if changed else "",
        _classes_text(comparison, arm, sign=-1),
        _classes_text(comparison, arm, sign=1),
        margin_text(comparison, arm.difference),
    ]
    return " ".join(filter(None, sentences))


def incomplete_text(arm: ArmResult) -> str:
    """Return which runs of a mode diverged or did not finish, and why."""
    is_unstable = arm.status == "unstable"
    broken = [run for run in arm.runs if run.status == "diverged" or not is_unstable]
    broken = [run for run in broken if run.status != "finished"]
    reasons = list(dict.fromkeys(run.reason.rstrip(".") for run in broken if run.reason))
    reason = f": {reasons[0]}" if reasons else ""
    name = f"{arm.name} (emulated)" if arm.execution == "emulated" else arm.name
    runs = f"{len(broken)} of {len(arm.runs)} runs"
    seeds = f" ({seed_list([run.seed for run in broken])})" if broken else ""
    if is_unstable:
        return (
            f"{name} is unstable because {runs} diverged{seeds}{reason}. "
            "No mean over the remaining runs is reported."
        )
    return f"{name} failed because {runs} did not finish{seeds}{reason}."


def suspect_text(arm: ArmResult, suspect: ArmResult) -> str:
    """Return why a mode has no verdict: its models, or the baseline's, learned nothing."""
    runs = suspect.suspect_runs
    assert runs[0].warnings, "it is suspect"
    which = f"{len(runs)} of {len(suspect.runs)} runs of {suspect.name}"
    if len(suspect.runs) == 1:
        which = suspect.name
    else:
        which += f" ({seed_list([run.seed for run in runs])})"
    return f"{arm.name} has no verdict, because {which} did not train well: {runs[0].warnings[0]}"


def difference_text(comparison: Comparison, difference: Difference) -> str:
    """Return a text such as "Accuracy difference +0.1 points (95 % CI ..., 5 seeds)"."""
    units = comparison.units
    seeds = len(difference.per_seed)
    is_cut = units.cut(difference.interval95) != difference.interval95
    analysis, cut = "", " (cut off at the ends of the scale)" if is_cut else ""
    planned = comparison.seed_counts
    if len(planned) > 1 and seeds in planned:
        analysis = f", planned analysis {planned.index(seeds) + 1} of {len(planned)}"
    # Too few seeds for an interval over seeds are models of their own.
    samples = f"{seeds} seeds" if seeds >= MIN_SEEDS else counted(seeds, "model")
    if comparison.has_one_model_each:
        samples = "one model each"
    return (
        f"{units.capitalized()} difference {units.difference_with_unit(difference.estimate)} "
        f"({confidence_percent(difference.level95)} CI {units.interval(difference.interval95)}"
        f"{cut}, {samples}{analysis})"
    )


def decision_text(comparison: Comparison, difference: Difference) -> str:
    """Return the verdict with the margin it refers to."""
    margin = comparison.units.margin_with_unit
    verdict = difference.verdict or Verdict.UNDECIDED
    if verdict == Verdict.EQUIVALENT:
        within = comparison.units.interval(difference.interval90)
        return (
            f"equivalent at a margin of {margin} "
            f"({confidence_percent(difference.level90)} CI {within})"
        )
    if verdict in (Verdict.WORSE_BEYOND, Verdict.BETTER_BEYOND):
        return f"{OUTCOMES[verdict]} beyond the margin of {margin}"
    lost_to_holm = _lost_to_holm(comparison, difference)
    if verdict == Verdict.UNDECIDED:
        reason = lost_to_holm or _lost_to_skewness(comparison, difference)
        return f"undecided at a margin of {margin}{f' ({reason})' if reason else ''}"
    evidence = "; ".join(filter(None, (f"margin {margin}", lost_to_holm)))
    return f"{OUTCOMES[verdict]}, size uncertain ({evidence})"


def _lost_to_holm(comparison: Comparison, difference: Difference) -> str:
    """Return why a verdict is weaker than its confidence interval suggests, or an empty string."""
    each = difference
    at95, at90 = confidence_percent(each.level95), confidence_percent(each.level90)
    claims = (
        (f"its {at95} CI lies beyond the margin", each.p_beyond, each.p_beyond_holm),
        (f"its {at95} CI excludes 0", each.p_difference, each.p_difference_holm),
        (f"its {at90} CI lies within the margin", each.p_equivalence, each.p_equivalence_holm),
    )
    for claim, raw, adjusted in claims:
        if raw is not None and adjusted is not None and raw <= comparison.alpha < adjusted:
            arms = [arm for arm in comparison.arms if arm.difference and not arm.is_placebo]
            return f"{claim}, but not after Holm's correction for {len(arms)} {comparison.noun}s"
    return ""


def _lost_to_skewness(comparison: Comparison, difference: Difference) -> str:
    """Return that only skewed effects of seeds speak against equivalence, or an empty string."""
    skewed, margin = difference.skewed90, comparison.margin
    is_within = max(map(abs, difference.interval90)) <= margin
    if skewed is None or not is_within or max(map(abs, skewed)) <= margin:
        return ""
    return (
        f"its {confidence_percent(difference.level90)} CI lies within the margin, but extends to "
        f"{comparison.units.interval(skewed)} if the effects of the seeds are skewed, which "
        f"{len(difference.per_seed)} seeds cannot show"
    )


def mean_difference_text(comparison: Comparison, arm: ArmResult) -> str:
    """Return the difference of means if there are too few seeds for a confidence interval."""
    units = comparison.units
    name = f"{units.capitalized()} difference"
    values = arm.metrics.get(comparison.metric)
    base = comparison.baseline.metrics.get(comparison.metric)
    if values is None or base is None:
        return f"{name} unknown because {comparison.baseline.name} has diverged or unfinished runs"
    seeds = len(values.per_seed)
    text = f"{name} {units.difference_with_unit(values.mean - base.mean)}"
    if seeds >= MIN_SEEDS:
        return f"{text} over {seeds} seeds, without a confidence interval and therefore no verdict"
    differences = [a - b for a, b in zip(values.per_seed, base.per_seed, strict=True)]
    listed = f" ({' and '.join(map(units.difference, differences))})" if seeds > 1 else ""
    return (
        f"{text} over {seeds} {'seeds' if seeds > 1 else 'seed'}{listed}: no verdict, because a "
        f"confidence interval needs at least {MIN_SEEDS} seeds"
        + (f", or one run per {comparison.noun} to compare these models only" if seeds > 1 else "")
    )


def changed_predictions(comparison: Comparison, arm: ArmResult) -> str:
    """Return how many predictions a mode changes, and how many the placebo changes."""
    if arm.flips is None:
        return ""
    text = f"{arm.name} changes {_changes(arm.flips.mean)} of {comparison.examples:,} predictions"
    placebos = [other.flips for other in comparison.arms if other.is_placebo and other.flips]
    if not placebos:
        return text
    return f"{text}; the placebo changes {_changes(placebos[0].mean)}"


def class_changes(comparison: Comparison, arm: ArmResult, *, sign: int) -> list[ClassFigures]:
    """Return the classes whose F1 falls (sign -1) or rises (1) beyond chance, the largest first."""
    changes = [
        (sign * each.difference.estimate, each)
        for each in arm.classes
        if each.difference is not None
        and each.difference.p_difference_holm is not None
        and each.difference.p_difference_holm <= comparison.alpha
    ]
    found = [change for change in changes if change[0] > 0]
    return [each for _, each in sorted(found, key=lambda change: -change[0])]


def _classes_text(comparison: Comparison, arm: ArmResult, *, sign: int) -> str:
    """Return the classes whose F1 falls (sign -1) or rises (1) beyond chance; empty if none."""
    found = class_changes(comparison, arm, sign=sign)
    listed = [
        f"{each.name!r} {points(change.estimate)} points ({confidence_percent(change.level)} CI "
        f"{points(change.interval[0])} to {points(change.interval[1])})"
        for each in found[:MAX_CLASSES]
        if (change := each.difference) is not None
    ]
    more = len(found) - len(listed)
    rest = f" and {more} more" if more else ""
    verb = "falls" if sign < 0 else "rises"
    return f"F1 {verb} beyond chance in class {', '.join(listed)}{rest}." if listed else ""


def margin_text(comparison: Comparison, difference: Difference | None) -> str:
    """Return the size of the margin, and what equivalence leaves open or a decision would need."""
    parts = []
    if comparison.margin_share_of_errors is not None:
        share = percent(comparison.margin_share_of_errors)
        reference = f"{comparison.baseline.name}'s errors"
        if comparison.metric != "accuracy":
            title = comparison.units.title
            reference = f"the gap between {comparison.baseline.name} and a perfect {title}"
        parts.append(f"a margin of {comparison.units.margin_with_unit} is {share} of {reference}")
    if difference is not None:
        parts += _left_open(comparison, difference)
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _left_open(comparison: Comparison, difference: Difference) -> Iterator[str]:
    """Yield what a verdict rests on or does not exclude, and what a decision would need."""
    if difference.carrying_cases is not None:
        yield carrying_text(difference.carrying_cases, difference.cases)
    if difference.carrying_labels is not None:
        yield carrying_labels_text(difference.carrying_labels, difference.cases)
    if difference.verdict == Verdict.EQUIVALENT:
        yield from _not_excluded(comparison, difference)
    is_kept = OUTCOMES.get(difference.verdict or "") in (EQUIVALENT, BETTER)
    if is_kept and difference.failure_rate is not None:
        yield (
            f"{len(difference.per_seed)} seeds without a failure exclude only failure rates above "
            f"{percent(difference.failure_rate)}"
        )
    if difference.verdict == Verdict.UNDECIDED:
        yield needed_text(comparison, difference)


def carrying_text(carrying: int, cases: int) -> str:
    """Return that a few large errors decide a metric without a largest error."""
    return (
        "a few large errors carry this difference: half of its variance comes from "
        f"{carrying:,} of {cases:,} cases{SHORT_INTERVAL}"
    )


def carrying_labels_text(carrying: int, cases: int) -> str:
    """Return that a few extreme labels could decide a metric without a largest error."""
    return (
        "a few extreme labels could decide this difference: an error on one of the "
        f"{carrying:,} most extreme of {cases:,} cases weighs as much as many others"
        f"{SHORT_INTERVAL}"
    )


def needed_text(comparison: Comparison, difference: Difference) -> str:
    """Return what would decide an undecided difference, in a clause."""
    if difference.cases_needed is not None:
        return _cases_needed(comparison, difference)
    return _seeds_needed(comparison, difference)


def _not_excluded(comparison: Comparison, difference: Difference) -> Iterator[str]:
    """Yield how large a failure could be that the examples do not show."""
    count, noun = _cases(comparison)
    if difference.unseen_share is not None:
        share = f"{100 * difference.unseen_share:.2g} %"
        at_every_seed = "" if comparison.has_one_model_each else " at every seed"
        yield (
            f"a subgroup of up to {share} of {noun} could fail{at_every_seed} without being among "
            f"these {count:,} (probability 5 %)"
        )
    if comparison.has_fixed_models:
        yield (
            f"the verdict holds for {covered_models_text(comparison)}, not for models that are "
            "trained again"
        )
    if difference.skewed90 is not None:
        yield UNEVEN_SEEDS


def covered_models_text(comparison: Comparison) -> str:
    """Return the models that a verdict without an interval over seeds covers: "these models"."""
    if comparison.kind == INFERENCE:
        return "this model" if len(comparison.seeds) == 1 else "these models"
    models = len(comparison.arms)
    return f"these {'two' if models == 2 else models} models"


def seeds_text(comparison: Comparison) -> str:
    """Return the seeds of each arm, as "seeds 1 to 5", or "one model per arm"."""
    if comparison.has_one_model_each:
        return f"one model per {comparison.noun}"
    return seed_list(comparison.seeds)


def _cases_needed(comparison: Comparison, difference: Difference) -> str:
    """Return why a difference within the margin is not called equivalent."""
    loss = f"a loss of {comparison.units.margin_with_unit}"
    count, noun = _cases(comparison)
    source = "rare examples that are not in this test set"
    if difference.rarest_class is not None:
        source = f"class {comparison.label_names[difference.rarest_class]!r} only"
        count, noun = difference.rarest_cases or 0, f"{noun} of that class"
    needed = difference.cases_needed or 0
    takes = f"at least {needed:,} {noun}, and there are {count:,}"
    if count >= needed:  # so few suffice only if none of them is lost
        takes = f"more than these {count:,} {noun}, because losses were seen among them"
    return f"{loss} could come from {source}: excluding it takes {takes}"


def _cases(comparison: Comparison) -> tuple[int, str]:
    """Return the number and the name of the cases of the statistics."""
    if comparison.groups is None:
        return comparison.examples, "examples"
    return comparison.groups, "groups of examples"


def _seeds_needed(comparison: Comparison, difference: Difference) -> str:
    count, noun = _cases(comparison)
    if len(difference.per_seed) < MIN_SEEDS:
        return f"{count:,} {noun} are too few to decide; use more test examples or a wider --margin"
    if difference.seeds_to_decide is None:
        return f"more seeds are unlikely to allow a decision, because {count:,} {noun} are too few"
    low, high = difference.seeds_to_decide
    if high >= MAX_SEEDS:
        return f"a decision is unlikely with fewer than {low:,} seeds, and not certain with more"
    number = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"a decision would probably need about {number} seeds"


def _changes(mean: float) -> str:
    return mean_count(mean) if mean else "none"
