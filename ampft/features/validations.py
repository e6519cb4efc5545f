"""The evaluations of a run on its validation split: when they are due, and which weights are kept.

Unless the user names a metric, the last weights are kept, except if an earlier evaluation has a log
loss that is lower by more than chance, and no lower value of the primary metric. Choosing the best
value instead loses more than it gains below about 50 validation rows: `benchmarks/LOG.md`, "Which
epoch to keep".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt

from ampft.engine.checkpoints.store import BEST_NAME
from ampft.features.feature import Feature, SavedFeature, Write
from ampft.files import link
from ampft.metrics.paired import FloatArray, PairedGain, paired_gain
from ampft.metrics.scores import weighted_log_losses
from ampft.metrics.sums import CaseSums
from ampft.tasks.outcome import Outcome, TunableOutcome
from ampft.text.json_io import Count, one_of
from ampft.text.numbers import counted
from ampft.text.terminal import labelled

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor, nn

    from ampft.data.splits import Groups
    from ampft.features.weights import BestModel, Selector

# Names of the metrics that choose if the user names none: means of a loss per unit.
LOSS, ERROR = "log_loss", "mse"
BY_METRIC, BY_LOSS, BY_ERROR, IS_LAST = "metric", LOSS, ERROR, "last"
FEW_ROWS = 50  # Below, the best value of a metric chooses worse than taking the last weights.


@dataclass(frozen=True, kw_only=True)
class BestPart:
    """The validation whose weights are kept, and why.

    It was in the epoch `epoch` (from 1), after `step` optimizer steps.
    """

    metric: str  # Metric that the user named, or the primary one.
    epoch: int
    value: float  # Its value.
    step: int | None = None
    # Why it is kept: it has the best value, an earlier log loss that is lower than the last one by
    # more than chance, or it is the last and no earlier one is better by more than chance.
    by: Annotated[str, one_of((BY_METRIC, BY_LOSS, BY_ERROR, IS_LAST))] = BY_METRIC
    rows: int | None = None  # Number of cases of the validations.
    # By how much the lowest log loss is lower than the last one, and the standard error; None if it
    # is the last one, or if the metric chose.
    gain: float | None = None
    gain_error: float | None = None

    @property
    def reason(self) -> str:
        """Why it is kept, such as "the best by accuracy"."""
        reasons = {
            BY_LOSS: "whose log loss is lower than the last one's by more than chance",
            BY_ERROR: "whose squared error is lower than the last one's by more than chance",
            IS_LAST: "the last, because no other is better by more than chance",
        }
        return reasons.get(self.by, f"the best by {self.metric}")


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
    tie: float | None  # Its log loss, which decides between equal values.
    without_improvement: Count  # Number of evaluations since then.
    cases: Count  # Number of cases of each evaluation.
    gain: PairedGain | None  # Of the lowest log loss over the last one.
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
    # Metric that the user named, or the primary one; None for that of `best`.
    metric: Selector | None = None
    # Losses of the cases in the evaluation with the lowest log loss, (rows,) float64, if the user
    # names no metric; None if the best value of a metric is kept.
    lowest: Tensor | None = None
    epochs_between: int = 1  # Epochs from one evaluation to the next, without `every`.
    loads_best: bool = True  # Whether the model has the best weights at the end.
    groups: Groups | None = None  # Of rows that are not independent. A group is one case.
    # (K,) weights of the classes in the loss of rows, by which log losses choose; None for 1.
    class_weights: npt.NDArray[np.float32] | None = None
    parts: list[ValidationPart] = field(default_factory=list)  # Evaluations so far.
    cases: int = 0  # Number of cases of each of them.
    gain: PairedGain | None = None  # Of the lowest log loss over the last one; None if that is it.

    def is_due(self, step: int, is_last: bool) -> bool:
        """Return whether to evaluate after `step` steps; always after the last one of a training.

        Whatever is due stays due until it is done, so that a run that was stopped before or during
        an evaluation evaluates first when it continues.
        """
        if step == 0 or (self.parts and self.parts[-1].step == step):
            return False
        return is_last or step % (self.every or self.epochs_between * self.steps_per_epoch) == 0

    def at_validation(self, step: int, outcome: Outcome) -> None:
        """Add an evaluation of a split."""
        self.cases = len(outcome) if self.groups is None else len(self.groups)
        losses = None
        if self.lowest is not None:
            losses = self._losses(outcome)
        self.add(step, all_metrics(outcome), losses)

    def _losses(self, outcome: Outcome) -> tuple[FloatArray, FloatArray]:
        """Return (n,) sums of the losses of each case, and (n,) weights of its units."""
        if self.class_weights is None:
            sums = outcome.sums(self.best.metric.name)
            return case_losses(sums if self.groups is None else sums.grouped(self.groups.ids))
        assert isinstance(outcome, TunableOutcome), "classes of rows are weighted"
        found = weighted_log_losses(outcome.truth, outcome.probabilities, self.class_weights)
        if (weights := getattr(outcome, "weights", None)) is not None:
            found = found[0] * weights, found[1] * weights
        if self.groups is None:
            return found
        ids = self.groups.ids
        losses, weights = (np.bincount(ids, each).astype(np.float64) for each in found)
        return losses, weights

    def add(
        self,
        step: int,
        metrics: Mapping[str, float | None],
        losses: tuple[FloatArray, FloatArray] | None = None,
    ) -> None:
        """Add and print an evaluation, and keep the weights if they are the best so far.

        Args:
            step: Number of optimizer steps before it.
            losses: Sums of the log losses of each case, and numbers of its units, if the log loss
                chooses.
        """
        chooses = {(self.metric or self.best.metric).name: None, self.best.metric.name: None}
        metrics = {**chooses, **metrics}  # a ranking metric is undefined without two classes
        part, loss = self._recorded(step, metrics)
        value = metrics[self.best.metric.name]
        if self.class_weights is not None and losses is not None:
            value = float(losses[0].sum() / losses[1].sum())
        is_best = self.best.update(value, step, self.accelerator, self.model, tie=loss)
        if self.lowest is not None and losses is not None:
            lowest, self.gain = self.lowest[: self.cases].numpy(), None
            if is_best:
                lowest[:] = losses[0]
            elif self.best.step is not None and np.isfinite(losses[0]).all():
                self.gain = paired_gain(losses[0], lowest, losses[1])
        values = self._values_text(metrics)
        moment = f"epoch {part.epoch:<4}" if self.every is None else f"step {step:<5}"
        mark = ""
        if is_best:
            mark = "  (best)" if self.lowest is None else "  (lowest loss)"
        self.write(f"{moment} validation {values}{mark}")

    def at_evaluation(self, outcome: Outcome) -> None:
        """Add and print the evaluation of a model that is not trained."""
        part, _ = self._recorded(0, all_metrics(outcome))
        self.write(f"{outcome.split} {self._values_text(part.metrics)}")

    def _recorded(
        self, step: int, metrics: Mapping[str, float | None]
    ) -> tuple[ValidationPart, float | None]:
        """Add an evaluation, for trackers too; return it with its loss."""
        epoch = -(-step // self.steps_per_epoch)  # both from 1
        part = ValidationPart(epoch=epoch, step=step, metrics=metrics)
        self.parts.append(part)
        loss = metrics.get(LOSS, metrics.get(ERROR))
        if self.accelerator.trackers:  # under the names that transformers' Trainer gives
            named = {"loss": loss, **metrics}.items()
            sent = {f"eval/{n}": v for n, v in named if v is not None and math.isfinite(v)}
            self.accelerator.log(sent, step=step)
        return part, loss

    def _values_text(self, metrics: Mapping[str, float | None]) -> str:
        titles = self.printed or dict(zip(metrics, metrics, strict=True))
        return ", ".join(
            f"{title} {'undefined' if metrics[name] is None else f'{metrics[name]:z.3f}'}"
            for name, title in titles.items()
        )

    @property
    def kept(self) -> ValidationPart | None:
        """The evaluation whose weights are kept; None before the first one that is defined."""
        if self.best.step is None or not self.loads_best:
            return None
        best = next(part for part in self.parts if part.step == self.best.step)
        last = self.parts[-1]
        return best if self.lowest is None or self._is_better(best, last) else last

    def _is_better(self, part: ValidationPart, last: ValidationPart) -> bool:
        """Return whether the lowest log loss is better than the last one by more than chance."""
        if self.gain is None:
            return part is not last  # the last log loss is undefined
        metric = self.metric or self.best.metric
        sign = 1 if metric.higher_is_better else -1
        values = [each.metrics[metric.name] for each in (part, last)]
        first, second = (-math.inf if v is None else sign * v for v in values)
        return self.gain.is_beyond_chance and first >= second

    @property
    def should_stop(self) -> bool:
        """Whether patience ran out."""
        return self.best.stopping.should_stop

    def replaces_weights(self, step: int) -> bool:
        """Return whether an earlier evaluation is kept."""
        return self.kept is not None and self.kept.step != step

    def choose_weights(self) -> bool:
        """Give the model the weights that are kept, and say why, if there was an evaluation."""
        kept = self.kept
        if kept is None:
            return True
        if kept is not self.parts[-1]:
            self.best.restore(self.accelerator, self.model)
        part = self.record()["best"]
        if len(self.parts) > 1 and part is not None:
            moment = f"epoch {kept.epoch}" if self.every is None else f"step {kept.step}"
            case = "validation row" if self.groups is None else "independent validation row"
            rows = f" ({counted(self.cases, case)})" if self.cases else ""
            few = (
                ". They are too few to choose by a metric: remove --metric_for_best_model"
                if part.by == BY_METRIC and 0 < self.cases < FEW_ROWS
                else ""
            )
            self.write(labelled("chosen", f"{moment}, {part.reason}{rows}{few}"))
        return True

    def record(self) -> Mapping[str, Any]:
        """Return all evaluations, the one that is kept, and why the training ended early."""
        kept, name = self.kept, (self.metric or self.best.metric).name
        if kept is not None and name not in kept.metrics:
            # A loop that continues has not said yet which metric chooses: it is the first one.
            name = next(iter(kept.metrics))
        value = None if kept is None else kept.metrics[name]
        found: dict[str, Any] = {"validations": tuple(self.parts), "best": None}
        if self.should_stop:
            last = counted(self.best.stopping.without_improvement, "validation")
            found["reason"] = f"{last} without improvement (--early_stopping_patience)"
        if kept is None or value is None:
            return found
        by = BY_METRIC
        if self.lowest is not None:
            by = IS_LAST if kept is self.parts[-1] else self.best.metric.name
        part = BestPart(
            metric=name,
            epoch=kept.epoch,
            value=value,
            step=kept.step,
            by=by,
            rows=self.cases or None,
            gain=None if self.gain is None else self.gain.mean,
            gain_error=None if self.gain is None else self.gain.error,
        )
        return {**found, "best": part}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the losses of the cases in the evaluation with the lowest log loss."""
        return {} if self.lowest is None else {"lowest": self.lowest}

    def state(self) -> ValidationState:
        """Return the evaluations so far. The best weights are a file of their own."""
        return ValidationState(
            step=self.best.step,
            value=self.best.value,
            tie=self.best.tie,
            without_improvement=self.best.stopping.without_improvement,
            cases=self.cases,
            gain=self.gain,
            parts=self.parts,
        )

    def restore(self, saved: SavedFeature) -> None:
        """Continue after the evaluations of a checkpoint, with its best weights."""
        best, state = self.best, saved.state
        self.parts.extend(state.parts)
        best.step, best.value, best.tie = state.step, state.value, state.tie
        self.cases, self.gain = state.cases, state.gain
        if self.lowest is not None:
            self.lowest.copy_(saved.tensors["lowest"])
        best.stopping.without_improvement = state.without_improvement
        if self.accelerator.is_main_process:
            best.file = saved.files.get(BEST_NAME)
            if best.file is not None:
                link(saved.folder / BEST_NAME, best.path)


def all_metrics(outcome: Outcome) -> dict[str, float | None]:
    """Return the metrics of an outcome by name, both those for comparisons and those reported."""
    return {**outcome.metrics(), **outcome.report().metrics()}


def case_losses(sums: CaseSums) -> tuple[FloatArray, FloatArray]:
    """Return (n,) sums of the losses of each case, and (n,) numbers of its units.

    Args:
        sums: Sums of the n cases for a metric that is a mean of losses.
    """
    table = sums.patterns[:, [0, -1]].toarray()[sums.pattern_of]
    return table[:, 0], table[:, 1]
