"""Classes with an order: being wrong by two classes is twice as bad as by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ampft.metrics.sums import Metric, mean_metric
from ampft.tasks.single_label import METRICS, Predictions, SingleLabel

MAE = mean_metric(
    "mean_absolute_error",
    "mean absolute error",
    most=3.0,
    values=lambda p: np.abs(p.predicted - p.labels).astype(np.float64),
)
ROWS = {MAE.name: MAE, **METRICS}


@dataclass(frozen=True)
class OrdinalPredictions(Predictions):
    """Probabilities of ordered classes."""

    kind: ClassVar[str] = "ordinal"
    metric_rows: ClassVar[Mapping[str, Metric]] = ROWS


@dataclass(frozen=True)
class Ordinal(SingleLabel):
    """Classification with ordered classes, by cross entropy and the expected distance."""

    name: ClassVar[str] = "ordinal"
    metrics: ClassVar = ROWS
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
