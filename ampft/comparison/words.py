"""A comparison in sentences: what each mode gains, what it costs, and how sure that is."""

from __future__ import annotations

from ampft.comparison.findings import ArmResult, Comparison, Difference
from ampft.text.numbers import (
    level,
    mean_count,
    percent,
    ratio_range,
    seed_words,
    times,
)

# Within these the clock and the memory of two runs of the same thing differ.
ABOUT_AS_FAST = 1.05
ABOUT_AS_MUCH = 0.01
SEEDS_FOR_AN_INTERVAL = 3
MANY_SEEDS = 1000  # where the search for a number of seeds ends


def verdict_sentences(comparison: Comparison) -> tuple[str, ...]:
    """Return the verdict on each mode, in the order of the arms.

    Args:
        comparison: Its own `verdicts` are not looked at, so they may still be empty.

    Returns:
        A few sentences for each arm that is neither the baseline nor the placebo.
    """
    return tuple(
        verdict_sentence(comparison, arm) for arm in comparison.arms[1:] if not arm.is_placebo
    )


def verdict_sentence(comparison: Comparison, arm: ArmResult) -> str:
    """Return the verdict on one mode: its speed and memory, then the metric.

    Args:
        comparison: Baseline, placebo and settings are read from it.
        arm: Neither the baseline nor the placebo. A reason that its runs gave stands in the
            sentence as it is: whoever shows the sentence makes it inert.
    """
    if arm.status != "complete":
        return incomplete(arm)
    sentences = [cost(arm, comparison.baseline)]
    changed = changed_predictions(comparison, arm)
    if arm.difference is None:
        found = without_interval(comparison, arm)
    else:
        found = f"{measured(comparison, arm.difference)}: {decided(comparison, arm.difference)}"
    sentences.append("; ".join(part for part in (found, changed) if part) + ".")
    sentences.append(perspective(comparison, arm.difference))
    return " ".join(sentence for sentence in sentences if sentence)


def incomplete(arm: ArmResult) -> str:
    """Say how a mode broke: it gets no mean over the runs that survived."""
    wanted = "diverged" if arm.status == "unstable" else None
    broken = [run for run in arm.runs if run.status == wanted or not wanted]
    broken = [run for run in broken if run.status != "finished"]
    reasons = list(dict.fromkeys(run.reason.rstrip(".") for run in broken if run.reason))
    reason = f": {reasons[0]}" if reasons else ""
    name = f"{arm.name} (emulated)" if arm.execution == "emulated" else arm.name
    runs = f"{len(broken)} of {len(arm.runs)} runs"
    seeds = f" ({seed_words([run.seed for run in broken])})" if broken else ""
    if wanted:
        return (
            f"{name} is unstable: {runs} diverged{seeds}{reason}. "
            "No mean is taken over the runs that survived."
        )
    return f"{name} failed: {runs} did not finish{seeds}{reason}."


def cost(arm: ArmResult, baseline: ArmResult) -> str:
    """Say in one sentence how fast a mode is and how much memory it needs."""
    if arm.execution == "emulated":
        return f"{arm.name} is emulated: its speed says nothing about a GPU's."
    memory = _memory_words(arm) if baseline.status == "complete" else None
    if arm.speed is None or arm.speed.ratio is None or baseline.status != "complete":
        return _unranked(arm, baseline, memory)
    direction, speed = _speed_words(arm, arm.speed.ratio, arm.speed.ratio_spread, baseline.name)
    if memory is None:
        return f"{arm.name} is {speed}."
    link = "but" if direction * memory[0] < 0 else "and"
    return f"{arm.name} is {speed} {link} needs {memory[1]}."


def _speed_words(
    arm: ArmResult, ratio: float, spread: tuple[float, float] | None, baseline: str
) -> tuple[int, str]:
    """Return 1 for faster, -1 for slower or 0, and the words with the range over the seeds."""
    low, high = spread or (ratio, ratio)
    is_apart = low > 1 or high < 1
    one = "at one seed" if spread and len(arm.runs) == 1 else ""
    if not is_apart or 1 / ABOUT_AS_FAST < ratio < ABOUT_AS_FAST:
        found = f"{ratio_range(low, high)} times" + (f", {one}" if one else "")
        return 0, f"about as fast as {baseline}" + (f" ({found})" if spread else "")
    direction, word = (1, "faster") if ratio > 1 else (-1, "slower")
    if direction < 0:
        ratio, low, high = 1 / ratio, 1 / high, 1 / low
    found = one or f"{ratio_range(low, high)} over the seeds"
    words = f"{times(ratio)} times {word} than {baseline}" + (f" ({found})" if spread else "")
    return direction, words


def _unranked(arm: ArmResult, baseline: ArmResult, memory: tuple[int, str, str] | None) -> str:
    """Say why a mode has no place beside the baseline, whose steps or its own are no measure."""
    is_timed = arm.speed is not None and bool(arm.speed.step_seconds)
    if baseline.status != "complete" and (is_timed or arm.memory is not None):
        return (
            f"Speed and memory of {arm.name} are not ranked, because {baseline.name} is not "
            "complete."
        )
    why = "was not measured"
    if is_timed and baseline.execution == "emulated":
        why = f"is not ranked, because {baseline.name} is emulated"
    if memory is not None:
        return f"{arm.name} needs {memory[1]} {memory[2]} {baseline.name}; its speed {why}."
    if is_timed:
        return f"The speed of {arm.name} {why}."
    return f"Speed and memory of {arm.name} were not measured."


def _memory_words(arm: ArmResult) -> tuple[int, str, str] | None:
    """Return 1 for a saving or -1 for a cost, the words, and what joins the baseline to them."""
    ratio = arm.memory.ratio if arm.memory else None
    if ratio is None:
        return None
    if abs(ratio - 1) < ABOUT_AS_MUCH:
        return 0, "as much memory", "as"
    if ratio < 1:
        return 1, f"{percent(1 - ratio)} less memory", "than"
    return -1, f"{percent(ratio - 1)} more memory", "than"


def measured(comparison: Comparison, difference: Difference) -> str:
    """Return the metric's difference: "Accuracy: +0.1 point (95 % interval ..., 5 seeds)"."""
    units = comparison.units
    seeds = len(difference.per_seed)
    look = ""
    if len(comparison.looks) > 1 and seeds in comparison.looks:
        look = f", look {comparison.looks.index(seeds) + 1} of {len(comparison.looks)}"
    return (
        f"{units.sentence()}: {units.in_words(difference.estimate)} "
        f"({level(difference.level95)} interval {units.interval(difference.interval95)}, "
        f"{seeds} seeds{look})"
    )


def decided(comparison: Comparison, difference: Difference) -> str:
    """Return the verdict's word beside the margin."""
    margin = comparison.units.margin_words
    verdict = difference.verdict or "undecided"
    if verdict == "equivalent":
        within = comparison.units.interval(difference.interval90)
        return f"equivalent at a margin of {margin} ({level(difference.level90)} interval {within})"
    if verdict.endswith("beyond the margin"):
        return f"{verdict} of {margin}"
    uncertain = _after_holm(comparison, difference)
    if verdict == "undecided":
        return f"undecided at a margin of {margin}{f' ({uncertain})' if uncertain else ''}"
    return f"{verdict} (the margin is {margin}{f'; {uncertain}' if uncertain else ''})"


def _after_holm(comparison: Comparison, difference: Difference) -> str:
    """Say why a mode has a weaker verdict than its own interval would give it; or nothing."""
    pairs = {
        "its interval lies beyond the margin": (difference.p_beyond, difference.p_beyond_holm),
        "its interval excludes 0": (difference.p_difference, difference.p_difference_holm),
        f"its {level(difference.level90)} interval lies within the margin": (
            difference.p_equivalence,
            difference.p_equivalence_holm,
        ),
    }
    for words, (alone, adjusted) in pairs.items():
        if alone is not None and adjusted is not None and alone <= comparison.alpha < adjusted:
            candidates = [arm for arm in comparison.arms if arm.difference and not arm.is_placebo]
            return f"{words}, but not after Holm's correction for {len(candidates)} modes"
    return ""


def without_interval(comparison: Comparison, arm: ArmResult) -> str:
    """Return the difference of means where there are too few seeds for an interval."""
    units = comparison.units
    name = units.sentence()
    own = arm.metrics.get(comparison.metric)
    base = comparison.baseline.metrics.get(comparison.metric)
    if own is None or base is None:
        return f"{name}: no difference, because {comparison.baseline.name} is not complete"
    seeds = len(own.per_seed)
    words = f"{name}: {units.in_words(own.mean - base.mean)}"
    if seeds >= SEEDS_FOR_AN_INTERVAL:
        return f"{words} over {seeds} seeds, without an interval and so without a verdict"
    each = [a - b for a, b in zip(own.per_seed, base.per_seed, strict=True)]
    apart = f" ({' and '.join(map(units.difference, each))})" if seeds > 1 else ""
    return (
        f"{words} over {seeds} {'seeds' if seeds > 1 else 'seed'}{apart}: no verdict, because an "
        f"interval needs at least {SEEDS_FOR_AN_INTERVAL} seeds"
    )


def changed_predictions(comparison: Comparison, arm: ArmResult) -> str:
    """Return how many predictions a mode changes, beside what the placebo changes."""
    if arm.flips is None:
        return ""
    words = f"{arm.name} changes {_changes(arm.flips.mean)} of {comparison.examples:,} predictions"
    placebos = [other.flips for other in comparison.arms if other.is_placebo and other.flips]
    if not placebos:
        return words
    itself = _changes(placebos[0].mean)
    return f"{words}, {comparison.baseline.name} against itself changes {itself}"


def perspective(comparison: Comparison, difference: Difference | None) -> str:
    """Say what the margin is worth, and what equivalence leaves open or a decision would need."""
    parts = []
    if comparison.margin_share_of_errors is not None:
        share = percent(comparison.margin_share_of_errors)
        whole = f"{comparison.baseline.name}'s errors"
        if comparison.metric != "accuracy":
            whole = (
                f"what {comparison.baseline.name} lacks of a perfect {comparison.units.sentence()}"
            )
        parts.append(f"{comparison.units.margin_words} is {share} of {whole}")
    if difference is not None and difference.verdict == "equivalent":
        parts += _unseen(comparison, difference)
    if difference is not None and difference.verdict == "undecided":
        is_too_small = difference.cases_needed is not None
        parts.append((_more_cases if is_too_small else _more_seeds)(comparison, difference))
    sentence = "; ".join(parts)
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def _unseen(comparison: Comparison, difference: Difference) -> list[str]:
    """Say how large a failure could be that neither the examples nor the seeds show."""
    parts = []
    if difference.unseen_share is not None:
        share = f"{100 * difference.unseen_share:.2g} %"
        parts.append(
            f"a subgroup of up to {share} of examples could fail at every seed without being among "
            f"these {comparison.examples:,} (probability 5 %)"
        )
    if difference.failure_rate is not None:
        parts.append(
            f"{len(difference.per_seed)} clean seeds exclude only failure rates above "
            f"{percent(difference.failure_rate)}"
        )
    return parts


def _more_cases(comparison: Comparison, difference: Difference) -> str:
    """Say why a difference within the margin is not called equivalent."""
    loss = f"a loss of {comparison.units.margin_words}"
    if difference.rarest_class is None:
        return (
            f"{loss} could come from rare examples that this test set lacks: to exclude it takes "
            f"at least {difference.cases_needed:,} examples, and there are {comparison.examples:,}"
        )
    return (
        f"{loss} could come from class {comparison.label_names[difference.rarest_class]!r} only: "
        f"to exclude it takes at least {difference.cases_needed:,} examples of it, and there are "
        f"{difference.rarest_cases:,}"
    )


def _more_seeds(comparison: Comparison, difference: Difference) -> str:
    if difference.seeds_to_decide is None:
        return f"more seeds are unlikely to decide it: {comparison.examples:,} examples are too few"
    least, most = difference.seeds_to_decide
    if most >= MANY_SEEDS:
        return f"a decision is unlikely with fewer than {least:,} seeds, and uncertain with any"
    number = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return f"about {number} seeds would probably decide it"


def _changes(mean: float) -> str:
    return mean_count(mean) if mean else "none"
