"""Opens a run, new or from a checkpoint: plan, lock of its folder, and how it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from accelerate import Accelerator

from ampft.arguments.classify import ADAMW
from ampft.engine.checkpoints.store import CheckpointStore, DamagedCheckpoint
from ampft.engine.ending import (
    StopRequested,
    StopSignalMonitor,
    exit_if_others_fail,
    report_first_failure,
)
from ampft.engine.optimizer import OPTIMIZERS
from ampft.engine.out_of_memory import explain_out_of_memory
from ampft.errors import InputError, Preempted, TrainingStopped
from ampft.files import is_disk_error, write_file
from ampft.models.four_bit import has_4bit_layers, weights_per_parameter
from ampft.precision.accelerator import is_sharded
from ampft.precision.compilation import configured_backend
from ampft.precision.executed import dtype_name
from ampft.runs.checkpointing import Checkpointing
from ampft.runs.folder import RunFolder, claim_default_folder
from ampft.runs.manifest import HISTORY_NAME
from ampft.runs.prepare import with_fitting_micro_batches
from ampft.runs.prepared import Prepared
from ampft.runs.record import ResumePart, read_record, write_record
from ampft.runs.resume import (
    CONFIGURATION,
    MICRO_BATCHES,
    Checkpoint,
    ResumePoint,
    changed_values,
    damage_advice,
    environment_of,
    refuse_differences,
    settings_of,
    topology_of,
)
from ampft.runs.run import Run, batch_norm_warnings
from ampft.runs.saved_state import is_of_earlier_version, read_saved_state, restore
from ampft.runs.state import RunState
from ampft.text.numbers import counted, in_epochs
from ampft.text.terminal import labelled, print_line


@contextlib.contextmanager
def open_run(prepared: Prepared) -> Iterator[Run]:
    """Print the plan, lock the output folder, and record how the run ends, whatever happens.

    Raises:
        InputError: The output folder cannot be locked or written.
    """
    args, accelerator, point = prepared.args, prepared.accelerator, prepared.resume_point
    checkpoint = None if point is None else point.checkpoint
    if checkpoint is None:
        prepared = with_fitting_micro_batches(prepared)
    else:
        prepared = as_checkpointed(prepared, checkpoint)
    main = accelerator.is_main_process
    if main:
        lines = plan_lines(prepared) + ([] if point is None else [_start_line(prepared, point)])
        print_line("\n".join(lines))
    mode = prepared.precision.mode
    output_dir = claim_default_folder(args, mode, accelerator, prepared.folder)
    prepared = replace(prepared, output_dir=output_dir)
    folder = None
    if main:
        folder = RunFolder(
            output_dir,
            overwrite=args.overwrite_output_dir or (point is not None and point.is_first),
            continues=point is not None and point.is_inside,
        )
    with folder or contextlib.nullcontext():
        state = RunState.new(prepared)
        if point is not None and checkpoint is not None:
            _restore_checkpoint(state, point, checkpoint)
        if folder is not None:  # before any other file, which a later run then knows as a result
            write_record(folder, state.initial)
            if checkpoint is not None:
                _continue_folder(folder, checkpoint)
        with state.history, Checkpointing(state, folder) as checkpoints:
            for feature in state.features:
                feature.begin()
            run = Run(state, folder, checkpoints, StopSignalMonitor(accelerator))
            with _record_early_stop(run, output_dir):
                yield run


@contextlib.contextmanager
def _record_early_stop(run: Run, output_dir: Path) -> Iterator[None]:
    """Record why the run stopped, if it does not finish; a signal also leaves a checkpoint."""
    accelerator = run.prepared.accelerator
    with run.stop.listening(), exit_if_others_fail(accelerator, run.record_stop):
        try:
            with explain_out_of_memory():
                try:
                    yield
                except StopRequested as request:
                    raise run.preempt(request) from None
        except Preempted:
            raise
        except BaseException as error:
            if isinstance(error, TrainingStopped):
                status, reason = error.status, str(error)
            else:
                status, reason = "interrupted", f"{type(error).__name__}: {error}"
            run.record_stop(*report_first_failure(accelerator, status, reason))
            if isinstance(error, TrainingStopped):
                raise
            is_removed = run.folder is not None and not run.folder.is_intact()
            if is_disk_error(error) or is_removed:
                raise InputError(
                    f"--output_dir {output_dir}: the folder cannot be written ({error}), so the "
                    "run stopped. Free disk space, keep the folder, or choose another one."
                ) from error
            raise


def as_checkpointed(prepared: Prepared, checkpoint: Checkpoint) -> Prepared:
    """Return the components with the checkpoint's micro-batches, if they may be chosen.

    Raises:
        InputError: Settings, data, model, precision or schedule differ from the checkpoint's, or
            the topology does and `--allow_topology_change` is not set.
    """
    manifest, where = checkpoint.manifest, str(checkpoint.folder)
    if prepared.args.auto_micro_batch:
        number = manifest.topology[MICRO_BATCHES]
        prepared = replace(
            prepared, step_batches=replace(prepared.step_batches, micro_batches=number)
        )
    now = settings_of(prepared.record, len(prepared.step_batches))
    has_other_flags = any(name.startswith("--") for name in manifest.settings.keys() ^ now.keys())
    if (
        CONFIGURATION not in manifest.settings
        or has_other_flags
        or is_of_earlier_version(checkpoint.folder)
    ):
        difference = "has other flags" if has_other_flags else "recorded less"
        raise InputError(
            f"--resume_from_checkpoint: {where} was written by another version of ampft, "
            f"which {difference}. Continue with that version (MANIFEST.json has it), or train anew "
            "in another --output_dir."
        )
    refuse_differences(
        where,
        changed_values(manifest.settings, now),
        "Use the settings of the checkpoint, or train with the new ones in another --output_dir.",
    )
    if not prepared.args.allow_topology_change:
        refuse_differences(
            where,
            changed_values(manifest.topology, topology_of(prepared.record)),
            "The same examples would be used in the same order, but not the same rounding. Start "
            "it as before, or pass --allow_topology_change, which is recorded.",
        )
    return prepared


def _restore_checkpoint(state: RunState, point: ResumePoint, checkpoint: Checkpoint) -> None:
    """Restore the state of a run before its first step; its record then has the continuation."""
    manifest = checkpoint.manifest
    try:
        history = checkpoint.history()
        saved = read_saved_state(checkpoint.folder, state, history)
    except DamagedCheckpoint as error:
        raise InputError(
            f"--resume_from_checkpoint: {error} {damage_advice(checkpoint.folder)}"
        ) from error
    part = ResumePart(
        checkpoint=checkpoint.folder.name,
        step=manifest.cursor.step,
        epoch=manifest.cursor.epoch + 1,
        resumed=datetime.now(UTC).isoformat(timespec="seconds"),
        topology=changed_values(manifest.topology, topology_of(state.initial)),
        environment=changed_values(manifest.environment, environment_of(state.initial)),
    )
    earlier = saved.resumes
    if point.is_inside:  # the record also has those that ended before their first checkpoint
        with contextlib.suppress(InputError):
            earlier = max(earlier, read_record(point.output_dir).resumes, key=len)
    state.initial = replace(state.initial, started=saved.started, resumes=(*earlier, part))
    restore(state, checkpoint.folder, manifest, saved, history)


def _continue_folder(folder: RunFolder, checkpoint: Checkpoint) -> None:
    """Cut the output folder back to the checkpoint: later checkpoints, and the history.

    The record must already say that the run continues.
    """
    store = CheckpointStore(folder.path)
    store.remove_incomplete()
    store.remove_after(checkpoint.manifest.cursor.step)
    with folder.replacing(HISTORY_NAME) as temporary:
        write_file(temporary, [checkpoint.history()])


def plan_lines(prepared: Prepared) -> list[str]:
    """Return the lines of the plan: device, precision, model, data, steps."""
    precision, task, loaded = prepared.precision, prepared.task, prepared.loaded
    weights = sum(weights_per_parameter(loaded.model).values()) / 1e6
    sizes = ", ".join(f"{name} {len(rows)}" for name, rows in task.data.splits.items())
    batches, steps = prepared.step_batches, prepared.total_steps
    processes = counted(batches.world_size, "process")
    micro_batches = counted(batches.micro_batches, "micro-batch")
    micro = batches.effective_batch_size // (batches.world_size * batches.micro_batches)
    suffix = ", the largest that fit" if prepared.args.auto_micro_batch else ""
    args = prepared.args
    optimizer = "" if args.optim == ADAMW else f"{OPTIMIZERS[args.optim].title}, "
    ema = args.ema_decay
    decay = "" if args.layer_decay is None else f", times {args.layer_decay:g} per layer below"
    return [
        labelled("device", _describe_device(prepared.accelerator, prepared.args.fsdp_gathers)),
        labelled(
            "precision",
            f"{precision.mode}, {precision.execution}: {precision.reason}",
            *prepared.check_notes,
        ),
        labelled(
            "model",
            f"{loaded.name}, {weights:.{1 if weights >= 1 else 3}f} M "
            f"{dtype_name(precision.storage_dtype)}"
            f"{' and NF4' * has_4bit_layers(loaded.model)} weights",
            *loaded.notes,
            *(["code from the model's repository may run"] if args.trust_remote_code else []),
        ),
        labelled(
            "data",
            f"{task.data.name}: {sizes}; {counted(len(task.label_names), 'class')}",
            *task.data.notes,
            *task.notes,
        ),
        labelled(
            "steps",
            f"{steps} {in_epochs(steps, len(batches))}; effective batch "
            f"{batches.effective_batch_size} = {processes} x {micro_batches} x {micro}{suffix}",
            f"{optimizer}learning rate {args.learning_rate:g}, {args.lr_scheduler_type}{decay}",
            *([] if ema is None else [f"the weights are averaged with decay {ema:g}"]),
            *batch_norm_warnings(loaded.model, batches).values(),
        ),
    ]


def _describe_device(accelerator: Accelerator, gathers: str) -> str:
    device = accelerator.device
    backend = configured_backend(accelerator)
    more = f", weights sharded (FSDP2) and gathered in {gathers}" * is_sharded(accelerator)
    more += "" if backend is None else f", compiled by {backend}"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} x {accelerator.num_processes}{more}"
    if device.type == "cpu":
        processes = f", {accelerator.num_processes} processes" * (accelerator.num_processes > 1)
        return f"CPU, {counted(torch.get_num_threads(), 'thread')}{processes}{more}"
    return f"{device.type} x {accelerator.num_processes}{more}"


def _start_line(prepared: Prepared, point: ResumePoint) -> str:
    """Return the line about where a run with `--resume_from_checkpoint` begins."""
    if point.checkpoint is None:
        return labelled(
            "resume", f"{point.output_dir} has no checkpoint yet, so the training starts at step 1"
        )
    manifest = point.checkpoint.manifest
    cursor = manifest.cursor
    before = {**manifest.topology, **manifest.environment}
    now = {**topology_of(prepared.record), **environment_of(prepared.record)}
    return labelled(
        "resume",
        f"{point.checkpoint.folder}: {counted(cursor.step, 'step')} done; continues in epoch "
        f"{cursor.epoch + 1} at its step {cursor.step_in_epoch + 1}",
        *(
            f"{name}: {old} in the checkpoint, {new} now"
            for name, (old, new) in changed_values(before, now).items()
        ),
    )
