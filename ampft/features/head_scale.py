"""Scales the last layer of a head that began at a probe by a power of two, after the training.

Such a head begins with a quarter of the probe's logits. After the training, its logits are often
too small with many classes, and too large with two. A power of two changes only the exponents of
the logits, so that the answers stay the same in every precision, and the plain classes of
transformers serve the better probabilities.

The factor has the lowest log loss on the validation rows. A normal prior on its logarithm keeps
rows that are nearly all right from making the model certain. Measured in `benchmarks/LOG.md`, "The
size of the logits after training".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ampft.decision import softmax
from ampft.features.feature import Feature, Write
from ampft.metrics.scores import case_log_losses, decision_weights
from ampft.text.numbers import counted
from ampft.text.terminal import labelled

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn

    from ampft.tasks.task import Task

FACTORS = tuple(2.0**power for power in range(-3, 4))
SPREAD = 0.5  # standard deviation of the prior on the natural logarithm
LEAST_ROWS = 20  # independent ones; six once chose a factor that raised the log loss by 0.15
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class HeadScale:
    """The factor of the last layer, and mean log losses of the validation split in nats."""

    factor: float
    rows: int  # Number of validation rows.
    log_loss_before: float
    log_loss: float

    @property
    def text(self) -> str:
        """The factor and what it changes, such as "the logits by 2: no prediction changes, ..."."""
        after, before = (f"{loss:.2f}" for loss in (self.log_loss, self.log_loss_before))
        if after == before:
            after, before = (f"{loss:.4f}" for loss in (self.log_loss, self.log_loss_before))
        return (
            f"the logits by {self.factor:g}: no prediction changes, and the log loss of "
            f"{counted(self.rows, 'validation row')} is {after} instead of {before}"
        )


def best_factor(log_probabilities: FloatArray, labels: Any, weights: FloatArray) -> float:
    """Return the best of `FACTORS`, the one nearest to 1 of equally good ones; 1 for few rows.

    Args:
        log_probabilities: (n, K) logarithms of probabilities, which stand for logits.
        labels: (n,) classes.
        weights: (n,) numbers of independent rows that each row stands for.
    """
    if weights.sum() < LEAST_ROWS - 0.5:  # a sum of fractions
        return 1.0

    def cost(factor: float) -> tuple[float, float]:
        losses = _losses(log_probabilities, labels, factor)
        distance = abs(math.log(factor))
        return float(weights @ losses) + (distance / SPREAD) ** 2 / 2, distance

    return min(FACTORS, key=cost)


def _losses(logits: FloatArray, labels: Any, factor: float) -> FloatArray:
    shares = softmax(logits, 1 / factor).astype(np.float32)
    return case_log_losses(labels, shares)


@dataclass
class ScaledHead(Feature):
    """Scales the last layer of a head after the training."""

    name = "head_scale"

    accelerator: Accelerator  # Accelerator that prepared the model.
    model: nn.Module  # Prepared model.
    plain: nn.Module  # Model as loaded.
    task: Task  # Task of the run, with one label per text.
    batch_size: int  # Examples per forward pass.
    write: Write  # Function that prints a line on the main process.
    _part: HeadScale | None = None

    def replaces_weights(self, step: int) -> bool:
        """Return True: the last layer may be scaled."""
        return True

    def choose_weights(self) -> bool:
        """Predict the validation split with the chosen weights, and scale the last layer."""
        import torch

        from ampft.data.splits import dependent_groups
        from ampft.evaluation.evaluate import evaluate
        from ampft.models.freezing import last_layers

        outcome: Any = evaluate(
            self.accelerator, self.model, self.task, "validation", batch_size=self.batch_size
        )
        rows, groups = len(outcome), dependent_groups(self.task.data, "validation")
        independent = rows if groups is None else len(groups)
        weights = np.ones(rows) if outcome.weights is None else outcome.weights
        if self.task.class_weights is not None:
            weights = weights * decision_weights(outcome.truth, self.task.class_weights)[:, 0]
        weights = weights * independent / weights.sum()
        smallest = np.finfo(np.float32).tiny
        logits = np.log(np.maximum(outcome.probabilities.astype(np.float64), smallest))
        factor = best_factor(logits, outcome.truth, weights)
        if factor == 1:
            return True
        (layer,) = last_layers(self.plain, len(self.task.label_names)).values()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(factor)
        before, after = (
            float(weights @ _losses(logits, outcome.truth, each)) / independent
            for each in (1.0, factor)
        )
        self._part = HeadScale(factor=factor, rows=rows, log_loss_before=before, log_loss=after)
        self.write(labelled("scaled", self._part.text))
        return True

    def record(self) -> Mapping[str, Any]:
        """Return the factor, if it is not 1."""
        return {"head_scale": self._part}
