"""Steps whose loss or gradient is not finite: skipped, counted and saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from accelerate import Accelerator
from torch import nn

from ampft.engine.saved_step import StepRandomState, save_step
from ampft.features.feature import Feature, SavedFeature, StepRecord, Write
from ampft.text.numbers import counted
from ampft.text.terminal import labelled
from ampft.text.warning_names import FALLING_SCALE, SKIPPED_NONFINITE

# A run with `--on_nonfinite skip` stops at the next such step.
MAX_SKIPPED = 10
MAX_SAVED = 3  # each has a copy of the weights
# A scaler that finds its scale falls a few times at the start, and later about once in 2000 steps,
# after which it rises again.
MAX_FALLS = 10


class StepResult(Protocol):
    """What a step, or its row in the history, says of the loss scale."""

    @property
    def loss_scale(self) -> float | None:
        """Loss scale after the step; None without a scaler."""

    @property
    def skipped(self) -> bool:
        """Whether the weights did not change."""


@dataclass
class NonfiniteSkips:
    """Counts of steps skipped so far, and of falls of the loss scale."""

    # Steps skipped because their loss or gradient was not finite, without a scaler.
    skipped: int = 0
    scale: float | None = None  # Loss scale after the last step; None without a scaler.
    falls: int = 0  # Number of times that the loss scale fell since it last rose.
    # First step at which it had fallen `MAX_FALLS` times; None if it never has.
    alarm_step: int | None = None
    alarm_scale: float | None = None  # Loss scale after that step.

    @property
    def may_skip(self) -> bool:
        """Whether another step that is not finite may be skipped."""
        return self.skipped < MAX_SKIPPED

    def add(self, step: int, outcome: StepResult) -> bool:
        """Add a step, from 1; return whether the loss scale has now fallen `MAX_FALLS` times."""
        if outcome.loss_scale is None:
            self.skipped += outcome.skipped
            return False
        if self.scale is not None and outcome.loss_scale > self.scale:
            self.falls = 0
        self.falls += outcome.skipped
        self.scale = outcome.loss_scale
        is_alarm = outcome.skipped and self.falls == MAX_FALLS
        if is_alarm and self.alarm_step is None:
            self.alarm_step, self.alarm_scale = step, self.scale
        return is_alarm

    def warnings(self, *, are_saved: bool) -> dict[str, str]:
        """Return reasons not to trust the run, by name.

        Args:
            are_saved: Whether the folder of the run has the first of the skipped steps.
        """
        warnings = {}
        if self.skipped:
            where = "; nonfinite/ has the first" if are_saved else ""
            warnings[SKIPPED_NONFINITE] = (
                f"the loss or gradient was not finite in {counted(self.skipped, 'step')}, which "
                f"had no effect on the weights{where}."
            )
        if self.alarm_step is not None:
            warnings[FALLING_SCALE] = (
                f"the loss scale fell {MAX_FALLS} times without rising in between, to "
                f"{self.alarm_scale:g} at step {self.alarm_step}: fp16 overflows again and again, "
                "and at a small scale small gradients become 0. Use bf16, or a lower learning "
                "rate."
            )
        return warnings


@dataclass
class NonfiniteStepMonitor(Feature):
    """Counts, prints and saves the steps of a run whose loss or gradient is not finite."""

    name = "nonfinite"

    folder: Path  # Folder for saved steps, in the output folder of the run.
    accelerator: Accelerator  # Accelerator that prepared the model.
    model: nn.Module  # Prepared model.
    mode: str  # Precision of the run.
    skips: bool  # Whether steps are skipped that are not finite, without a scaler.
    write: Write  # Function that prints a line.
    saves: bool = True  # Whether such steps are saved, for `ampft doctor`; not of an own loop.
    # Counts of what went wrong so far.
    watch: NonfiniteSkips = field(default_factory=NonfiniteSkips)
    _start: StepRandomState | None = None

    @property
    def may_skip(self) -> bool:
        """Whether to skip the next step that is not finite, without a scaler."""
        return self.skips and self.watch.may_skip

    @contextmanager
    def around_gradient(self, step: int) -> Iterator[None]:
        """Remember the random state before a step."""
        self._start = StepRandomState.now(self.accelerator.device)
        yield

    def after_step(self, record: StepRecord) -> Mapping[str, float]:
        """Save and print a step that was not finite and that no scaler skipped.

        Returns:
            The column `alarm`: whether the loss scale has now fallen too often.
        """
        if record.ends_run:
            self._save(record)
            return {"alarm": False}
        earlier = self.watch.skipped
        is_alarm = self.watch.add(record.number, record.outcome)
        if is_alarm:
            self.write(labelled("alarm", self.warnings()[FALLING_SCALE]))
        if self.watch.skipped > earlier:
            loss, norm = record.outcome.loss, record.outcome.grad_norm
            text = (
                f"step {record.number}, whose loss ({loss:g}) or gradient (norm {norm:g}) is not "
                f"finite; {self.watch.skipped} of at most {MAX_SKIPPED} such steps"
            )
            self.write(labelled("skipped", text))
            if self.watch.skipped <= MAX_SAVED:
                self._save(record)
        return {"alarm": is_alarm}

    def _save(self, record: StepRecord) -> None:
        if not self.saves:
            return
        assert self._start is not None
        folder = self.folder / f"step-{record.number}"
        try:
            save_step(
                folder,
                self.accelerator,
                self.model,
                record.batch,
                step=record.number,
                mode=self.mode,
                loss_scale=self.watch.scale,
                start=self._start,
                losses=record.losses,
            )
        except OSError as error:  # the run goes on, or says why it stops
            self.write(labelled("saved", f"nothing of step {record.number}: {error}"))
        else:
            self.write(labelled("saved", f"{folder}: weights, examples and random state"))
            self.write(labelled("diagnose", f"ampft doctor {self.folder.parent}"))

    def warnings(self) -> Mapping[str, str]:
        return self.watch.warnings(are_saved=self.saves)

    def state(self) -> NonfiniteSkips:
        return self.watch

    def restore(self, saved: SavedFeature) -> None:
        """Continue counting."""
        self.watch = saved.state
