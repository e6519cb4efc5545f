"""Decides when a run writes a checkpoint, and writes it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast, broadcast_object_list
from torch import Tensor

from ampft.errors import InputError
from ampft.features.feature import the_feature
from ampft.features.resources import Clock
from ampft.features.validations import Validations
from ampft.files import check_disk_space, link
from ampft.runs.folder import RunFolder
from ampft.runs.resume import MICRO_BATCHES, environment_of, settings_of, topology_of
from ampft.runs.saved_state import model_tensors, state_tensors, state_values
from ampft.runs.state import RunState
from ampft.text.numbers import counted
from ampft.training.checkpoints.interval import parse_interval
from ampft.training.checkpoints.manifest import BEST_NAME, CheckpointManifest
from ampft.training.checkpoints.store import CheckpointStore
from ampft.training.checkpoints.writing import (
    BackgroundWriter,
    Content,
    copied_to_cpu,
    write_content,
)

_Tensors = tuple[dict[str, Tensor], dict[str, Tensor]]  # of the model and of its optimizer


class Checkpointing:
    """Context that writes the checkpoints of a run. All processes call its methods together.

    At its end, it waits for the last checkpoint, and suppresses its error.
    """

    def __init__(self, state: RunState, folder: RunFolder | None) -> None:
        """Start the clock of `--checkpointing_steps Nmin`.

        Args:
            state: State of the run.
            folder: Output folder, on the main process; None on the others.
        """
        args = state.prepared.args
        self._state = state
        self._store = None
        if folder is not None:
            self._store = CheckpointStore(folder.path, args.checkpoint_total_limit)
        self._best = the_feature(state.features, Validations).best
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
        # All processes contribute.
        tensors = (model_tensors(self._state), state_tensors(self._state))
        values = state_values(self._state)
        error = self._write(reason, tensors, values, in_background=in_background)
        if not in_background and self._state.prepared.accelerator.num_processes > 1:
            broadcast_object_list(errors := [error])
            error = errors[0]
        if error is not None:  # on all processes, so that none waits for another
            raise error
        self._last = time.monotonic()
        the_feature(self._state.features, Clock).checkpoint_seconds += self._last - started
        self._state.history.resume_clock()

    def wait(self) -> None:
        """Wait until the last checkpoint is durable.

        Raises:
            OSError: It could not be written.
            InputError: It does not fit on the disk.
        """
        self._writer.wait()

    def _write(
        self, reason: str, tensors: _Tensors, values: dict[str, Any], *, in_background: bool
    ) -> OSError | InputError | None:
        """Write on the main process; return the error if it fails."""
        if self._store is None:
            return None
        try:
            self._writer.wait()
            if in_background:
                tensors = (copied_to_cpu(tensors[0]), copied_to_cpu(tensors[1]))
            content = self._content(reason, tensors, values)
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

    def _content(self, reason: str, tensors: _Tensors, values: dict[str, Any]) -> Content:
        state = self._state
        model, optimizer = tensors
        record, history, batches = state.initial, state.history, state.retries.step_batches
        assert history.path is not None, "the main process writes the history"
        best = self._best.file
        manifest = CheckpointManifest(
            cursor=state.cursor,
            reason=reason,
            settings=settings_of(record, len(batches)),
            topology=topology_of(record) | {MICRO_BATCHES: batches.micro_batches},
            environment=environment_of(record),
            history=history.position(),
            files={} if best is None else {BEST_NAME: best},
        )
        return Content(
            manifest=manifest,
            model=model,
            optimizer=optimizer,
            state=values,
            history=history.path,
        )

    def _due(self) -> str | None:
        """Return the reason for a checkpoint after this step; None if none is due."""
        interval, cursor = self._interval, self._state.cursor
        if interval.steps is not None and cursor.step % interval.steps == 0:
            return f"every {counted(interval.steps, 'step')}"
        if interval.every_epoch and cursor.step_in_epoch == 0:
            return "every epoch"
        if interval.seconds is not None and self._is_time():
            return f"every {interval.seconds / 60:g} min"
        return None

    def _is_time(self) -> bool:
        """Return whether the interval has passed, by the clock of the main process."""
        assert self._interval.seconds is not None
        due = time.monotonic() - self._last >= self._interval.seconds
        accelerator = self._state.prepared.accelerator
        if accelerator.num_processes == 1:
            return due
        return bool(broadcast(torch.tensor([int(due)], device=accelerator.device)).item())


def _finish(store: CheckpointStore, temporary: Path, content: Content) -> None:
    try:
        write_content(temporary, content)
        store.publish(temporary)
    except BaseException:
        store.discard(temporary)
        raise
