"""What a reader has to know before the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ampft.comparison.analysis.likeness import stamps_of_differences
from ampft.comparison.analysis.loading import RunGroup
from ampft.comparison.findings import PlanFacts
from ampft.comparison.statistics.interval import FEWEST_SEEDS
from ampft.text.escaping import inert

UNPLANNED = (
    "metric, margin and number of seeds may have been chosen after looking at results, and speeds "
    "were measured at different times"
)
FEW_SEEDS = 4  # up to here an interval rarely fits inside a margin


def all_stamps(groups: Sequence[RunGroup], plan: PlanFacts) -> tuple[str, ...]:
    """Return the sentences, the gravest first.

    Args:
        groups: The baseline first.
        plan: What was decided about all runs together.

    Raises:
        InputError: The runs leave nothing to compare.
    """
    differences = stamps_of_differences(groups)
    return (*_of_seeds(groups), *_selected(groups), *differences, *_of_plan(plan))


def _of_seeds(groups: Sequence[RunGroup]) -> Iterator[str]:
    baseline = groups[0]
    seeds = len(baseline.runs)
    if baseline.status != "complete":
        yield f"{inert(baseline.name)} is {baseline.status_words()}: nothing to compare with"
    if seeds < FEWEST_SEEDS:
        yield (
            f"{seeds} seed{'s' * (seeds > 1)}: no error bars, no verdict; give at least "
            f"{FEWEST_SEEDS}"
        )
    elif seeds <= FEW_SEEDS:
        yield f"screening: {seeds} seeds cannot usually establish equivalence"


def _selected(groups: Sequence[RunGroup]) -> Iterator[str]:
    metrics = [run.record.metrics for group in groups for run in group.finished]
    chosen = [values for values in metrics if values.get("selected")]
    if chosen:
        yield (
            f"selected: the epoch was chosen on {inert(str(chosen[0].get('split')))} too, which "
            "the metrics come from; expect less on new data"
        )


def _of_plan(plan: PlanFacts) -> Iterator[str]:
    yield from plan.lacking
    yield from plan.reductions
    if plan.added_after_look:
        yield (
            "seeds added after a look at the results, which no plan named: the error rates of the "
            "verdicts do not hold; plan looks beforehand with --seeds 5,10"
        )
    if not plan.planned:
        yield f"no plan: {UNPLANNED}"
