"""The evaluations of a run on its validation split: when they are due, and which was the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ampft.engine.checkpoints.store import BEST_NAME
from ampft.features.feature import Feature, SavedFeature, Write
from ampft.files import link
from ampft.tasks.outcome import Outcome
from ampft.text.json_io import Count

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn

    from ampft.features.weights import BestModel


@dataclass(frozen=True, kw_only=True)
class BestPart:
    """The validation whose weights are kept, and the metric that selected it.

    It was in the epoch `epoch` (from 1), after `step` optimizer steps.
    """

    metric: str
    epoch: int
    value: float
    step: int | None = None


@dataclass(frozen=True, kw_only=True)
class ValidationPart:
    """Scalar metrics of the validation split after `step` steps, in an epoch (from 1)."""

    epoch: int
    step: int
    metrics: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class ValidationState:
    """The state of `Validations` and of its `BestModel` in a checkpoint."""

    step: Count | None  # Step of the best evaluation; None before the first one.
    value: float | None  # Its metric.
    without_improvement: Count  # Number of evaluations since then.
    parts: Sequence[ValidationPart]  # The evaluations so far.


@dataclass
class Validations(Feature):
    """Evaluations on the validation split, after each epoch or every `every` steps.

    The best weights are kept and, with a patience, the training stops early.
    """

    name = "validations"

    best: BestModel  # Best weights so far, and early stopping.
    printed: Mapping[str, str]  # Titles of the metrics that are printed, by name; empty for all.
    accelerator: Accelerator  # Accelerator that prepared the model.
    model: nn.Module  # Prepared model.
    write: Write  # Function that prints a line.
    steps_per_epoch: int  # Optimizer steps of an epoch.
    # Optimizer steps between evaluations; None evaluates after each epoch.
    every: int | None = None
    parts: list[ValidationPart] = field(default_factory=list)  # Evaluations so far.

    def is_due(self, step: int, is_last: bool) -> bool:
        """Return whether to evaluate after `step` steps; always after the last one of a training.

        Whatever is due stays due until it is done, so that a run that was stopped before or during
        an evaluation evaluates first when it continues.
        """
        if step == 0 or (self.parts and self.parts[-1].step == step):
            return False
        return is_last or step % (self.every or self.steps_per_epoch) == 0

    def at_validation(self, step: int, outcome: Outcome) -> None:
        """Add an evaluation of a split."""
        self.add(step, all_metrics(outcome))

    def add(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Add and print an evaluation, and keep the weights if they are the best so far."""
        part = ValidationPart(epoch=self._epoch(step), step=step, metrics=metrics)
        self.parts.append(part)
        value = metrics[self.best.metric.name]
        is_best = self.best.update(value, step, self.accelerator, self.model)
        values = ", ".join(
            f"{title} {'undefined' if metrics[name] is None else f'{metrics[name]:.3f}'}"
            for name, title in (self.printed or dict(zip(metrics, metrics, strict=True))).items()
        )
        moment = f"epoch {part.epoch:<4}" if self.every is None else f"step {step:<5}"
        self.write(f"{moment} validation {values}{'  (best)' if is_best else ''}")

    @property
    def should_stop(self) -> bool:
        """Whether patience ran out."""
        return self.best.should_stop

    def replaces_weights(self, step: int) -> bool:
        """Return whether an earlier evaluation was the best."""
        return self.best.step not in (None, step)

    def choose_weights(self) -> bool:
        """Give the model the best weights, if there was an evaluation."""
        if self.best.step is not None:
            self.best.restore(self.accelerator, self.model)
        return True

    def record(self) -> Mapping[str, Any]:
        """Return all evaluations, and the best one."""
        best = self.best
        if best.step is None or best.value is None:
            return {"validations": tuple(self.parts), "best": None}
        part = BestPart(
            metric=best.metric.name,
            epoch=self._epoch(best.step),
            value=best.value,
            step=best.step,
        )
        return {"validations": tuple(self.parts), "best": part}

    def state(self) -> ValidationState:
        """Return the evaluations so far. The best weights are a file of their own."""
        return ValidationState(
            step=self.best.step,
            value=self.best.value,
            without_improvement=self.best.without_improvement,
            parts=self.parts,
        )

    def restore(self, saved: SavedFeature) -> None:
        """Continue after the evaluations of a checkpoint, with its best weights."""
        best, state = self.best, saved.state
        self.parts.extend(state.parts)
        best.step, best.value = state.step, state.value
        best.without_improvement = state.without_improvement
        if self.accelerator.is_main_process:
            best.file = saved.files.get(BEST_NAME)
            if best.file is not None:
                link(saved.folder / BEST_NAME, best.path)

    def _epoch(self, step: int) -> int:
        """Return the epoch, from 1, of a step, from 1."""
        return -(-step // self.steps_per_epoch)


def all_metrics(outcome: Outcome) -> dict[str, float | None]:
    """Return the metrics of an outcome by name, both those for comparisons and those reported."""
    return {**outcome.metrics(), **outcome.report().metrics()}
