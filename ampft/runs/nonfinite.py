"""The steps of a run that are not finite: skipped or not, they are counted, printed and saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from ampft.data.steps import StepBatch
from ampft.features.nonfinite import FALLING_SCALE, NonfiniteWatch
from ampft.runs.manifest import NONFINITE_NAME
from ampft.runs.prepared import Prepared
from ampft.text.terminal import labelled
from ampft.training.saved_step import StepStart, save_step
from ampft.training.step import StepOutcome

MAX_SAVED = 3  # each has a copy of the weights


@dataclass
class NonfiniteSteps:
    """Handles the steps of a run whose loss or gradient is not finite.

    Attributes:
        prepared: Components of the run.
        output_dir: Output folder of the run.
        write: Function that prints a line above the progress bar, on the main process.
        watch: Counts of what went wrong so far.
        start: Random state before the current step.
        losses: Losses of its micro-batches.
    """

    prepared: Prepared
    output_dir: Path
    write: Callable[[str], None]
    watch: NonfiniteWatch = field(default_factory=NonfiniteWatch)
    start: StepStart | None = None
    losses: Sequence[Tensor] = ()

    @property
    def may_skip(self) -> bool:
        """Whether to skip the next step that is not finite, without a scaler."""
        return self.prepared.args.on_nonfinite == "skip" and self.watch.may_skip

    def begin_step(self) -> None:
        """Remember the random state before a step."""
        self.start = StepStart.now(self.prepared.accelerator.device)

    def add(
        self, step: int, step_batch: StepBatch, outcome: StepOutcome, *, ends_run: bool
    ) -> bool:
        """Add a step; save and print it if it was not finite and no scaler skipped it.

        Args:
            step: Number of the step, from 1.
            step_batch: Its step batch.
            outcome: Its outcome.
            ends_run: Whether the run stops because of it; such a step is always saved.

        Returns:
            Whether the loss scale has now fallen too often, which is printed.
        """
        if ends_run:
            self._save(step, step_batch)
            return False
        earlier = self.watch.skipped
        is_alarm = self.watch.add(step, outcome)
        if is_alarm:
            self.write(labelled("alarm", self.watch.warnings()[FALLING_SCALE]))
        if self.watch.skipped > earlier:
            self.write(self.watch.skipped_line(step, outcome))
            if self.watch.skipped <= MAX_SAVED:
                self._save(step, step_batch)
        return is_alarm

    def _save(self, step: int, step_batch: StepBatch) -> None:
        assert self.start is not None
        folder = self.output_dir / NONFINITE_NAME / f"step-{step}"
        try:
            save_step(
                folder,
                self.prepared.accelerator,
                self.prepared.model,
                step_batch,
                step=step,
                mode=self.prepared.precision.mode,
                loss_scale=self.watch.scale,
                start=self.start,
                losses=self.losses,
            )
        except OSError as error:  # the run goes on, or says why it stops
            self.write(labelled("saved", f"nothing of step {step}: {error}"))
        else:
            self.write(labelled("saved", f"{folder}: weights, examples and random state"))
            self.write(labelled("diagnose", f"ampft doctor {self.output_dir}"))
