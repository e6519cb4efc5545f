"""The duration of a run, and its limit `--max_time`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ampft.features.feature import Feature, SavedFeature, StepRecord
from ampft.text.json_io import NotNegative

if TYPE_CHECKING:
    from ampft.training.ending import TimeLimit


@dataclass(frozen=True)
class Durations:
    """The seconds of a run, and those for which checkpoints stopped the training."""

    total_seconds: NotNegative
    checkpoint_seconds: NotNegative


class Clock(Feature):
    """The duration of a run over all its processes, which ends the training at `--max_time`.

    Attributes:
        limit: Limit of the duration, and the time so far, without work that was lost between a
            checkpoint and a kill.
        checkpoint_seconds: Time for which checkpoints stopped the training.
    """

    name = "clock"

    def __init__(self, limit: TimeLimit, max_time: str | None, total_steps: int) -> None:
        """Begin before the first step.

        Args:
            limit: Limit of the duration.
            max_time: The limit as the user wrote it.
            total_steps: Optimizer steps of the whole training.
        """
        self.limit = limit
        self.checkpoint_seconds = 0.0
        self._max_time, self._total_steps, self._steps = max_time, total_steps, 0

    def after_step(self, record: StepRecord) -> Mapping[str, float]:
        """Count the step."""
        self._steps = record.number
        return {}

    @property
    def should_stop(self) -> bool:
        """Whether a process has reached the limit."""
        return self.limit.is_reached

    def timings(self, timings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the durations."""
        del timings
        return vars(self.state())

    def record(self) -> Mapping[str, Any]:
        """Return why the run ended before its last step, if the limit is the reason."""
        if not self.limit.is_reached or self._steps >= self._total_steps:
            return {}
        reason = (
            f"--max_time {self._max_time} was reached after step {self._steps} of "
            f"{self._total_steps}. The learning rate schedule was planned for {self._total_steps} "
            "steps."
        )
        return {"reason": reason}

    def state(self) -> Durations:
        """Return the durations so far."""
        return Durations(self.limit.elapsed, self.checkpoint_seconds)

    def restore(self, saved: SavedFeature) -> None:
        """Continue with the durations of earlier processes."""
        self.limit.earlier = saved.state.total_seconds
        self.checkpoint_seconds = saved.state.checkpoint_seconds
        self._steps = saved.step
