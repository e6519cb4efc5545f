"""Several columns of labels at once: a softmax for each column, over one encoder.

A label is named `column=value`, and a text has one label of each column. The model has one last
layer for all labels, which is a linear head for each column. Its loss is the mean of the columns'
cross entropies. Metrics are the same as for several labels: micro F1 is the mean accuracy of the
columns, and subset accuracy the share of texts in which all are right.

Nothing here imports torch until a loss is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import numpy.typing as npt

from ampft.decision import Rule, column_starts, most_probable_of_columns
from ampft.errors import InputError
from ampft.labels.multi_label import BoolArray, MultiLabel, MultiLabelPredictions, MultiLabelReport
from ampft.tasks.loss import constant_loss, summed_cross_entropy
from ampft.tasks.loss_settings import LossSettings

if TYPE_CHECKING:
    from torch import Tensor

# Settings of labels that do not exclude each other.


@dataclass(frozen=True)
class ColumnReport(MultiLabelReport):
    """All metrics of one split whose examples have a label of each column."""

    rule: ClassVar[str] = "Of each column, the most probable label is predicted."


@dataclass(frozen=True)
class ColumnPredictions(MultiLabelPredictions):
    """Probabilities of the labels of each column for every example of a split."""

    kind: ClassVar[str] = "columns"
    report_type: ClassVar[type[MultiLabelReport]] = ColumnReport

    @cached_property
    def predicted(self) -> BoolArray:
        """Whether a label is predicted, shape (n, K): the most probable one of each column."""
        return most_probable_of_columns(self.probabilities, self.label_names)


@dataclass(frozen=True)
class ColumnLabels(MultiLabel):
    """Classification in which each example has a label of each of several columns."""

    name: ClassVar[str] = "columns"
    transformers_type: ClassVar[str | None] = "single_label_classification"
    printed: ClassVar[tuple[str, ...]] = ("micro_f1", "subset_accuracy", "macro_f1")
    outcome_type: ClassVar = ColumnPredictions
    report_type: ClassVar = ColumnReport

    @classmethod
    def from_settings(
        cls, label_names: tuple[str, ...], targets: BoolArray, settings: LossSettings
    ) -> Self:
        """Return the problem for the labels of the data, see `MultiLabel`.

        Raises:
            InputError: A column has one label.
        """
        starts = column_starts(label_names)
        alone = [int(s) for s, size in zip(starts, _sizes(label_names), strict=True) if size == 1]
        if alone or len(starts) == 1:
            which = label_names[alone[0] if alone else 0]
            problem = "is the only label of its column" if alone else "belongs to the only column"
            raise InputError(
                f"--task columns: {which!r} {problem}. Pass at least two columns of labels with "
                "--label_column_name a,b, each with at least two labels in the training data."
            )
        return super().from_settings(label_names, targets, settings)

    def weights(self, targets: BoolArray) -> npt.NDArray[np.float64]:
        """Return the (n,) weights of the examples in the loss: their columns."""
        return np.full(len(targets), float(len(column_starts(self.label_names))))

    def loss(self, logits: Tensor, targets: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """Return the cross entropy or focal loss summed over the columns, a float32 scalar.

        Args:
            logits: (m, K) float32.
            targets: (m, K) bool, one of each column.
            weights: (m,) factors of the losses of the examples; None for 1.
        """
        sizes = _sizes(self.label_names)
        losses = [
            summed_cross_entropy(
                part,
                has.byte().argmax(1),
                label_smoothing=self.label_smoothing,
                focal_gamma=self.focal_gamma,
                weights=weights,
            )
            for part, has in zip(logits.split(sizes, 1), targets.split(sizes, 1), strict=True)
        ]
        total: Tensor = sum(losses[1:], losses[0])
        return total

    @property
    def rule(self) -> Rule:
        """How logits become probabilities and answers."""
        return replace(super().rule, exclusive=True)

    def constant_loss(self, train: BoolArray) -> float:
        """Return the loss of predicting the frequencies of the labels, per column."""
        return constant_loss(self, train.mean(axis=0), np.log, train)


def _sizes(label_names: tuple[str, ...]) -> list[int]:
    """Return the number of labels of each column."""
    return np.diff([*column_starts(label_names), len(label_names)]).tolist()
