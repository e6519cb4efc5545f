"""Stamps: caveats that a reader must know before the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ampft.comparison.analysis.comparability import difference_stamps
from ampft.comparison.analysis.cost import speed
from ampft.comparison.analysis.loading import RunGroup
from ampft.comparison.analysis.run_predictions import Cases
from ampft.comparison.findings import PRECISION, PlanFacts
from ampft.comparison.statistics.interval import MIN_SEEDS
from ampft.comparison.statistics.speed_up import is_reliable_speed
from ampft.text.escaping import inert
from ampft.text.numbers import ratio_text

UNPLANNED = (
    "metric, margin and number of seeds may have been chosen after results were seen, and speeds "
    "were measured at different times"
)
MAX_SCREENING_SEEDS = 4  # with so few, an interval rarely fits inside a margin


def all_stamps(
    groups: Sequence[RunGroup], plan: PlanFacts, varied: Sequence[str] = (PRECISION,)
) -> tuple[str, ...]:
    """Return the stamps, the most serious first.

    Args:
        groups: Runs of each arm, the baseline first.
        plan: Facts about all runs together.
        varied: Names of the settings that distinguish the arms.

    Raises:
        InputError: The runs cannot be compared.
    """
    differences = difference_stamps(groups, varied)
    return (
        *_training_stamps(groups),
        *_seed_stamps(groups),
        *_speed_stamps(groups),
        *_selection_stamps(groups),
        *differences,
        *_resume_stamps(groups),
        *_plan_stamps(plan),
    )


def _training_stamps(groups: Sequence[RunGroup]) -> Iterator[str]:
    runs = [(group, run) for group in groups for run in group.runs]
    suspect = [(group, run) for group, run in runs if run.record.warnings]
    if suspect:
        group, run = suspect[0]
        warning = inert(next(iter(run.record.warnings.values())))
        yield (
            f"not trained well: {len(suspect)} of {len(runs)} runs ended with a warning, such as "
            f"{inert(group.name)} with seed {run.seed}: {warning.rstrip('.')}"
        )


def _resume_stamps(groups: Sequence[RunGroup]) -> Iterator[str]:
    """Yield a stamp about runs that continued from a checkpoint under other conditions."""
    changed = [
        (group, run, {**part.topology, **part.environment})
        for group in groups
        for run in group.runs
        for part in run.record.resumes
        if part.topology or part.environment
    ]
    if changed:
        group, run, changes = changed[0]
        listed = ", ".join(
            f"{inert(name)} {inert(str(before))}, then {inert(str(now))}"
            for name, (before, now) in changes.items()
        )
        others = len({id(run) for _, run, _ in changed}) - 1
        rest = f"; {others} more run{'s' * (others > 1)} changed" if others else ""
        yield (
            f"changed during a run: {inert(group.name)} with seed {run.seed} was resumed under "
            f"other conditions ({listed}{rest}); the examples are the same, but not the rounding"
        )


def _speed_stamps(groups: Sequence[RunGroup]) -> Iterator[str]:
    for group in groups:
        placebo = speed(group, groups, in_turns=False) if group.is_placebo else None
        if (
            placebo is not None
            and placebo.speed_up is not None
            and not is_reliable_speed(placebo.speed_up.ratio)
        ):
            yield (
                f"speeds are unreliable: the placebo, which computes the same as "
                f"{inert(groups[0].name)}, ran at {ratio_text(placebo.speed_up.ratio)}x its "
                "speed; repeat the comparison on an otherwise idle machine"
            )


def group_stamps(cases: Cases) -> tuple[str, ...]:
    """Return the stamp of examples that are not independent, if there are any."""
    if cases.groups is None:
        return ()
    examples, groups = len(cases.truth), len(cases.groups)
    if cases.groups.column is not None:
        column = inert(cases.groups.column)
        return (
            f"grouped: the {examples:,} examples belong to {groups:,} groups (--group_column "
            f"{column}), which are the cases of the error bars",
        )
    return (
        f"duplicates: {examples - groups:,} of {examples:,} examples repeat another one (apart "
        f"from case, punctuation and white space), so the {groups:,} distinct ones are the cases "
        "of the error bars",
    )


def _seed_stamps(groups: Sequence[RunGroup]) -> Iterator[str]:
    baseline = groups[0]
    seeds = len(baseline.runs)
    if baseline.status != "complete":
        yield f"no baseline: {inert(baseline.name)} is {baseline.status_words()}"
    if seeds < MIN_SEEDS:
        yield (
            f"only {seeds} seed{'s' * (seeds > 1)}: error bars and verdicts need at least "
            f"{MIN_SEEDS}"
        )
    else:
        yield from screening_stamp(seeds)


def screening_stamp(seeds: int) -> tuple[str, ...]:
    """Return the stamp of a comparison with few seeds, if they are few."""
    if seeds > MAX_SCREENING_SEEDS:
        return ()
    return (f"screening: {seeds} seeds are usually too few to establish equivalence",)


def _selection_stamps(groups: Sequence[RunGroup]) -> Iterator[str]:
    metrics = [run.record.metrics for group in groups for run in group.finished]
    selected = [values for values in metrics if values.get("selected")]
    if selected:
        split = inert(str(selected[0].get("split")))
        yield (
            f"selected: the metrics come from {split}, on which the best epoch was also chosen; "
            "expect worse results on new data"
        )


def _plan_stamps(plan: PlanFacts) -> Iterator[str]:
    if plan.selection is not None:
        yield f"chosen: {plan.selection}"
    yield from plan.omitted_seeds
    yield from plan.reductions
    if plan.added_after_analysis:
        yield (
            "unplanned seeds were added after results were seen, so the error rates of the "
            "verdicts do not hold; plan interim analyses in advance with --seeds 5,10"
        )
    if not plan.planned:
        yield f"no plan: {UNPLANNED}"
