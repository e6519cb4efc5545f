"""Classes with an order: being wrong by two classes is twice as bad as by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ampft.metrics.sums import CaseSums, mean_metric, mean_sums
from ampft.tasks.single_label import METRICS, Predictions, SingleLabel

MAE = mean_metric("mean_absolute_error", "mean absolute error", most=3.0)


@dataclass(frozen=True)
class OrdinalPredictions(Predictions):
    """Probabilities of ordered classes."""

    kind: ClassVar[str] = "ordinal"

    def sums(self, metric: str) -> CaseSums:
        """Return the sums of which `metric` is a function."""
        if metric == MAE.name:
            return mean_sums(np.abs(self.predicted - self.labels).astype(np.float64))
        return super().sums(metric)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of classes and the mean distance."""
        return {**super().metrics(), MAE.name: MAE.value(self.sums(MAE.name))}


@dataclass(frozen=True)
class Ordinal(SingleLabel):
    """Classification with ordered classes, by cross entropy and the expected distance."""

    name: ClassVar[str] = "ordinal"
    metrics: ClassVar = {MAE.name: MAE, **METRICS}
    printed: ClassVar[tuple[str, ...]] = (MAE.name, "accuracy")
    outcome_type: ClassVar = OrdinalPredictions

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the summed cross entropy and expected distance."""
        places = torch.arange(logits.shape[-1], device=logits.device)
        distance = (places - targets[:, None]).abs()
        return super().loss(logits, targets) + (logits.softmax(dim=-1) * distance).sum()

    def outcome(
        self, split: str, targets: Any, decoded: Mapping[str, npt.NDArray[Any]]
    ) -> OrdinalPredictions:
        """Return the predictions of a split."""
        plain = super().outcome(split, targets, decoded)
        return OrdinalPredictions(**vars(plain))
