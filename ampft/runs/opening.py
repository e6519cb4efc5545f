"""Opens a run: prints the plan, locks its folder, and records how it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ampft.errors import InputError, Preempted, TrainingStopped
from ampft.files import is_disk_error
from ampft.runs.checkpointing import Checkpointing
from ampft.runs.folder import RunFolder, claim_default_folder
from ampft.runs.plan import plan_lines
from ampft.runs.prepare import with_fitting_micro_batches
from ampft.runs.prepared import Prepared
from ampft.runs.record import write_record
from ampft.runs.resume import as_checkpointed, continue_folder, restore_checkpoint, start_line
from ampft.runs.run import Run
from ampft.runs.state import RunState
from ampft.text.terminal import print_line
from ampft.training.ending import ended_with_others, first_failure
from ampft.training.out_of_memory import explain_out_of_memory
from ampft.training.stopping import StopRequest, StopRequested


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
