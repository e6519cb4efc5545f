"""Check that runs differ only in the settings that distinguish their arms.

Runs with other classes or test examples cannot be compared and are rejected, and so are runs with
other data or another model that no setting of the arms explains. Any other unexplained difference
becomes a stamp, a sentence above the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ampft.arguments.classify import ClassifyArguments
from ampft.comparison.analysis.loading import RecordedRun, RunGroup
from ampft.comparison.analysis.settings import NOT_COMPARED, RECORDED_ELSEWHERE
from ampft.comparison.findings import PRECISION
from ampft.comparison.remarks import Remark, remark
from ampft.errors import InputError
from ampft.flag import BATCH, DATA, MODEL, PIXELS, TRAINED
from ampft.runs.record import RunRecord
from ampft.text.escaping import inert

# Their effect, if there is any, is compared by other fields of the record.
IGNORED_ARGUMENTS = NOT_COMPARED | RECORDED_ELSEWHERE
PACKAGES = ("torch", "transformers", "accelerate", "ampft")
MAX_VALUE_LENGTH = 60


@dataclass(frozen=True)
class _Condition:
    """A property that must be equal in runs.

    Attributes:
        name: Name in messages.
        value: Function that returns the property.
        by_seed: Whether to compare only runs with the same seed.
        across_seeds: Whether to compare only runs with different seeds.
        finished_only: Whether to compare only finished runs.
        can_tell: Function that returns whether the property of two runs can be compared.
        causes: Groups of settings that change the property. If the arms differ in such a setting,
            it need not be equal.
    """

    name: str
    value: Callable[[RunRecord], Any]
    by_seed: bool = False
    across_seeds: bool = False
    finished_only: bool = False
    can_tell: Callable[[RunRecord, RunRecord], bool] = lambda one, other: True
    causes: frozenset[str] = frozenset()


def _version(name: str) -> Callable[[RunRecord], Any]:
    return lambda record: record.versions.get(name)


def _dtypes(record: RunRecord) -> tuple[Any, Any]:
    resolved = record.precision.resolved
    return resolved.get("storage_dtype"), resolved.get("compute_dtype")


def _draw_alike(one: RunRecord, other: RunRecord) -> bool:
    """Return whether two runs with equal generators draw the same dropout masks.

    The kernels of a GPU assign random numbers to elements in an order that depends on the dtype.
    """
    on_cpu = "cpu" in (one.topology.device, other.topology.device)
    draws = (one.random_state_sha256, other.random_state_sha256) != (None, None)
    return on_cpu or not draws or _dtypes(one) == _dtypes(other)


def _compared_examples(record: RunRecord) -> str | None:
    return record.data.fingerprints.get(str(record.metrics.get("split")))


def _both_known(one: RunRecord, other: RunRecord) -> bool:
    return one.model.configuration is not None and other.model.configuration is not None


LENGTH = "length of training"
LENGTH_SETTINGS = frozenset({"num_train_epochs", "max_train_steps", "early_stopping_patience"})
OF_MODEL = frozenset({MODEL, TRAINED})  # adapters are initial weights, and draw dropout masks
OF_BATCH = frozenset({BATCH})
OF_DATA = frozenset({DATA})
OF_STEPS = frozenset({DATA, BATCH, LENGTH})
EVERYTHING = frozenset({MODEL, TRAINED, DATA, BATCH, LENGTH})

_REQUIRED = (
    _Condition("class names", lambda r: list(r.label_names)),
    _Condition("data fingerprints", lambda r: dict(r.data.fingerprints), causes=OF_DATA),
    _Condition("model", lambda r: (r.model.architecture, r.model.parameters), causes=OF_MODEL),
    _Condition("reported split", lambda r: r.metrics.get("split"), finished_only=True),
    _Condition("examples of the reported split", _compared_examples, finished_only=True),
)
_EXAMPLE_IDS = _Condition(
    # A run that diverged took fewer steps, so its hash differs.
    "example ids per step",
    lambda r: r.example_ids_sha256,
    by_seed=True,
    finished_only=True,
    causes=OF_STEPS,
)
_EXPECTED = (
    _Condition(
        "initial weights",
        lambda r: r.model.initial_weights_sha256,
        by_seed=True,
        causes=OF_MODEL,
    ),
    _EXAMPLE_IDS,
    _Condition(
        "dropout masks",
        lambda r: r.random_state_sha256,
        by_seed=True,
        can_tell=_draw_alike,
        causes=OF_MODEL | OF_DATA | OF_BATCH,
    ),
    # The default models of images and sounds, and the size of their input, depend on the data.
    _Condition(
        "model configuration",
        lambda r: r.model.configuration,
        can_tell=_both_known,
        causes=OF_MODEL | OF_DATA,
    ),
    _Condition(
        "preprocessing",
        lambda r: r.model.preprocessing,
        can_tell=_both_known,
        causes=OF_MODEL | OF_DATA | {PIXELS},
    ),
    # With the same seed, another name is an error unless the weights are the same.
    _Condition(
        "pretrained model", lambda r: r.model.name, across_seeds=True, causes=frozenset({MODEL})
    ),
    _Condition("effective batch", lambda r: r.steps.effective_batch_size, causes=OF_BATCH),
    # A run that ended early may not have reached the step that did not fit into memory.
    _Condition(
        "micro-batches", lambda r: r.steps.micro_batches, finished_only=True, causes=OF_BATCH
    ),
    _Condition("optimizer steps planned", lambda r: r.steps.total, causes=OF_STEPS),
    _Condition("CPU threads", lambda r: r.topology.cpu_threads),
    _Condition("processes", lambda r: r.topology.num_processes),
    _Condition("sharding of weights", lambda r: r.topology.sharded),
    _Condition("compilation", lambda r: r.topology.compiled or "none"),
    _Condition("device", lambda r: r.topology.device),
    _Condition("CPU", lambda r: r.hardware.get("cpu")),
    _Condition("GPUs", lambda r: r.hardware.get("gpus")),
    *(_Condition(f"version of {name}", _version(name)) for name in PACKAGES),
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
        if condition.causes & causes:
            continue
        for run, reference in _differing(condition, pairs):
            _raise_difference(condition.name, condition.value, run, reference, varied)
    for run, reference in pairs if MODEL not in causes else ():
        model, other = run.record.model, reference.record.model
        # A model may have been copied to another folder, so the same weights are accepted.
        same_weights = model.initial_weights_sha256 == other.initial_weights_sha256
        if run.seed == reference.seed and model.name != other.name and not same_weights:
            _raise_difference("model", lambda record: record.model.name, run, reference, varied)
    expected = [each for each in _EXPECTED if not each.causes & causes]
    stamps = _stamps((*expected, *_arguments(pairs, varied)), pairs, groups)
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


def _differing(
    condition: _Condition, pairs: Iterable[tuple[RecordedRun, RecordedRun]]
) -> Iterator[tuple[RecordedRun, RecordedRun]]:
    for run, reference in pairs:
        if condition.by_seed and run.seed != reference.seed:
            continue
        if condition.across_seeds and run.seed == reference.seed:
            continue
        if condition.finished_only and not (run.is_finished and reference.is_finished):
            continue
        if not condition.can_tell(run.record, reference.record):
            continue
        if condition.value(run.record) != condition.value(reference.record):
            yield run, reference


def _raise_difference(
    name: str,
    value: Callable[[RunRecord], Any],
    run: RecordedRun,
    reference: RecordedRun,
    varied: Sequence[str],
) -> None:
    run_value, reference_value = _distinct(value(run.record), value(reference.record))
    remedy = "Name runs that differ only in precision, or the settings of the arms with --by."
    if tuple(varied) != (PRECISION,):
        remedy = "Name runs with the same classes that report on the same examples."
    raise InputError(
        f"RUN: {reference.folder} and {run.folder} cannot be compared because they differ in "
        f"{name}: {reference_value} and {run_value}. {remedy}"
    )


def _stamps(
    conditions: Iterable[_Condition],
    pairs: Sequence[tuple[RecordedRun, RecordedRun]],
    groups: Sequence[RunGroup],
) -> Iterator[Remark]:
    for condition in conditions:
        differing = list(_differing(condition, pairs))
        if differing:
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
        if run.seed == reference.seed and not _draw_alike(run.record, reference.record)
    )
    if others:
        yield remark("masks", arms=list(others), baseline=groups[0].name)
    records = [run.record for group in groups for run in group.runs]
    unknown = sum(record.model.configuration is None for record in records)
    if unknown:
        yield remark("not_known", unknown=unknown, records=len(records))
    for group in groups:
        executions = [run.record.precision.resolved.get("execution") for run in group.runs]
        if len(set(executions)) > 1:
            yield remark("mixed_execution", arm=group.name)


def _arguments(
    pairs: Iterable[tuple[RecordedRun, RecordedRun]], varied: Sequence[str]
) -> list[_Condition]:
    """Return a condition per setting that all runs have. Versions may differ in their settings."""
    records = [run.record for run, _ in pairs]
    shared = set.intersection(*(set(record.arguments) for record in records))
    shared -= {*IGNORED_ARGUMENTS, *varied}
    return [_Condition(f"--{inert(name)}", _argument(name)) for name in sorted(shared)]


def _argument(name: str) -> Callable[[RunRecord], Any]:
    return lambda record: record.arguments[name]


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
            "…" * (start > 0) + text[start : start + MAX_VALUE_LENGTH // 3]
            for text in (left, right)
        )
    return inert(left), inert(right)
