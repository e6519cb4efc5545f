"""Whether runs differ in precision alone (promise 15): what differs else is refused or said.

Refused is what leaves nothing to compare: other data, other classes, another split, another model.
All else is a sentence that stands above the verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampft.comparison.analysis.loading import RecordedRun, RunGroup
from ampft.errors import InputError
from ampft.runs.record import RunRecord
from ampft.text.escaping import inert

# Settings that are what is compared, that the record holds in another field as it came out, or
# that decide where results go and not what they are.
HARMLESS_ARGUMENTS = frozenset(
    {
        *("mixed_precision", "seed", "perturb_initial_weights", "evaluate_fp32"),
        *("output_dir", "overwrite_output_dir", "history_csv", "with_tracking", "report_to"),
        *("baseline", "fail_on_leak", "trust_remote_code", "use_cpu", "cpu_threads"),
        *("model_name_or_path", "dataset_name", "train_file", "validation_file", "test_file"),
    }
)
PACKAGES = ("torch", "transformers", "accelerate", "ampft")
SHOWN = 60


@dataclass(frozen=True)
class _Condition:
    """Something that has to be equal: in all runs, in those of one seed, or of several seeds."""

    name: str
    value: Callable[[RunRecord], Any]
    by_seed: bool = False
    across_seeds: bool = False
    finished_alone: bool = False


def _version(name: str) -> Callable[[RunRecord], Any]:
    return lambda record: record.versions.get(name)


_NEEDED = (
    _Condition("the class names", lambda r: list(r.label_names)),
    _Condition("the data's fingerprints", lambda r: dict(r.data.fingerprints)),
    _Condition("the model", lambda r: (r.model.architecture, r.model.parameters)),
    _Condition("the split of the report", lambda r: r.metrics.get("split"), finished_alone=True),
)
_WANTED = (
    _Condition("initial weights", lambda r: r.model.initial_weights_sha256, by_seed=True),
    _Condition(
        # A run that diverged took fewer steps, so its hash has to differ.
        "example ids per step",
        lambda r: r.example_ids_sha256,
        by_seed=True,
        finished_alone=True,
    ),
    _Condition("dropout masks", lambda r: r.random_state_sha256, by_seed=True),
    # At one seed another name is refused, or is another place of the same weights.
    _Condition("pretrained model", lambda r: r.model.name, across_seeds=True),
    _Condition("effective batch", lambda r: r.steps.effective_batch_size),
    # A run that ended early may not have come to the step that memory was too small for.
    _Condition("micro-batches", lambda r: r.steps.micro_batches, finished_alone=True),
    _Condition("optimizer steps planned", lambda r: r.steps.total),
    _Condition("CPU threads", lambda r: r.topology.cpu_threads),
    _Condition("processes", lambda r: r.topology.num_processes),
    _Condition("device", lambda r: r.topology.device),
    _Condition("CPU", lambda r: r.hardware.get("cpu")),
    _Condition("GPUs", lambda r: r.hardware.get("gpus")),
    *(_Condition(f"version of {name}", _version(name)) for name in PACKAGES),
)


def difference_stamps(groups: Sequence[RunGroup]) -> tuple[str, ...]:
    """Compare each run with the baseline's.

    Args:
        groups: The baseline first.

    Returns:
        A sentence for everything that is not like for like and leaves the comparison a meaning.

    Raises:
        InputError: Something differs that leaves it none.
    """
    pairs = tuple(_pairs(groups))
    for condition in _NEEDED:
        for run, reference in _differing(condition, pairs):
            _refuse(condition.name, condition.value, run, reference)
    for run, reference in pairs:
        model, other = run.record.model, reference.record.model
        # Of one name or from the same weights: a model may have been copied to another folder.
        same_weights = model.initial_weights_sha256 == other.initial_weights_sha256
        if run.seed == reference.seed and model.name != other.name and not same_weights:
            _refuse("the model", lambda record: record.model.name, run, reference)
    return tuple(_stamps((*_WANTED, *_arguments(pairs)), pairs, groups))


def _pairs(groups: Sequence[RunGroup]) -> Iterator[tuple[RecordedRun, RecordedRun]]:
    """Each run with the baseline's at its seed, and the baseline's with their first."""
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
        if condition.finished_alone and not (run.is_finished and reference.is_finished):
            continue
        if condition.value(run.record) != condition.value(reference.record):
            yield run, reference


def _refuse(
    name: str, value: Callable[[RunRecord], Any], run: RecordedRun, reference: RecordedRun
) -> None:
    mine, other = _distinct(value(run.record), value(reference.record))
    raise InputError(
        f"RUN: {reference.folder} and {run.folder} cannot be compared, because {name} differ: "
        f"{other} and {mine}. Name runs that differ in precision alone."
    )


def _stamps(
    conditions: Iterable[_Condition],
    pairs: Sequence[tuple[RecordedRun, RecordedRun]],
    groups: Sequence[RunGroup],
) -> Iterator[str]:
    for condition in conditions:
        found = list(_differing(condition, pairs))
        if found:
            yield _stamp(condition, *found[0], len(found) - 1)
    for group in groups:
        executions = [run.record.precision.resolved.get("execution") for run in group.runs]
        if len(set(executions)) > 1:
            yield (
                f"not like for like: {inert(group.name)} was native in some runs and emulated in "
                "others"
            )


def _stamp(condition: _Condition, run: RecordedRun, reference: RecordedRun, more: int) -> str:
    mine, other = _distinct(condition.value(run.record), condition.value(reference.record))
    rest = f"; {more} more run{'s' * (more > 1)} differ{'s' * (more == 1)} in it" if more else ""
    return (
        f"not like for like: {condition.name} ({other} in {inert(reference.folder.name)}, {mine} "
        f"in {inert(run.folder.name)}{rest})"
    )


def _arguments(pairs: Iterable[tuple[RecordedRun, RecordedRun]]) -> list[_Condition]:
    """One condition for each setting that all runs name: a version may have added one."""
    records = [run.record for run, _ in pairs]
    shared = set.intersection(*(set(record.arguments) for record in records)) - HARMLESS_ARGUMENTS
    return [_Condition(f"--{inert(name)}", _argument(name)) for name in sorted(shared)]


def _argument(name: str) -> Callable[[RunRecord], Any]:
    return lambda record: record.arguments[name]


def _distinct(mine: object, other: object) -> tuple[str, str]:
    """Return two different values, shortened so that they still differ."""
    if isinstance(mine, Mapping) and isinstance(other, Mapping):
        key = min(k for k in {*mine, *other} if mine.get(k) != other.get(k))
        left, right = _distinct(mine.get(key), other.get(key))
        return f"{inert(str(key))} {left}", f"{inert(str(key))} {right}"
    if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        return _distinct(*next((a, b) for a, b in zip(mine, other, strict=True) if a != b))
    left, right = str(mine), str(other)
    if max(len(left), len(right)) > SHOWN:
        start = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), 0)
        begin = max(0, start - 10)
        left, right = (
            "…" * (begin > 0) + text[begin : begin + SHOWN // 3] for text in (left, right)
        )
    return inert(left), inert(right)
