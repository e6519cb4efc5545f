"""One of several ordered labels per example: the loss of cumulative logits, and distances in ranks.

The model is a softmax classifier, so that a pipeline of transformers answers as a run does. Its
loss is the cross entropy of K - 1 questions: is the label above rank k? Their probabilities are
sums of the softmax, so the cumulative logits, log P(above k) - log P(not above k), never cross.

Nothing here imports torch until a loss is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from ampft.labels.cumulative_loss import summed_cumulative_cross_entropy
from ampft.labels.number_metrics import quadratic_kappa
from ampft.metrics.sums import CaseSums, Metric, costliest_of_worst, mean_metric
from ampft.tasks.outcome import OutcomeMistakes
from ampft.tasks.single_label import METRICS as OF_CLASSES
from ampft.tasks.single_label import Predictions, SingleLabel

if TYPE_CHECKING:
    from torch import Tensor

QUADRATIC_KAPPA = Metric(
    "quadratic_kappa",
    "quadratic weighted kappa",
    quadratic_kappa,
    None,
    costliest_of_worst,
    is_share=False,
)
MAE = replace(
    mean_metric("mae", "mean absolute error in ranks", values=lambda p: np.abs(p.distances)),
    costliest=costliest_of_worst,
)
METRICS = {metric.name: metric for metric in (QUADRATIC_KAPPA, MAE)} | OF_CLASSES


@dataclass(frozen=True)
class OrdinalPredictions(Predictions):
    """Probabilities of ordered classes for every example of a split."""

    kind: ClassVar[str] = "ordinal"
    metric_rows: ClassVar[Mapping[str, Metric]] = METRICS

    @property
    def distances(self) -> npt.NDArray[np.float64]:
        """Predicted rank minus true rank of each example, (n,)."""
        return (self.predicted - self.labels).astype(np.float64)

    def sums(self, metric: str) -> CaseSums:
        """Return the sums from which `metric` is computed.

        Ranks are around the labels' mean and in a unit in which labels would disagree by 1 by
        chance; all models have the same labels, so that the sums of their cases can be compared.
        """
        if metric != QUADRATIC_KAPPA.name:
            return super().sums(metric)
        unit = float(np.sqrt(2) * self.labels.std()) or 1.0
        label, choice = (
            (ranks - self.labels.mean()) / unit for ranks in (self.labels, self.predicted)
        )
        parts = ((label - choice) ** 2, label, label**2, choice, choice**2, np.ones(len(self)))
        return CaseSums.of_cases(np.stack(parts, axis=1)).weighted(self.weights)

    def mistakes(self) -> OutcomeMistakes:
        """Return the mistakes, ranked by the distance that the probabilities expect."""
        ranks = np.arange(len(self.label_names))
        distances = np.abs(ranks - self.labels[:, None])
        return replace(
            super().mistakes(),
            scores=(self.probabilities * distances).sum(axis=1, dtype=np.float64),
            heading="Largest errors",
            ranking="The number is the expected distance from the label, in ranks.",
        )


@dataclass(frozen=True)
class Ordinal(SingleLabel):
    """Classification in which each example has one of several ordered labels."""

    name: ClassVar[str] = "ordinal"
    metrics: ClassVar = METRICS
    printed: ClassVar[tuple[str, ...]] = ("quadratic_kappa", "mae", "accuracy")
    outcome_type: ClassVar = OrdinalPredictions

    def loss(
        self,
        logits: Tensor,
        targets: Tensor,
        *,
        weights: Tensor | None = None,
        ignore_index: int = -100,
    ) -> Tensor:
        """Return the summed cross entropy of the cumulative probabilities, a float32 scalar.

        Args:
            logits: (m, K) float32.
            targets: (m,) int64 ranks.
            weights: (m,) factors of the losses, besides those of the classes; None for 1.
            ignore_index: Not used: every text has a label.
        """
        del ignore_index
        return summed_cumulative_cross_entropy(
            logits, targets, class_weights=self.class_weights, weights=weights
        )
