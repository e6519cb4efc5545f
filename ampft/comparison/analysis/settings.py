"""The settings in which runs differ and the arms that they form; what all runs share."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from ampft.comparison.analysis.loading import RecordedRun
from ampft.comparison.arms import arm_sort_key
from ampft.comparison.findings import PRECISION
from ampft.errors import InputError, did_you_mean
from ampft.runs.record import RunRecord
from ampft.text.escaping import inert
from ampft.text.numbers import byte_size, counted

# Settings that pair runs, mark a placebo, or do not affect the results.
NOT_COMPARED = frozenset(
    {
        *("seed", "perturb_initial_weights", "evaluate_fp32"),
        *("output_dir", "overwrite_output_dir", "history_csv", "with_tracking", "report_to"),
        *("checkpointing_steps", "checkpoint_total_limit", "resume_from_checkpoint"),
        *("async_checkpoints", "allow_topology_change"),
        *("push_to_hub", "hub_model_id", "hub_private_repo"),
        *("baseline", "fail_on_leak", "trust_remote_code", "use_cpu", "cpu_threads"),
    }
)
MODEL = "model_name_or_path"
FIRST = "first"  # name of the arm of the first run, if the arms differ in several settings
# Names of files, which may differ although their contents are the same, and what they provide.
SOURCES = {"dataset_name": "train", "train_file": "train", "validation_file": "validation"}
RECORDED_ELSEWHERE = frozenset({PRECISION, MODEL, "test_file", *SOURCES})


@dataclass(frozen=True, kw_only=True)
class Arms:
    """Runs with the names of their arms.

    Attributes:
        runs: Runs.
        names: Names of the arms without the placebo, in display order.
        first: Name of the arm of the first run.
        varied: Names of the settings that distinguish the arms.
        settings: Values of these settings for readers, by arm; empty if the arms are modes.
    """

    runs: tuple[RecordedRun, ...]
    names: tuple[str, ...]
    first: str
    varied: tuple[str, ...] = (PRECISION,)
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def form_arms(
    runs: Sequence[RecordedRun],
    *,
    by: Sequence[str] = (),
    planned: Mapping[str, str] | None = None,
) -> Arms:
    """Return the arms of runs.

    Runs in at least two modes, with different seeds in each, form arms by mode, and so do runs that
    differ in nothing. Otherwise, all settings that differ distinguish the arms.

    Args:
        runs: Runs, at least one.
        by: Settings that distinguish the arms; empty for the rule above.
        planned: Name of the arm of each run folder, in display order; None or empty without a
            plan that names arms.

    Raises:
        InputError: A setting in `by` is unknown or has the same value in all runs.
    """
    values = differing_settings(runs)
    if planned:
        named = [replace(run, name=planned[run.folder.name]) for run in runs]
        arms = [run.name for run in named]
        # All runs of an arm have the same value of a setting that distinguishes the arms.
        varied = tuple(
            name
            for name, column in values.items()
            if _number(zip(arms, column, strict=True)) == _number(arms)
        )
        return _described(named, tuple(planned.values()), varied, values)
    for name in by:
        _check_differs(name, runs, values)
    varied = tuple(name for name in values if name in by) if by else tuple(values)
    plain = [(run.mode, run.seed) for run in runs if not run.record.model.perturbed]
    are_modes = len({mode for mode, _ in plain}) > 1 and len(set(plain)) == len(plain)
    if varied == (PRECISION,) or (not by and (not values or are_modes)):
        names = tuple(sorted({run.name for run in runs}, key=arm_sort_key))
        return Arms(runs=tuple(runs), names=names, first=runs[0].name)
    keys = [tuple(values[name][index] for name in varied) for index in range(len(runs))]
    name_of = _arm_names(varied, keys)
    named = [replace(run, name=name_of[repr(key)]) for run, key in zip(runs, keys, strict=True)]
    ordered = sorted(keys, key=lambda key: tuple(map(_sort_key, key)))
    return _described(named, tuple(name_of[repr(key)] for key in ordered), varied, values)


def differing_settings(runs: Sequence[RecordedRun]) -> dict[str, list[Any]]:
    """Return the values per run of the settings in which the runs differ, by name.

    Models with the same initial weights and data with the same contents are the same under any
    name.
    """
    records = [run.record for run in runs]
    columns: dict[str, list[Any]] = {PRECISION: [run.mode for run in runs]}
    if _models_differ(runs):
        columns[MODEL] = [record.model.name for record in records]
    for name in records[0].arguments:
        if name in NOT_COMPARED or not all(name in record.arguments for record in records):
            continue
        if name in SOURCES:
            contents = [record.data.fingerprints.get(SOURCES[name]) for record in records]
            if _number(contents) > 1:
                columns[name] = [record.arguments[name] for record in records]
        elif name not in RECORDED_ELSEWHERE:
            columns[name] = [record.arguments[name] for record in records]
    return {name: column for name, column in columns.items() if _number(column) > 1}


def value_text(value: Any) -> str:
    """Return a setting's value for readers; different values have different texts."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


def _models_differ(runs: Sequence[RecordedRun]) -> bool:
    models = [run.record.model for run in runs]
    if _number([(model.architecture, model.parameters) for model in models]) > 1:
        return True
    hashes: dict[int, set[str]] = {}
    for run, model in zip(runs, models, strict=True):
        hashes.setdefault(run.seed, set()).add(model.initial_weights_sha256)
    return any(len(each) > 1 for each in hashes.values())


def _number(values: Iterable[Any]) -> int:
    """Return the number of different values."""
    return len(set(map(repr, values)))


def _check_differs(
    name: str, runs: Sequence[RecordedRun], values: Mapping[str, Sequence[Any]]
) -> None:
    if name in values:
        return
    known = [*runs[0].record.arguments, PRECISION]
    differing = f"The runs differ in {', '.join(values) or 'no setting'}."
    if name in NOT_COMPARED:
        raise InputError(f"--by {name}: this setting cannot distinguish arms. {differing}")
    if name not in known:
        raise InputError(
            f"--by {inert(name)}: the runs have no such setting.{did_you_mean(name, known)} "
            f"{differing}"
        )
    raise InputError(f"--by {name}: all runs have the same value. {differing}")


def _arm_names(varied: Sequence[str], keys: Iterable[Sequence[Any]]) -> dict[str, str]:
    """Return the names of arms by the text of their values, short if that is unambiguous.

    If the arms differ in several settings, a name has only those that differ from the first arm,
    which is called "first".
    """
    distinct = {repr(key): key for key in keys}
    first = next(iter(distinct.values()))
    names: dict[str, str] = {}
    for short in (True, False):
        for text, key in distinct.items():
            shown = [
                (name, value)
                for name, value, other in zip(varied, key, first, strict=True)
                if len(varied) == 1 or repr(value) != repr(other)
            ]
            names[text] = _arm_name(shown, short=short) or FIRST
        if len(set(names.values())) == len(names):
            break
    return names


def _arm_name(settings: Iterable[tuple[str, Any]], *, short: bool) -> str:
    """Return a name such as "learning_rate=1e-05" or "bf16, num_train_epochs=5"."""
    parts = []
    for name, value in settings:
        text = value_text(value)
        if short and name in RECORDED_ELSEWHERE:
            text = PurePath(text).name or text
        parts.append(text if name == PRECISION else f"{name}={text}")
    return ", ".join(parts)


def _sort_key(value: Any) -> tuple[bool, float, str]:
    """Return a key that sorts numbers by size, before all other values."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return not is_number, float(value) if is_number else 0.0, str(value)


def _described(
    runs: Sequence[RecordedRun],
    names: Sequence[str],
    varied: tuple[str, ...],
    values: Mapping[str, Sequence[Any]],
) -> Arms:
    settings: dict[str, dict[str, str]] = {}
    for index, run in enumerate(runs):
        settings.setdefault(run.name, {name: value_text(values[name][index]) for name in varied})
    ordered = tuple(dict.fromkeys(names))
    return Arms(
        runs=tuple(runs), names=ordered, first=runs[0].name, varied=varied, settings=settings
    )


# Name in the report -> name of the argument.
SETTINGS = {
    "optimizer": "optim",
    "learning rate": "learning_rate",
    "learning rate decay per layer": "layer_decay",
    "schedule": "lr_scheduler_type",
    "epochs": "num_train_epochs",
    "weight decay": "weight_decay",
    "gradient clipping norm": "max_grad_norm",
    "maximum sequence length": "max_seq_length",
}
PACKAGES = ("ampft", "torch", "transformers", "accelerate", "numpy", "scikit-learn")


def title(records: Sequence[RunRecord]) -> str:
    """Return the title, such as "all-MiniLM-L6-v2 on stdlib (summary)".

    Args:
        records: One record per arm.
    """
    models = dict.fromkeys(record.model.name for record in records)
    data = dict.fromkeys(record.data.name for record in records)
    model = next(iter(models)) if len(models) == 1 else f"{len(models)} models"
    return f"{model} on {' and '.join(data)}"


def setup(records: Sequence[RunRecord]) -> dict[str, str]:
    """Return what all arms trained and how, in display order.

    Args:
        records: One record per arm.
    """
    first, *others = map(_setup, records)
    return {
        name: value
        for name, value in first.items()
        if all(other.get(name) == value for other in others)
    }


def _setup(record: RunRecord) -> dict[str, str]:
    sizes = ", ".join(f"{name} {count:,}" for name, count in record.data.examples.items())
    steps = record.steps
    batch = "unknown" if steps.effective_batch_size is None else f"{steps.effective_batch_size:,}"
    facts = {
        "model": f"{record.model.name}, {record.model.architecture}, "
        f"{record.model.parameters / 1e6:.1f} M parameters",
        "data": f"{record.data.name}: {sizes}; {counted(len(record.label_names), 'class')}",
        "effective batch": batch,
        "optimizer steps": f"{steps.total:,}",
    }
    for title_, name in SETTINGS.items():
        value = record.arguments.get(name)
        if value is not None:
            facts[title_] = f"{value:g}" if isinstance(value, float) else str(value)
    return facts


def dates(records: Sequence[RunRecord]) -> tuple[str, str]:
    """Return the days on which the first and the last run began, such as "2026-11-22"."""
    days = sorted(record.started.partition("T")[0] for record in records)
    return days[0], days[-1]


def command(record: RunRecord) -> str:
    """Return the command of a run, with files and folders only by their names."""
    words = [re.sub(r"[^=\s]*/(?=.)", "", word) for word in record.command]
    program = ["ampft"] if words[:1] == ["__main__.py"] else words[:1]
    return shlex.join([*program, *words[1:]])


def environment(record: RunRecord) -> dict[str, str]:
    """Return hardware and versions, in display order."""
    topology, hardware = record.topology, record.hardware
    facts = {
        "device": f"{topology.device}, {counted(topology.num_processes, 'process')}, "
        f"{counted(topology.cpu_threads, 'CPU thread')}"
        + " each" * (topology.num_processes > 1)
        + ", weights sharded (FSDP2)" * topology.sharded
        + (f", compiled by {topology.compiled}" if topology.compiled else ""),
        **_machine(hardware),
        "Python": record.versions.get("python", "unknown"),
    }
    return facts | {name: record.versions[name] for name in PACKAGES if name in record.versions}


def _machine(hardware: Mapping[str, Any]) -> dict[str, str]:
    gpus = ", ".join(str(gpu) for gpu in hardware.get("gpus") or [])
    memory = hardware.get("memory_bytes")
    facts = {
        "GPU": gpus,
        "CPU": str(hardware.get("cpu") or ""),
        "cores": str(hardware.get("usable_cores") or ""),
        "memory": byte_size(memory) if isinstance(memory, int) else "",
        "system": str(hardware.get("system") or ""),
    }
    return {name: value for name, value in facts.items() if value}
