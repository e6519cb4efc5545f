"""Rebuilds a run from its record: settings, precision, data and task, on this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import parse_flag_from_env

from ampft.arguments import ClassifyArguments
from ampft.engine.threads import restore_cpu_threads, usable_cores
from ampft.errors import InputError
from ampft.lab.audit.audit_result import (
    FP8_TOLERANCE,
    TF32_TOLERANCE,
    TOLERANCES,
    WITHIN,
    Check,
    RoundingTolerance,
    check_from_problems,
)
from ampft.machine import hardware, versions
from ampft.models.four_bit import weight_counts
from ampft.precision.accelerator import training_device
from ampft.precision.modes import canonical_mode
from ampft.precision.resolve import Precision, resolve
from ampft.runs.history import HistoryRow
from ampft.runs.prepare import load_task, prepare_mode, start_clock
from ampft.runs.prepared import Prepared, ProcessStart, configuration_of, preprocessing_of
from ampft.runs.record import RunRecord
from ampft.runs.recorded_arguments import OF_DATA, recorded_arguments
from ampft.runs.resume import changed_values
from ampft.tasks.task import Task
from ampft.text.escaping import inert

COMPARED_VERSIONS = ("ampft", "torch", "transformers", "accelerate", "numpy", "tokenizers")


@dataclass(frozen=True)
class RebuiltRun:
    """A run as this machine would start it."""

    folder: Path  # Folder of the run.
    record: RunRecord  # Record of the run.
    args: ClassifyArguments  # Its settings, adapted to this machine.
    precision: Precision  # Its mode, resolved for this machine.
    task: Task  # Its data and labels.
    differences: tuple[str, ...]  # Differences between this machine and the run's machine.
    world_size: int  # Number of processes of the audit.
    started: ProcessStart  # Time and memory at the start of the audit.

    @property
    def repeats_exactly(self) -> bool:
        """Whether equal code must give equal digits: the same CPU, versions and topology.

        GPUs add in an order that changes from one run to the next, so that theirs never must.
        """
        return not self.differences and self.precision.device_type == "cpu"

    @property
    def tolerance(self) -> RoundingTolerance:
        """Largest differences that the rounding of another machine explains."""
        if self.precision.properties.allows_tf32:
            return TF32_TOLERANCE
        return TOLERANCES.get(self.precision.compute_dtype, FP8_TOLERANCE)

    def micro_batches(self, rows: Sequence[HistoryRow]) -> list[int]:
        """Return the number of micro-batches of each step that cuts it as the run did."""
        per_process = self.record.topology.num_processes / self.world_size
        most = self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps
        return [min(most, max(1, math.ceil(row.micro_batches * per_process))) for row in rows]

    def prepare(self) -> Prepared:
        """Return a new training of this run; call it inside `separate_accelerators`."""
        return prepare_mode(self.args, self.precision, self.task, started=self.started)


def rebuild(folder: Path, record: RunRecord, flags: Sequence[str], *, cpu: bool) -> RebuiltRun:
    """Rebuild a run on this machine.

    Args:
        flags: Flags of classify.py that replace recorded settings, such as paths of moved files.
        cpu: Whether to use the CPU even if there is an accelerator.

    Raises:
        InputError: This version does not accept the settings, the data or the model are missing,
            or this machine cannot run the precision.
    """
    started = start_clock()
    args = recorded_arguments(record, flags, (*OF_DATA, "model_name_or_path"))
    device = training_device(cpu=cpu or record.topology.device == "cpu")
    mode, trained = canonical_mode(record.precision.requested), f"{folder} was trained in"
    try:
        precision = resolve(mode, device, flag=trained)
    except InputError as error:
        there = record.topology.device
        raise InputError(
            f"{error} Audit it on the type of device that trained it ({there})."
        ) from None
    threads = restore_cpu_threads(min(record.topology.cpu_threads, usable_cores()))
    world_size = PartialState().num_processes
    args = replace(
        args,
        gradient_accumulation_steps=_micro_batches(record, args, world_size),
        cpu_threads=threads,
    )
    with PartialState().main_process_first():
        task = load_task(args)
    differences = _differences(record, precision, threads, world_size)
    return RebuiltRun(folder, record, args, precision, task, differences, world_size, started)


def _micro_batches(record: RunRecord, args: ClassifyArguments, world_size: int) -> int:
    """Return the micro-batches per process that keep the run's effective batch."""
    batch_size, processes = args.per_device_train_batch_size, record.topology.num_processes
    effective = record.steps.effective_batch_size
    if effective is None:
        effective = batch_size * args.gradient_accumulation_steps * processes
    if effective % (batch_size * world_size):
        raise InputError(
            f"{world_size} processes: the effective batch of {effective} examples cannot be cut "
            f"into micro-batches of {batch_size} in each of them. Audit with one process, or with "
            f"{processes} as in the run: torchrun --nproc_per_node {processes} -m ampft audit RUN."
        )
    return max(1, effective // (batch_size * world_size))


def _differences(
    record: RunRecord, precision: Precision, threads: int, world_size: int
) -> tuple[str, ...]:
    """Return how this machine differs from the run's, as far as numbers depend on it."""
    import torch

    kind = precision.device_type
    gpus = [torch.cuda.get_device_name()] if kind == "cuda" else []
    here = hardware(gpus)
    installed = versions()
    # The Accelerator, which reads it too, does not exist yet.
    backend = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    pairs: dict[str, tuple[object, object]] = {
        "device": (kind, record.topology.device),
        "processes": (world_size, record.topology.num_processes),
        "sharding": (bool(parse_flag_from_env("ACCELERATE_USE_FSDP")), record.topology.sharded),
        "compilation": (None if backend == "no" else backend, record.topology.compiled),
        "execution": (precision.execution, record.precision.resolved.get("execution")),
        **{name: (installed.get(name), record.versions.get(name)) for name in COMPARED_VERSIONS},
    }
    pairs["CPU"] = (here["cpu"], record.hardware.get("cpu"))
    if kind == "cpu" == record.topology.device:
        pairs["threads"] = (threads, record.topology.cpu_threads)
    else:
        pairs["GPU"] = (", ".join(gpus), ", ".join(map(str, record.hardware.get("gpus") or ())))
    changed = {name for part in record.resumes for name in (*part.topology, *part.environment)}
    resumed = [f"the run was resumed with another {inert(name)}" for name in sorted(changed)]
    unequal = [
        f"{name} {_shown(actual)} instead of {_shown(recorded)}"
        for name, (actual, recorded) in pairs.items()
        if actual != recorded
    ]
    return (*resumed, *unequal)


def _shown(value: object) -> str:
    return "none" if value in (None, "") else inert(str(value))


def check_data(rebuilt: RebuiltRun) -> Check:
    """Compare the contents of the data and the labels with the record."""
    recorded, data = rebuilt.record.data, rebuilt.task.data
    problems = [
        f"{inert(split)} has the fingerprint {_short(data.fingerprints.get(split))}, and the "
        f"record states {_short(recorded.fingerprints.get(split))}"
        for split in sorted(recorded.fingerprints.keys() | data.fingerprints.keys())
        if data.fingerprints.get(split) != recorded.fingerprints.get(split)
    ]
    sizes = {name: len(rows) for name, rows in data.splits.items()}
    if sizes != dict(recorded.examples):
        problems.append(f"the splits have the sizes {sizes}, not {dict(recorded.examples)}")
    if rebuilt.task.label_names != tuple(rebuilt.record.label_names):
        problems.append("the labels, or their order, differ from the record")
    if rebuilt.task.name != rebuilt.record.task:
        problems.append(f"the task is {rebuilt.task.name}, not {inert(rebuilt.record.task)}")
    total = f"{sum(sizes.values()):,} examples"
    return check_from_problems(
        "data", problems, f"{total} in {', '.join(sizes)} have the recorded fingerprints"
    )


def check_initial_weights(rebuilt: RebuiltRun, prepared: Prepared) -> Check:
    """Compare the model before its first step with the record.

    Torch rounds the random numbers of new parameters differently on CPUs of other kinds, so that
    only the same CPU must give the recorded hash.
    """
    model, recorded = prepared.loaded.model, rebuilt.record.model
    parameters = sum(weight_counts(model).values())
    is_equal = prepared.loaded.float32_sha256 == recorded.initial_weights_sha256
    problems = []
    has_other_cpu = any(difference.startswith("CPU ") for difference in rebuilt.differences)
    if not is_equal and not has_other_cpu:
        problems.append(
            f"the initial weights have the hash {_short(prepared.loaded.float32_sha256)}, and the "
            f"record states {_short(recorded.initial_weights_sha256)}: another model, or another "
            "seed of its new parameters"
        )
    if (type(model).__name__, parameters) != (recorded.architecture, recorded.parameters):
        problems.append(
            f"the model is {type(model).__name__} with {parameters:,} parameters, not "
            f"{inert(recorded.architecture)} with {recorded.parameters:,}"
        )
    if prepared.args.perturb_initial_weights != recorded.perturbed:
        problems.append("the settings and the record disagree on whether weights were perturbed")
    if not is_equal and not problems:
        text = (
            "the hash differs, as it may on another CPU, which rounds the random numbers of new "
            "parameters differently; the loss of the first step shows whether the weights do"
        )
        return Check("weights", WITHIN, text)
    return check_from_problems(
        "weights", problems, f"{parameters:,} initial weights have the recorded hash"
    )


def check_configuration(rebuilt: RebuiltRun, prepared: Prepared) -> Check:
    """Compare what model and preprocessing do with the record."""
    recorded = rebuilt.record.model
    before = {**recorded.configuration, **recorded.preprocessing}
    now = {**configuration_of(prepared.loaded.model), **preprocessing_of(prepared.task)}
    problems = [
        f"{inert(name)} is {inert(str(here))}, and the record states {inert(str(then))}"
        for name, (then, here) in changed_values(before, now).items()
    ]
    return check_from_problems(
        "config", problems, "model configuration and preprocessing are the recorded ones"
    )


def _short(digest: str | None) -> str:
    return "none" if digest is None else f"{inert(digest)[:12]}"
