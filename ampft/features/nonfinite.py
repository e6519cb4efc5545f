"""Watches for steps that are not finite: how many were skipped, and how the loss scale falls."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.text.numbers import counted
from ampft.text.terminal import labelled
from ampft.training.step import StepOutcome

# A run with `--on_nonfinite skip` stops at the next such step.
MAX_SKIPPED = 10
# A scaler that finds its scale falls a few times at the start, and later about once in 2000 steps,
# after which it rises again.
MAX_FALLS = 10

SKIPPED_NONFINITE = "skipped_nonfinite"
FALLING_SCALE = "falling_loss_scale"


@dataclass
class NonfiniteWatch:
    """Counts what went wrong in the steps so far.

    Attributes:
        skipped: Steps skipped because their loss or gradient was not finite, without a scaler.
        scale: Loss scale after the last step; None without a scaler.
        falls: Number of times that the loss scale fell since it last rose.
        alarm_step: First step at which it had fallen `MAX_FALLS` times; None if it never has.
        alarm_scale: Loss scale after that step.
    """

    skipped: int = 0
    scale: float | None = None
    falls: int = 0
    alarm_step: int | None = None
    alarm_scale: float | None = None

    @property
    def may_skip(self) -> bool:
        """Whether another step that is not finite may be skipped."""
        return self.skipped < MAX_SKIPPED

    def add(self, step: int, outcome: StepOutcome) -> bool:
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

    def warnings(self) -> dict[str, str]:
        """Return reasons not to trust the run, by name."""
        warnings = {}
        if self.skipped:
            warnings[SKIPPED_NONFINITE] = (
                f"--on_nonfinite skip: the loss or gradient was not finite in "
                f"{counted(self.skipped, 'step')}, which had no effect on the weights; nonfinite/ "
                "has the first."
            )
        if self.alarm_step is not None:
            warnings[FALLING_SCALE] = (
                f"the loss scale fell {MAX_FALLS} times without rising in between, to "
                f"{self.alarm_scale:g} at step {self.alarm_step}: fp16 overflows again and again, "
                "and at a small scale small gradients become 0. Use --mixed_precision bf16, or "
                "lower --learning_rate."
            )
        return warnings

    def skipped_line(self, step: int, outcome: StepOutcome) -> str:
        """Return the line to print about a step that was skipped without a scaler."""
        return labelled(
            "skipped",
            f"step {step}, whose loss ({outcome.loss:g}) or gradient (norm {outcome.grad_norm:g}) "
            f"is not finite; {self.skipped} of at most {MAX_SKIPPED} such steps",
        )
