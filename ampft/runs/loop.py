"""The loop around the steps of any training: opened, continued, measured, recorded, stopped."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from accelerate.utils import broadcast, broadcast_object_list
from torch import Tensor

from ampft.data.step_batches import StepBatch
from ampft.engine.checkpoints.checkpoint_interval import parse_interval
from ampft.engine.checkpoints.store import (
    BEST_NAME,
    CheckpointManifest,
    CheckpointStore,
    DamagedCheckpoint,
    read_manifest,
)
from ampft.engine.checkpoints.writing import BackgroundWriter, Content, copied_to_cpu, write_content
from ampft.engine.ending import (
    FINISHING,
    StopSignalMonitor,
    end_training,
    exit_if_others_fail,
    raise_failure_of_other,
    report_first_failure,
)
from ampft.engine.out_of_memory import explain_out_of_memory
from ampft.engine.step import StepOutcome, StepStopped, replace_update_call, shared_autocast_cache
from ampft.errors import InputError, PartsFailed, PrecisionContradicted, Preempted, TrainingStopped
from ampft.features.feature import StepRecord, required_feature, tensors_of
from ampft.features.nonfinite_steps import NonfiniteStepMonitor
from ampft.features.resources import TrainingClock
from ampft.features.validations import Validations
from ampft.files import check_disk_space, is_disk_error, link, write_file
from ampft.models.weights import gather_tensors
from ampft.precision.accelerator import is_sharded
from ampft.precision.executed import precision_contradiction
from ampft.precision.float32_modules import uncalled_float32_pattern
from ampft.runs.checkpoint_content import (
    model_tensors,
    read_saved_state,
    restore,
    state_tensors,
    state_values,
)
from ampft.runs.folder import RunFolder
from ampft.runs.later_parts import END_OF_TRAINING, TRAINED, LaterParts, parts_text, reason_of
from ampft.runs.loop_state import LoopState, P, Parts, entered_in_order
from ampft.runs.manifest import HISTORY_NAME
from ampft.runs.record import ResumePart, RunRecord, read_record, write_record
from ampft.runs.resume import (
    MICRO_BATCHES,
    Checkpoint,
    ResumePoint,
    changed_choices,
    changed_values,
    choices_of,
    damage_advice,
    environment_of,
    refuse_differences,
    settings_of,
    topology_of,
)
from ampft.signals import StopRequested
from ampft.text.numbers import counted
from ampft.text.terminal import labelled, print_line


class Checkpointing:
    """Context that writes the checkpoints of a run. All processes call its methods together.

    At its end, it waits for the last checkpoint, and suppresses its error.
    """

    def __init__(self, state: LoopState[Any], folder: RunFolder | None) -> None:
        """Start the clock of `--checkpointing_steps Nmin`.

        Args:
            folder: Output folder, on the main process; None on the others.
        """
        args = state.prepared.args
        self._state = state
        self._store = None
        if folder is not None:
            self._store = CheckpointStore(folder.path, args.checkpoint_total_limit)
        self._best = required_feature(state.features, Validations).best
        self._interval = parse_interval(args.checkpointing_steps)
        self._is_async = args.async_checkpoints
        self._writer = BackgroundWriter()
        self._last = time.monotonic()

    def __enter__(self) -> Checkpointing:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def after_step(self) -> bool:
        """Write a checkpoint after an optimizer step, and its validation, if one is due.

        Returns:
            Whether one was due, which is the same in all processes.

        Raises:
            OSError: It, or the one before in the background, could not be written.
        """
        self._writer.check()
        reason = self._due()
        if reason is not None:
            self.save(reason)
        return reason is not None

    def save(self, reason: str, *, wait: bool = False) -> None:
        """Write a checkpoint, between two steps. Skipped if this step has one.

        Args:
            reason: Reason for it, such as "every 500 steps".
            wait: Whether to return only when it is durable, with `--async_checkpoints` too.

        Raises:
            OSError: It could not be written.
            InputError: It does not fit on the disk.
        """
        started = time.monotonic()
        in_background = self._is_async and not wait
        content = self._content(reason)  # all processes contribute
        error = self._write(content, in_background=in_background)
        if not in_background and self._state.prepared.accelerator.num_processes > 1:
            broadcast_object_list(errors := [error])
            error = errors[0]
        if error is not None:  # on all processes, so that none waits for another
            raise error
        self._last = time.monotonic()
        required_feature(self._state.features, TrainingClock).checkpoint_seconds += (
            self._last - started
        )
        self._state.history.resume_clock()

    def save_end(self) -> str | None:
        """Write the state after the last step, from which a run is completed without training.

        Nothing reads the optimizer's state after the last planned step, so it is left out there,
        unless the user wants checkpoints.

        Returns:
            Why it could not be written, which must not cost the training; None if it is written.
        """
        self._writer.wait()
        state = self._state
        content = self._content(END_OF_TRAINING)
        is_last = state.history.steps >= state.prepared.total_steps
        if is_last and not self._interval.is_set:
            content = replace(
                content,
                optimizer=gather_tensors(tensors_of(state.features)),
                state={**content.state, "optimizer": {**content.state["optimizer"], "state": {}}},
            )
        errors: list[str | None] = [self._write_end(content)]
        if state.prepared.accelerator.num_processes > 1:
            broadcast_object_list(errors)
        return errors[0]

    def _write_end(self, content: Content) -> str | None:
        if self._store is None:
            return None
        try:
            check_disk_space(self._store.path.parent, content.tensor_bytes, "the end of training")
            temporary = self._store.begin(content.manifest.cursor.step)
            if temporary is not None:
                if BEST_NAME in content.manifest.files:
                    link(self._best.path, temporary / BEST_NAME)
                _finish(self._store, temporary, content, prunes=False)
        except Exception as error:
            return reason_of(error)
        return None

    def remove_end(self) -> None:
        """Remove the checkpoint of `save_end`, which a run without missing parts does not need.

        One that `--checkpointing_steps` asks for at the last step stays, and an older one goes.
        """
        if self._store is None:
            return
        if self._planned() is not None:
            self._store.prune()
            return
        for folder in self._store.own():
            if read_manifest(folder).reason == END_OF_TRAINING:
                self._store.remove(folder)
        if not self._store.own():
            self._store.remove_all()

    def wait(self) -> None:
        """Wait until the last checkpoint is durable.

        Raises:
            OSError: It could not be written.
            InputError: It does not fit on the disk.
        """
        self._writer.wait()

    def _write(self, content: Content, *, in_background: bool) -> OSError | InputError | None:
        """Write on the main process; return the error if it fails."""
        if self._store is None:
            return None
        try:
            self._writer.wait()
            if in_background:
                model, optimizer = copied_to_cpu(content.model), copied_to_cpu(content.optimizer)
                content = replace(content, model=model, optimizer=optimizer)
            check_disk_space(self._store.path.parent, content.tensor_bytes, "a checkpoint")
            temporary = self._store.begin(content.manifest.cursor.step)
            if temporary is None:
                return None
            if BEST_NAME in content.manifest.files:
                # Now, because a validation may replace the file while the rest is written.
                link(self._best.path, temporary / BEST_NAME)
            job = partial(_finish, self._store, temporary, content)
            if in_background:
                self._writer.start(job)
            else:
                job()
        except (OSError, InputError) as error:
            return error
        return None

    def _content(self, reason: str) -> Content:
        state, best = self._state, self._best.file
        record, batches = state.initial, state.retries.step_batches
        manifest = CheckpointManifest(
            cursor=state.cursor,
            reason=reason,
            settings=settings_of(record, len(batches)),
            topology=topology_of(record) | {MICRO_BATCHES: batches.micro_batches},
            environment=environment_of(record),
            choices=choices_of(record),
            history=state.history.position(),
            files={} if best is None else {BEST_NAME: best},
        )
        return Content(
            manifest=manifest,
            model=model_tensors(state),
            optimizer=state_tensors(state),
            state=state_values(state),
            history=state.prepared.folder / HISTORY_NAME,
        )

    def _planned(self) -> str | None:
        """Return why a checkpoint after this step was planned, whatever the time; None if not."""
        interval, cursor = self._interval, self._state.cursor
        if interval.steps is not None and cursor.step % interval.steps == 0:
            return f"every {counted(interval.steps, 'step')}"
        return "every epoch" if interval.every_epoch and cursor.step_in_epoch == 0 else None

    def _due(self) -> str | None:
        """Return the reason for a checkpoint after this step; None if none is due."""
        interval, planned = self._interval, self._planned()
        if planned is not None:
            return planned
        if interval.seconds is None:
            return None
        is_due = time.monotonic() - self._last >= interval.seconds
        accelerator = self._state.prepared.accelerator
        if accelerator.num_processes > 1:  # by the clock of the main process
            flag = broadcast(torch.tensor([int(is_due)], device=accelerator.device))
            is_due = bool(flag.item())
        return f"every {interval.seconds / 60:g} min" if is_due else None


def _finish(
    store: CheckpointStore, temporary: Path, content: Content, *, prunes: bool = True
) -> None:
    try:
        write_content(temporary, content)
        store.publish(temporary, prunes=prunes)
    except BaseException:
        store.discard(temporary)
        raise


L = TypeVar("L", bound="Loop[Any]")


@contextlib.contextmanager
def open_loop(
    kind: type[L],
    prepared: Parts,
    new_state: Callable[[], LoopState[Any]],
    point: ResumePoint | None,
) -> Iterator[L]:
    """Lock the output folder, continue from a checkpoint, and record how the loop ends.

    Args:
        new_state: Function that returns its state before the first step.
        point: Where it begins; None for the first step of a new run.

    Raises:
        InputError: The output folder cannot be locked or written.
    """
    args, accelerator = prepared.args, prepared.accelerator
    checkpoint = None if point is None else point.checkpoint
    completes = point is not None and point.completes
    folder = None
    if accelerator.is_main_process:
        folder = RunFolder(
            prepared.folder,
            overwrite=args.overwrite_output_dir or (point is not None and point.is_first),
            continues=point is not None and point.is_inside,
            completes=completes,
            is_new=args.output_dir is None,
        )
    with folder or contextlib.nullcontext():
        state = new_state()
        if point is not None and checkpoint is not None:
            _restore_checkpoint(state, point, checkpoint)
        if folder is not None:  # before any other file, which a later run then knows as a result
            write_record(folder, _first_record(state.initial, folder, completes=completes))
            if checkpoint is not None:
                _continue_folder(folder, checkpoint)
        with state.history, Checkpointing(state, folder) as checkpoints:
            for feature in state.features:
                feature.begin()
            run = kind(state, folder, checkpoints, StopSignalMonitor(accelerator))
            with _record_early_stop(run, prepared.folder):
                yield run


def _first_record(record: RunRecord, folder: RunFolder, *, completes: bool) -> RunRecord:
    """Return the record of a run that begins, or that completes a training that has ended."""
    if not completes:
        return record
    return replace(record, status=TRAINED, parts=LaterParts().status, files=folder.files())


@contextlib.contextmanager
def _record_early_stop(run: Loop[Any], output_dir: Path) -> Iterator[None]:
    """Record why the run stopped, if it does not finish; a signal also leaves a checkpoint."""
    accelerator = run.prepared.accelerator
    with run.stop.listening(), exit_if_others_fail(accelerator, run.record_stop):
        try:
            with explain_out_of_memory():
                try:
                    yield
                except StopRequested as request:
                    raise run.preempt(request) from None
        except (Preempted, PartsFailed):
            raise
        except BaseException as error:
            status, reason = report_first_failure(accelerator, error)
            run.record_stop(status, reason)
            is_signal = not isinstance(error, Exception)
            if is_signal and run.parts is not None and run.folder is not None and not run.finished:
                print_line(f"\n{run.parts.error(output_dir)}", file=sys.stderr)
            if isinstance(error, TrainingStopped) and not (run.parts and status == "interrupted"):
                raise
            raise_failure_of_other(error, reason)
            is_removed = run.folder is not None and not run.folder.is_intact()
            if run.parts is not None and isinstance(error, Exception) and not is_removed:
                raise run.parts.error(output_dir) from error
            if is_disk_error(error) or is_removed:
                raise InputError(
                    f"--output_dir {output_dir}: the folder cannot be written ({error}), so the "
                    "run stopped. Free disk space, keep the folder, or choose another one."
                ) from error
            raise


def as_checkpointed(prepared: P, checkpoint: Checkpoint) -> P:
    """Return the components with the checkpoint's micro-batches, if they may be chosen.

    Raises:
        InputError: Settings, data, model, precision or schedule differ from the checkpoint's, or
            the topology does and `--allow_topology_change` is not set.
    """
    manifest, where = checkpoint.manifest, str(checkpoint.folder)
    if prepared.args.auto_micro_batch:
        number = manifest.topology[MICRO_BATCHES]
        batches = replace(prepared.step_batches, micro_batches=number)
        prepared = replace(prepared, step_batches=batches)  # type: ignore[type-var]
    now = settings_of(prepared.record, len(prepared.step_batches))
    # In an own loop, each optimizer has settings of its own.
    has_same_optimizer = manifest.settings.get("--optimizer") == now.get("--optimizer")
    differing = manifest.settings.keys() ^ now.keys()
    if has_same_optimizer and any(name.startswith("--") for name in differing):
        raise InputError(
            f"--resume_from_checkpoint: {where} was written by another version of ampft, which has "
            "other flags. Continue with that version (MANIFEST.json has it), or train anew in "
            "another --output_dir."
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
            "The examples and their order would be the same, but rounding and the masks of dropout "
            "would not. Start it as before, or pass --allow_topology_change, which is recorded.",
        )
    return prepared


def _restore_checkpoint(state: LoopState[Any], point: ResumePoint, checkpoint: Checkpoint) -> None:
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
        settings=changed_choices(manifest, state.initial),
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


@dataclass
class Loop(Generic[P]):
    """Everything around the steps of a training; `open_loop` opens one."""

    # Everything that changes while the run trains, and that a checkpoint saves.
    state: LoopState[P]
    folder: RunFolder | None  # Output folder, on the main process; None on the others.
    checkpoints: Checkpointing  # Writes the checkpoints.
    stop: StopSignalMonitor  # Request of a signal to stop.
    # Weights after the last step, while others are evaluated in their place.
    last_weights: dict[str, Tensor] | None = None
    finished: bool = False  # Whether the results are written.
    current_batch: StepBatch | None = None  # Step batch of the current step.
    losses: Sequence[Tensor] = ()  # Losses of its micro-batches.
    # What follows the training; None until its model is saved.
    parts: LaterParts | None = None

    @property
    def prepared(self) -> P:
        """Everything built before the first step."""
        return self.state.prepared

    @property
    def steps(self) -> int:
        """Optimizer steps so far, skipped ones included."""
        return self.state.history.steps

    @property
    def is_over(self) -> bool:
        """Whether the training has ended: all steps are done, or a feature stops it."""
        is_complete = self.steps >= self.prepared.total_steps
        return is_complete or any(feature.should_stop for feature in self.state.features)

    def remaining_epochs(self) -> Iterator[int]:
        """Yield the epochs of the training, from 0, until it is over."""
        for epoch in itertools.count(self.steps // len(self.state.retries.step_batches)):
            if self.is_over:
                return
            yield epoch

    def step_batches(self, epoch: int) -> Iterator[StepBatch]:
        """Yield the step batches of an epoch that are not done yet, until the training is over."""
        first = epoch * len(self.state.retries.step_batches)
        steps = self.state.retries.step_batches.epoch(
            epoch, start=self.steps - first, stop=self.prepared.total_steps - first
        )
        for step_batch in steps:
            self.current_batch = step_batch
            yield step_batch
            if self.checkpoints.after_step():
                self.stop.poll()
            if self.is_over:
                return

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the first optimizer step; record a step that stops the run.

        Raises:
            StepStopped: The step cannot be applied.
            PrecisionContradicted: Its dtypes do not match the requested mode.
        """
        first_step = self.state.first_step
        is_first = first_step.executed is None
        try:
            update = None if self.state.graphs is None else self.state.graphs[1]
            measured = first_step.measured(self.prepared.model, self.prepared.optimizer)
            with measured, replace_update_call(update):
                yield
        except StepStopped as error:
            self._add(error.outcome, ends_run=True)
            raise
        if is_first and first_step.executed is not None:
            executed = first_step.executed
            message = precision_contradiction(self.prepared.precision, executed)
            message = message or uncalled_float32_pattern(self.prepared.model)
            if message is not None:
                raise PrecisionContradicted(message)
            self.state.history.write(labelled("ran", executed.summary()))

    def gradient(
        self, compute: Callable[[StepBatch], list[Tensor]], step_batch: StepBatch
    ) -> list[Tensor]:
        """Compute the gradient of a step; if memory runs out, again in smaller micro-batches.

        Args:
            compute: Function that accumulates the gradient of a step batch over its micro-batches
                and returns the result of `ampft.backward` for each.

        Raises:
            OutOfMemory: The step does not fit and cannot be repeated in smaller micro-batches.
        """

        def compute_with_shared_cache(step_batch: StepBatch) -> list[Tensor]:
            with shared_autocast_cache(self.prepared.accelerator, self.prepared.model, step_batch):
                return compute(step_batch)

        whole = compute_with_shared_cache
        if self.state.graphs is not None:
            whole = partial(self.state.graphs[0].gradient, compute_with_shared_cache)
        with entered_in_order(
            feature.around_gradient(self.steps + 1) for feature in self.state.features
        ):
            self.current_batch, losses = self.state.retries.gradient(whole, step_batch)
        self.losses = losses
        return losses

    @property
    def may_skip_nonfinite(self) -> bool:
        """Whether to skip a step that is not finite, without a scaler, instead of stopping."""
        return required_feature(self.state.features, NonfiniteStepMonitor).may_skip

    @property
    def votes(self) -> list[float]:
        """Whether this process wants the run to stop, for `apply_step`."""
        return self.stop.votes(required_feature(self.state.features, TrainingClock).limit)

    def record(
        self, outcome: StepOutcome, columns: Mapping[str, float | None] | None = None
    ) -> None:
        """Add the current optimizer step to the history; stop if a process has voted for it."""
        self._add(outcome, ends_run=False, own=columns)
        self.stop.decide(outcome.votes, required_feature(self.state.features, TrainingClock).limit)

    def _add(
        self, outcome: StepOutcome, *, ends_run: bool, own: Mapping[str, float | None] | None = None
    ) -> None:
        batch = self.current_batch
        assert batch is not None
        self.state.step_ids.update(batch.effective_ids)
        record = StepRecord(self.steps + 1, batch, self.losses, outcome, ends_run)
        columns: dict[str, float | None] = dict(own or {})
        for feature in self.state.features:
            columns |= feature.after_step(record)
        self.state.history.record(batch, outcome, columns)

    def choose_weights(self) -> bool:
        """Give the model its final weights; return whether a signal may still stop the run.

        It may if the weights after the last step, which a checkpoint needs, are kept or can be.
        """
        self.stop.response = FINISHING
        is_replaced = any(f.replaces_weights(self.steps) for f in self.state.features)
        may_stop = not (is_replaced and is_sharded(self.prepared.accelerator))
        if is_replaced and may_stop:
            self.last_weights = copied_to_cpu(model_tensors(self.state))
        for feature in self.state.features:
            may_stop &= feature.choose_weights()
        return may_stop

    def preempt(self, request: StopRequested) -> Preempted:
        """Write a checkpoint, and return how the run continues. All processes call it together.

        Raises:
            SystemExit: Runs in this precision cannot continue.
        """
        prepared = self.prepared
        if not prepared.can_resume:
            raise SystemExit(128 + request.signal)
        if self.last_weights is not None:
            prepared.plain_model.load_state_dict(self.last_weights)
        self.checkpoints.save(str(request), wait=True)
        reason = f"{request} after step {self.steps} of {prepared.total_steps}"
        self.record_stop("preempted", reason)
        # Launchers end the others when one process has ended.
        prepared.accelerator.wait_for_everyone()
        end_training(prepared.accelerator)
        return Preempted(
            f"{labelled('stopped', f'{reason}; a checkpoint is in {prepared.folder}')}\n"
            f"continue   repeat the command with --output_dir {prepared.folder} "
            "--resume_from_checkpoint latest"
        )

    def record_stop(self, status: str, reason: str) -> None:
        """Record why the run stopped early; the other files in its folder remain."""
        if self.folder is None or self.finished:
            return
        if self.parts is not None and status == "interrupted":
            self.parts.fail_current(reason)
            status = TRAINED
        if not self.folder.staged:
            self.folder.discard()
        with contextlib.suppress(OSError, InputError):  # the first error is reported
            self.folder.check_record()
            files = self.folder.files()
            if files.get(HISTORY_NAME) != self.state.history.position():  # it is not this run's own
                files.pop(HISTORY_NAME, None)
            if self.parts is not None and status != "preempted":
                reason = parts_text(self.folder.path, self.parts.status)
            record = replace(self.state.record(status), reason=reason, files=files)
            if self.parts is not None:
                record = replace(record, parts=self.parts.status)
            write_record(self.folder, record)
