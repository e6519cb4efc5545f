"""Stamps: caveats that a reader must know before the verdict.

Runs must differ only in the settings that distinguish their arms. Runs with other classes or test
examples cannot be compared and are rejected, and so are runs with other data or another model that
no setting of the arms explains. Any other unexplained difference becomes a stamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ampft.arguments.classify import ClassifyArguments
from ampft.comparison.analysis.loading import (
    NOT_COMPARED,
    RECORDED_ELSEWHERE,
    RecordedRun,
    RunGroup,
)
from ampft.comparison.analysis.run_figures import speed
from ampft.comparison.findings import PRECISION, PlanFacts
from ampft.comparison.remarks import Remark, remark
from ampft.comparison.settings import MIN_SEEDS
from ampft.comparison.statistics.speed_up import is_reliable_speed
from ampft.errors import InputError
from ampft.flag import BATCH, DATA, MODEL, PIXELS, TRAINED
from ampft.runs.record import RunRecord
from ampft.text.escaping import inert
from ampft.text.json_io import JSONValue

MAX_SCREENING_SEEDS = 4  # with so few, an interval rarely fits inside a margin
PACKAGES = ("torch", "transformers", "accelerate", "ampft")
MAX_VALUE_LENGTH = 60

Pairs = Sequence[tuple[RecordedRun, RecordedRun]]


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
    baseline = groups[0]
    metrics = [run.record.metrics for group in groups for run in group.finished]
    selected = [remark("selected", split=str(m.get("split"))) for m in metrics if m.get("selected")]
    incomplete = remark("no_baseline", arm=baseline.name, status=baseline.status_words)
    return (
        *_training_stamps(groups),
        *([] if baseline.status == "complete" else [incomplete]),
        *seed_stamps(len(baseline.runs)),
        *_speed_stamps(groups),
        *side_by_side_stamps(groups, plan),
        *selected[:1],
        *difference_stamps(groups, varied),
        *_resume_stamps(groups),
        *plan.remarks,
        *([remark("added")] if plan.added_after_analysis else []),
        *([] if plan.planned else [remark("unplanned")]),
    )


def _training_stamps(groups: Sequence[RunGroup]) -> Iterator[Remark]:
    runs = [(group, run) for group in groups for run in group.runs]
    for kind, of in (("suspect", _training_warnings), ("run_warnings", _other_warnings)):
        warned = [(group, run) for group, run in runs if of(run)]
        if warned:
            group, run = warned[0]
            yield remark(
                kind,
                runs=len(warned),
                total=len(runs),
                arm=group.name,
                seed=run.seed,
                warning=of(run)[0],
            )


def _training_warnings(run: RecordedRun) -> tuple[str, ...]:
    return run.record.training_warnings


def _other_warnings(run: RecordedRun) -> tuple[str, ...]:
    """Return the warnings that leave a verdict possible."""
    return tuple(
        text for text in run.record.warnings.values() if text not in run.record.training_warnings
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


def group_stamps(examples: int, groups: int | None, column: str | None) -> tuple[Remark, ...]:
    """Return the stamp of examples that are not independent, if there are any.

    Args:
        groups: Number of groups; None if all examples are independent.
        column: Column that the user named; None if only equal inputs are grouped.
    """
    if groups is None:
        return ()
    if column is None:
        return (remark("duplicates", examples=examples, groups=groups),)
    return (remark("grouped", examples=examples, groups=groups, column=column),)


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


LENGTH = "length of training"
LENGTH_SETTINGS = frozenset({"num_train_epochs", "max_train_steps", "early_stopping_patience"})
OF_MODEL = frozenset({MODEL, TRAINED})  # adapters are initial weights, and draw dropout masks
OF_BATCH = frozenset({BATCH})
OF_DATA = frozenset({DATA})
OF_STEPS = frozenset({DATA, BATCH, LENGTH})
EVERYTHING = frozenset({MODEL, TRAINED, DATA, BATCH, LENGTH})


def _same_seed(run: RecordedRun, other: RecordedRun) -> bool:
    return run.seed == other.seed


def _finished(run: RecordedRun, other: RecordedRun) -> bool:
    return run.is_finished and other.is_finished


def _other_weights(run: RecordedRun, other: RecordedRun) -> bool:
    """A model may have been copied to another folder, so the same weights are accepted."""
    weights = {each.record.model.initial_weights_sha256 for each in (run, other)}
    return _same_seed(run, other) and len(weights) > 1


def _draw_alike(run: RecordedRun, other: RecordedRun) -> bool:
    """Return whether two runs with equal generators draw the same dropout masks.

    The kernels of a GPU assign random numbers to elements in an order that depends on the dtype.
    """
    records = (run.record, other.record)
    on_cpu = any(record.topology.device == "cpu" for record in records)
    draws = any(record.random_state_sha256 is not None for record in records)
    dtypes = [
        [record.precision.resolved.get(name) for name in ("storage_dtype", "compute_dtype")]
        for record in records
    ]
    return on_cpu or not draws or dtypes[0] == dtypes[1]


@dataclass(frozen=True)
class _Condition:
    """A property that must be equal in runs."""

    name: str  # Name in messages.
    value: Callable[[RunRecord], Any]  # Function that returns the property.
    # Groups of settings that change the property. If the arms differ in such a setting, it need not
    # be equal.
    causes: frozenset[str] = frozenset()
    # Function that returns whether the property of two runs can be compared.
    when: Callable[[RecordedRun, RecordedRun], bool] = lambda run, other: True


def _version(name: str) -> _Condition:
    return _Condition(f"version of {name}", lambda r: r.versions.get(name))


def _argument(name: str) -> _Condition:
    return _Condition(f"--{inert(name)}", lambda r: r.arguments[name])


_REQUIRED = (
    _Condition("class names", lambda r: list(r.label_names)),
    _Condition("data fingerprints", lambda r: dict(r.data.fingerprints), OF_DATA),
    _Condition("model", lambda r: (r.model.architecture, r.model.parameters), OF_MODEL),
    _Condition("reported split", lambda r: r.metrics.get("split"), when=_finished),
    _Condition(
        "examples of the reported split",
        lambda r: r.data.fingerprints.get(str(r.metrics.get("split"))),
        when=_finished,
    ),
    _Condition("model", lambda r: r.model.name, frozenset({MODEL}), _other_weights),
)
_EXAMPLE_IDS = _Condition(
    "example ids per step",
    lambda r: r.example_ids_sha256,
    OF_STEPS,
    # A run that diverged took fewer steps, so its hash differs.
    lambda run, other: _same_seed(run, other) and _finished(run, other),
)
_EXPECTED = (
    _Condition("initial weights", lambda r: r.model.initial_weights_sha256, OF_MODEL, _same_seed),
    _EXAMPLE_IDS,
    _Condition(
        "dropout masks",
        lambda r: r.random_state_sha256,
        OF_MODEL | OF_DATA | OF_BATCH,
        lambda run, other: _same_seed(run, other) and _draw_alike(run, other),
    ),
    # The default models of images and sounds, and the size of their input, depend on the data.
    _Condition("model configuration", lambda r: r.model.configuration, OF_MODEL | OF_DATA),
    _Condition("preprocessing", lambda r: r.model.preprocessing, OF_MODEL | OF_DATA | {PIXELS}),
    # With the same seed, another name is an error unless the weights are the same.
    _Condition(
        "pretrained model",
        lambda r: r.model.name,
        frozenset({MODEL}),
        lambda run, other: run.seed != other.seed,
    ),
    _Condition("effective batch", lambda r: r.steps.effective_batch_size, OF_BATCH),
    # A run that ended early may not have reached the step that did not fit into memory.
    _Condition("micro-batches", lambda r: r.steps.micro_batches, OF_BATCH, _finished),
    _Condition("optimizer steps planned", lambda r: r.steps.total, OF_STEPS),
    _Condition("CPU threads", lambda r: r.topology.cpu_threads),
    _Condition("processes", lambda r: r.topology.num_processes),
    _Condition("sharding of weights", lambda r: r.topology.sharded),
    _Condition("compilation", lambda r: r.topology.compiled or "none"),
    _Condition("device", lambda r: r.topology.device),
    _Condition("CPU", lambda r: r.hardware.get("cpu")),
    _Condition("GPUs", lambda r: r.hardware.get("gpus")),
    *map(_version, PACKAGES),
)


def difference_stamps(
    groups: Sequence[RunGroup], varied: Sequence[str] = (PRECISION,)
) -> tuple[Remark, ...]:
    """Compare the conditions of each run with the baseline's conditions.

    Args:
        groups: Runs of each arm, the baseline first.
        varied: Names of the settings that distinguish the arms.

    Returns:
        One remark per difference with which the comparison is still meaningful.

    Raises:
        InputError: The runs differ so that a comparison would be meaningless.
    """
    pairs, causes = tuple(_pairs(groups)), _groups_of(varied)
    for condition in _REQUIRED:
        if not condition.causes & causes:
            for run, reference in _differing(condition, pairs):
                raise _incomparable(condition, run, reference, varied)
    expected = [each for each in _EXPECTED if not each.causes & causes]
    # Versions may differ in their settings. The effect of the ignored ones, if there is any, is
    # compared by other fields of the record.
    shared = set.intersection(*(set(run.record.arguments) for run, _ in pairs))
    shared -= {*NOT_COMPARED, *RECORDED_ELSEWHERE, *varied}
    expected += map(_argument, sorted(shared))
    stamps = _difference_stamps(expected, pairs, groups)
    others: dict[str, None] = {}
    if causes & OF_STEPS:  # then the arms may train on other examples because of their settings
        others = dict.fromkeys(run.arm for run, _ in _differing(_EXAMPLE_IDS, pairs))
    if not others:
        return tuple(stamps)
    return (*stamps, remark("other_examples", arms=list(others), baseline=groups[0].name))


def _groups_of(varied: Sequence[str]) -> frozenset[str]:
    """Return the groups of settings that distinguish the arms; all for an unknown setting."""
    group_of = {f.name: str(f.metadata["group"]) for f in fields(ClassifyArguments)}
    groups: set[str] = set()
    for name in varied:
        if name not in group_of:
            return EVERYTHING
        if name != PRECISION:
            groups.add(LENGTH if name in LENGTH_SETTINGS else group_of[name])
    return frozenset(groups)


def _pairs(groups: Sequence[RunGroup]) -> Iterator[tuple[RecordedRun, RecordedRun]]:
    """Yield each run with the baseline run of its seed; baseline runs with the first of them."""
    baseline = groups[0].runs
    for group in groups:
        others = (baseline[0],) * len(baseline) if group is groups[0] else baseline
        yield from zip(group.runs, others, strict=True)


def _differing(condition: _Condition, pairs: Pairs) -> list[tuple[RecordedRun, RecordedRun]]:
    return [
        (run, reference)
        for run, reference in pairs
        if condition.when(run, reference)
        and condition.value(run.record) != condition.value(reference.record)
    ]


def _incomparable(
    condition: _Condition, run: RecordedRun, reference: RecordedRun, varied: Sequence[str]
) -> InputError:
    value, expected = _distinct(condition.value(run.record), condition.value(reference.record))
    remedy = "Pass runs that differ only in precision, or the settings of the arms with --by."
    if tuple(varied) != (PRECISION,):
        remedy = (
            "Pass runs with the same classes that report on the same examples, or add --on FILE: "
            "each model then predicts the labelled rows of that file."
        )
    return InputError(
        f"RUN: {reference.folder} and {run.folder} cannot be compared because they differ in "
        f"{condition.name}: {expected} and {value}. {remedy}"
    )


def _difference_stamps(
    conditions: Sequence[_Condition], pairs: Pairs, groups: Sequence[RunGroup]
) -> Iterator[Remark]:
    for condition in conditions:
        if differing := _differing(condition, pairs):
            run, reference = differing[0]
            values = _distinct(condition.value(reference.record), condition.value(run.record))
            yield remark(
                "unequal",
                name=condition.name,
                values=list(values),
                folders=[reference.folder.name, run.folder.name],
                more=len(differing) - 1,
            )
    others = dict.fromkeys(
        run.arm
        for run, reference in pairs
        if _same_seed(run, reference) and not _draw_alike(run, reference)
    )
    if others:
        yield remark("masks", arms=list(others), baseline=groups[0].name)
    for group in groups:
        executions = [run.record.precision.resolved.get("execution") for run in group.runs]
        if len(set(executions)) > 1:
            yield remark("mixed_execution", arm=group.name)


def _distinct(one: object, other: object) -> tuple[str, str]:
    """Return two different values as text, truncated so that they still differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        key = min(k for k in {*one, *other} if one.get(k) != other.get(k))
        left, right = _distinct(one.get(key), other.get(key))
        return f"{inert(str(key))} {left}", f"{inert(str(key))} {right}"
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return _distinct(*next((a, b) for a, b in zip(one, other, strict=True) if a != b))
    left, right = str(one), str(other)
    if max(len(left), len(right)) > MAX_VALUE_LENGTH:
        first = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0)
        start = max(0, first - 10)
        left, right = (
            ("…" if start > 0 else "") + text[start : start + MAX_VALUE_LENGTH // 3]
            for text in (left, right)
        )
    return inert(left), inert(right)
