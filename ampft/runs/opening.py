"""Opens a run, new or from a checkpoint: plan, lock of its folder, and how it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ampft.errors import InputError, Preempted, TrainingStopped
from ampft.files import is_disk_error, write_file
from ampft.runs.checkpointing import Checkpointing
from ampft.runs.compatibility import differences, refuse_differences
from ampft.runs.conditions import (
    CONFIGURATION,
    MICRO_BATCHES,
    environment_of,
    settings_of,
    topology_of,
)
from ampft.runs.folder import RunFolder, claim_default_folder
from ampft.runs.manifest import HISTORY_NAME
from ampft.runs.plan import plan_lines
from ampft.runs.prepare import with_fitting_micro_batches
from ampft.runs.prepared import Prepared
from ampft.runs.record import ResumePart, read_record, write_record
from ampft.runs.resume_point import ResumePoint, advice, run_folder
from ampft.runs.run import Run
from ampft.runs.saved_state import is_of_earlier_version, read_saved_state, restore
from ampft.runs.state import RunState
from ampft.text.numbers import counted
from ampft.text.terminal import labelled, print_line
from ampft.training.checkpoints.manifest import DamagedCheckpoint, verified_history
from ampft.training.checkpoints.store import CheckpointStore
from ampft.training.ending import StopRequest, StopRequested, ended_with_others, first_failure
from ampft.training.out_of_memory import explain_out_of_memory


@contextlib.contextmanager
def open_run(prepared: Prepared) -> Iterator[Run]:
    """Print the plan, lock the output folder, and record how the run ends, whatever happens.

    Raises:
        InputError: The output folder cannot be locked or written.
    """
    prepared = (
        as_checkpointed(prepared) if prepared.resumes else with_fitting_micro_batches(prepared)
    )
    args, accelerator, point = prepared.args, prepared.accelerator, prepared.resume_point
    main = accelerator.is_main_process
    if main:
        lines = plan_lines(prepared) + ([start_line(prepared)] if point is not None else [])
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
        if prepared.resumes:
            restore_checkpoint(state)
        if folder is not None:  # before any other file, which a later run then knows as a result
            write_record(folder, state.initial)
            if prepared.resumes:
                continue_folder(folder, prepared)
        with state.history, Checkpointing(state, folder) as checkpoints:
            for feature in state.features:
                feature.begin()
            run = Run(state, folder, checkpoints, StopRequest(accelerator))
            with _record_early_stop(run, output_dir):
                yield run


@contextlib.contextmanager
def _record_early_stop(run: Run, output_dir: Path) -> Iterator[None]:
    """Record why the run stopped, if it does not finish; a signal also leaves a checkpoint."""
    accelerator = run.prepared.accelerator
    with run.stop.listening(), ended_with_others(accelerator, run.record_stop):
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
            run.record_stop(*first_failure(accelerator, status, reason))
            if isinstance(error, TrainingStopped):
                raise
            is_removed = run.folder is not None and not run.folder.is_intact()
            if is_disk_error(error) or is_removed:
                raise InputError(
                    f"--output_dir {output_dir}: the folder cannot be written ({error}), so the "
                    "run stopped. Free disk space, keep the folder, or name another one."
                ) from error
            raise


_OWN_SETTINGS = (
    "Use the settings of the checkpoint, or train with the new ones in another --output_dir."
)


def as_checkpointed(prepared: Prepared) -> Prepared:
    """Return the components with the checkpoint's micro-batches, if they may be chosen.

    Raises:
        InputError: Settings, data, model, precision or schedule differ from the checkpoint's, or
            the topology does and `--allow_topology_change` is not set.
    """
    manifest = _point(prepared).manifest
    assert manifest is not None
    if prepared.args.auto_micro_batch:
        number = manifest.topology[MICRO_BATCHES]
        prepared = replace(
            prepared, step_batches=replace(prepared.step_batches, micro_batches=number)
        )
    where = str(_point(prepared).checkpoint)
    checkpoint = _point(prepared).checkpoint
    assert checkpoint is not None
    if CONFIGURATION not in manifest.settings or is_of_earlier_version(checkpoint):
        raise InputError(
            f"--resume_from_checkpoint: {checkpoint} was written by an earlier version of ampft, "
            "which recorded less. Continue with that version (MANIFEST.json has it), or train anew "
            "in another --output_dir."
        )
    refuse_differences(where, differences(manifest.settings, settings_of(prepared)), _OWN_SETTINGS)
    if not prepared.args.allow_topology_change:
        refuse_differences(
            where,
            _topology_changes(prepared),
            "The same examples would be used in the same order, but not the same rounding. Start "
            "it as before, or pass --allow_topology_change, which is recorded.",
        )
    return prepared


def restore_checkpoint(state: RunState) -> None:
    """Restore the state of a run from its checkpoint; its record then has the continuation.

    Args:
        state: State before the first step.
    """
    point = _point(state.prepared)
    checkpoint, manifest = point.checkpoint, point.manifest
    assert checkpoint is not None
    assert manifest is not None
    history = verified_history(run_folder(checkpoint) / HISTORY_NAME, manifest.history)
    try:
        saved = read_saved_state(checkpoint, state, history)
    except DamagedCheckpoint as error:
        raise InputError(f"--resume_from_checkpoint: {error} {advice(checkpoint)}") from error
    part = ResumePart(
        checkpoint=checkpoint.name,
        step=manifest.cursor.step,
        epoch=manifest.cursor.epoch + 1,
        resumed=datetime.now(UTC).isoformat(timespec="seconds"),
        topology=_topology_changes(state.prepared),
        environment=differences(manifest.environment, environment_of(state.prepared)),
    )
    resumes = (*_recorded_resumes(point, saved.resumes), part)
    state.initial = replace(state.initial, started=saved.started, resumes=resumes)
    restore(state, checkpoint, manifest, saved, history)


def continue_folder(folder: RunFolder, prepared: Prepared) -> None:
    """Cut the output folder back to the checkpoint: later checkpoints, and the history.

    The record must already say that the run continues.
    """
    point = _point(prepared)
    assert point.checkpoint is not None
    assert point.manifest is not None
    store = CheckpointStore(folder.path)
    store.remove_incomplete()
    store.remove_after(point.manifest.cursor.step)
    beginning = verified_history(
        run_folder(point.checkpoint) / HISTORY_NAME, point.manifest.history
    )
    with folder.replacing(HISTORY_NAME) as temporary:
        write_file(temporary, [beginning])


def start_line(prepared: Prepared) -> str:
    """Return the line about where a run with `--resume_from_checkpoint` begins."""
    point = _point(prepared)
    if point.manifest is None:
        return labelled(
            "resume", f"{point.output_dir} has no checkpoint yet, so the training starts at step 1"
        )
    cursor = point.manifest.cursor
    changes = _topology_changes(prepared) | differences(
        point.manifest.environment, environment_of(prepared)
    )
    notes = [
        f"{name}: {before} in the checkpoint, {now} now" for name, (before, now) in changes.items()
    ]
    return labelled(
        "resume",
        f"{point.checkpoint}: {counted(cursor.step, 'step')} done; continues in epoch "
        f"{cursor.epoch + 1} at its step {cursor.step_in_epoch + 1}",
        *notes,
    )


def _point(prepared: Prepared) -> ResumePoint:
    assert prepared.resume_point is not None, "only for runs with --resume_from_checkpoint"
    return prepared.resume_point


def _topology_changes(prepared: Prepared) -> dict[str, tuple[Any, Any]]:
    manifest = _point(prepared).manifest
    assert manifest is not None
    return differences(manifest.topology, topology_of(prepared, prepared.step_batches))


def _recorded_resumes(point: ResumePoint, saved: Sequence[ResumePart]) -> Sequence[ResumePart]:
    """Return earlier continuations, including those that ended before their first checkpoint."""
    if not point.is_inside:
        return saved
    try:
        recorded = read_record(point.output_dir).resumes
    except InputError:
        return saved
    return max(saved, recorded, key=len)
