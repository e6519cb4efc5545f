"""The evaluations of a run on its validation split: when they are due, and which was the best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import nn

from ampft.features.best_weights import BestModel
from ampft.runs.record import BestPart, ValidationPart
from ampft.tasks.outcome import Problem

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass
class Validations:
    """Evaluations on the validation split, after each epoch or every `every` steps.

    Attributes:
        best: Best weights so far, and early stopping.
        steps_per_epoch: Optimizer steps of an epoch.
        every: Optimizer steps between evaluations; None evaluates after each epoch.
        parts: Evaluations so far.
    """

    best: BestModel
    steps_per_epoch: int
    every: int | None = None
    parts: list[ValidationPart] = field(default_factory=list)

    def is_due(self, step: int, is_last: bool) -> bool:
        """Return whether to evaluate after `step` steps; always after the last one of a training.

        Whatever is due stays due until it is done, so that a run that was stopped before or during
        an evaluation evaluates first when it continues.
        """
        if step == 0 or (self.parts and self.parts[-1].step == step):
            return False
        return is_last or step % (self.every or self.steps_per_epoch) == 0

    def add(
        self,
        metrics: Mapping[str, float | None],
        step: int,
        problem: Problem,
        accelerator: Accelerator,
        model: nn.Module,
    ) -> str:
        """Add an evaluation after `step` steps, and keep the weights if they are the best so far.

        Returns:
            The line to print about it.
        """
        part = ValidationPart(epoch=self._epoch(step), step=step, metrics=metrics)
        self.parts.append(part)
        is_best = self.best.update(metrics[self.best.metric.name], step, accelerator, model)
        values = ", ".join(
            f"{problem.metrics[name].title} "
            f"{'undefined' if metrics[name] is None else f'{metrics[name]:.3f}'}"
            for name in problem.printed
        )
        moment = f"epoch {part.epoch:<4}" if self.every is None else f"step {step:<5}"
        return f"{moment} validation {values}{'  (best)' if is_best else ''}"

    def best_part(self) -> BestPart | None:
        """Return the best evaluation for the record; None before the first one."""
        best = self.best
        if best.step is None or best.value is None:
            return None
        return BestPart(
            metric=best.metric.name,
            epoch=self._epoch(best.step),
            value=best.value,
            step=best.step,
        )

    def _epoch(self, step: int) -> int:
        """Return the epoch, from 1, of a step, from 1."""
        return -(-step // self.steps_per_epoch)
