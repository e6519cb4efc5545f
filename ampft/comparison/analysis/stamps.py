"""Stamps: caveats that a reader must know before the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ampft.arguments.compare import MIN_SEEDS
from ampft.comparison.analysis.comparability import difference_stamps
from ampft.comparison.analysis.loading import RunGroup
from ampft.comparison.analysis.run_figures import speed
from ampft.comparison.analysis.run_predictions import Cases
from ampft.comparison.findings import PRECISION, PlanFacts
from ampft.comparison.remarks import Remark, remark
from ampft.comparison.statistics.speed_up import is_reliable_speed
from ampft.text.json_io import JSONValue

MAX_SCREENING_SEEDS = 4  # with so few, an interval rarely fits inside a margin


def all_stamps(
    groups: Sequence[RunGroup], plan: PlanFacts, varied: Sequence[str] = (PRECISION,)
) -> tuple[Remark, ...]:
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
        *side_by_side_stamps(groups, plan),
        *_selection_stamps(groups),
        *differences,
        *_resume_stamps(groups),
        *plan.remarks,
        *([remark("added")] if plan.added_after_analysis else []),
        *([] if plan.planned else [remark("unplanned")]),
    )


def _training_stamps(groups: Sequence[RunGroup]) -> Iterator[Remark]:
    runs = [(group, run) for group in groups for run in group.runs]
    suspect = [(group, run) for group, run in runs if run.record.warnings]
    if suspect:
        group, run = suspect[0]
        yield remark(
            "suspect",
            runs=len(suspect),
            total=len(runs),
            arm=group.name,
            seed=run.seed,
            warning=next(iter(run.record.warnings.values())),
        )


def _resume_stamps(groups: Sequence[RunGroup]) -> Iterator[Remark]:
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
        yield remark(
            "resumed",
            arm=group.name,
            seed=run.seed,
            changes={name: [str(before), str(now)] for name, (before, now) in changes.items()},
            more=len({id(run) for _, run, _ in changed}) - 1,
        )


def _speed_stamps(groups: Sequence[RunGroup]) -> Iterator[Remark]:
    for group in groups:
        placebo = speed(group, groups, in_turns=False) if group.is_placebo else None
        measured = placebo.speed_up if placebo else None
        if measured is not None and not is_reliable_speed(measured.ratio):
            yield remark("unreliable_speeds", baseline=groups[0].name, ratio=measured.ratio)


def side_by_side_stamps(groups: Sequence[RunGroup], plan: PlanFacts) -> Iterator[Remark]:
    """Yield where runs trained if several did at the same time, or on several nodes."""
    nodes: list[JSONValue] = [*sorted(set(plan.nodes.values()))]
    if plan.runs_at_a_time == 1 and len(nodes) < 2:
        return
    records = [run.record for group in groups for run in group.runs]
    found = {str(gpu) for record in records for gpu in record.hardware.get("gpus") or ()}
    kinds: list[JSONValue] = [*sorted(found)]
    on_cpu = any(record.topology.device != "cuda" for record in records)
    if on_cpu and nodes:
        yield remark("several_nodes", runs=plan.runs_at_a_time, nodes=nodes)
    elif on_cpu:
        yield remark("shared_cores", runs=plan.runs_at_a_time)
    elif len(kinds) > 1:
        yield remark("several_gpus", gpus=kinds)
    else:
        yield remark("own_gpus", runs=plan.runs_at_a_time, gpus=kinds)


def group_stamps(cases: Cases) -> tuple[Remark, ...]:
    """Return the stamp of examples that are not independent, if there are any."""
    if cases.groups is None:
        return ()
    examples, groups = len(cases.truth), len(cases.groups)
    if cases.groups.column is None:
        return (remark("duplicates", examples=examples, groups=groups),)
    return (remark("grouped", examples=examples, groups=groups, column=cases.groups.column),)


def _seed_stamps(groups: Sequence[RunGroup]) -> Iterator[Remark]:
    baseline, seeds = groups[0], len(groups[0].runs)
    if baseline.status != "complete":
        yield remark("no_baseline", arm=baseline.name, status=baseline.status_words)
    yield from seed_stamps(seeds)


def seed_stamps(seeds: int) -> Iterator[Remark]:
    """Yield what a number of seeds per arm leaves open."""
    if seeds == 1:
        yield remark("one_model_each", needed=MIN_SEEDS)
    elif seeds < MIN_SEEDS:
        yield remark("few_seeds", seeds=seeds, needed=MIN_SEEDS)
    yield from screening_stamp(seeds)


def screening_stamp(seeds: int) -> tuple[Remark, ...]:
    """Return the stamp of a comparison with error bars but few seeds, if they are few."""
    is_screening = MIN_SEEDS <= seeds <= MAX_SCREENING_SEEDS
    return (remark("screening", seeds=seeds),) if is_screening else ()


def _selection_stamps(groups: Sequence[RunGroup]) -> Iterator[Remark]:
    metrics = [run.record.metrics for group in groups for run in group.finished]
    selected = [values for values in metrics if values.get("selected")]
    if selected:
        yield remark("selected", split=str(selected[0].get("split")))
