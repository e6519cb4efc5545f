"""Decides when a run writes a checkpoint, and writes it."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast, broadcast_object_list

from ampft.engine.checkpoints.interval import parse_interval
from ampft.engine.checkpoints.store import BEST_NAME, CheckpointManifest, CheckpointStore
from ampft.engine.checkpoints.writing import BackgroundWriter, Content, copied_to_cpu, write_content
from ampft.errors import InputError
from ampft.features.feature import required_feature
from ampft.features.resources import TrainingClock
from ampft.features.validations import Validations
from ampft.files import check_disk_space, link
from ampft.runs.folder import RunFolder
from ampft.runs.loop_state import LoopState
from ampft.runs.manifest import HISTORY_NAME
from ampft.runs.resume import MICRO_BATCHES, environment_of, settings_of, topology_of
from ampft.runs.saved_state import model_tensors, state_tensors, state_values
from ampft.text.numbers import counted


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

    def _due(self) -> str | None:
        """Return the reason for a checkpoint after this step; None if none is due."""
        interval, cursor = self._interval, self._state.cursor
        if interval.steps is not None and cursor.step % interval.steps == 0:
            return f"every {counted(interval.steps, 'step')}"
        if interval.every_epoch and cursor.step_in_epoch == 0:
            return "every epoch"
        if interval.seconds is None:
            return None
        is_due = time.monotonic() - self._last >= interval.seconds
        accelerator = self._state.prepared.accelerator
        if accelerator.num_processes > 1:  # by the clock of the main process
            flag = broadcast(torch.tensor([int(is_due)], device=accelerator.device))
            is_due = bool(flag.item())
        return f"every {interval.seconds / 60:g} min" if is_due else None


def _finish(store: CheckpointStore, temporary: Path, content: Content) -> None:
    try:
        write_content(temporary, content)
        store.publish(temporary)
    except BaseException:
        store.discard(temporary)
        raise
