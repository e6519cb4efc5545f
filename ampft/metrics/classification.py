"""The classification report of a split: what is printed, written and compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ampft.metrics.calibration import expected_calibration_error
from ampft.metrics.predictions import Predictions
from ampft.metrics.scores import (
    Scores,
    average_scores,
    class_scores,
    confusion,
    flat_scores,
    proper_scores,
)
from ampft.text.escaping import report_table


@dataclass(frozen=True)
class Report:
    """Every metric of one split.

    Attributes:
        split: The split's name.
        label_names: The C class names; the rows of `per_class` and of `confusion_matrix`.
        per_class: Scores of each class; a class absent from the split has support 0.
        accuracy: Share of examples that are right.
        macro_avg: Mean over the classes of the label map.
        weighted_avg: Mean over the classes, weighted by support.
        balanced_accuracy: Mean recall of the classes that the split has.
        cohen_kappa: Agreement beyond chance; `None` where undefined (one class in all).
        matthews: Matthews correlation coefficient.
        log_loss: Mean negative log likelihood, nats.
        brier: Mean sum of squares over classes, in [0, 2].
        expected_calibration_error: 15 equal-width bins, in [0, 1].
        confusion_matrix: (C, C) counts, row = true class, column = predicted class.
    """

    split: str
    label_names: tuple[str, ...]
    per_class: tuple[Scores, ...]
    accuracy: float
    macro_avg: Scores
    weighted_avg: Scores
    balanced_accuracy: float
    cohen_kappa: float | None
    matthews: float
    log_loss: float
    brier: float
    expected_calibration_error: float
    confusion_matrix: tuple[tuple[int, ...], ...]

    @property
    def macro_f1(self) -> float:
        """F1, the mean over the classes."""
        return self.macro_avg.f1

    @property
    def examples(self) -> int:
        """Number of examples of the split."""
        return self.macro_avg.support

    def metrics(self) -> dict[str, float | None]:
        """Return the scalar metrics by name, as the run record and early stopping name them."""
        return {
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "macro_precision": self.macro_avg.precision,
            "macro_recall": self.macro_avg.recall,
            "macro_f1": self.macro_avg.f1,
            "weighted_precision": self.weighted_avg.precision,
            "weighted_recall": self.weighted_avg.recall,
            "weighted_f1": self.weighted_avg.f1,
            "cohen_kappa": self.cohen_kappa,
            "matthews": self.matthews,
            "log_loss": self.log_loss,
            "brier": self.brier,
            "expected_calibration_error": self.expected_calibration_error,
        }

    def text(self) -> str:
        """Return the table that `sklearn.metrics.classification_report` prints, digits=3."""
        return report_table(self.confusion_matrix, self.label_names)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values; `from_dict` is the inverse."""
        return {"examples": self.examples, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """Return the report that `as_dict` was made of.

        Raises:
            KeyError: When a field is missing.
            TypeError: When there is one too many.
        """
        said_beside = {"examples", "selected"}
        fields = {name: value for name, value in values.items() if name not in said_beside}
        return cls(
            **fields
            | {
                "label_names": tuple(fields["label_names"]),
                "per_class": tuple(Scores(**row) for row in fields["per_class"]),
                "macro_avg": Scores(**fields["macro_avg"]),
                "weighted_avg": Scores(**fields["weighted_avg"]),
                "confusion_matrix": tuple(tuple(row) for row in fields["confusion_matrix"]),
            }
        )


def classification_report(predictions: Predictions) -> Report:
    """Compute every metric of the report.

    Args:
        predictions: One split; classes of its label map may be absent from it.
    """
    labels, predicted = predictions.labels, predictions.predicted
    classes = len(predictions.label_names)
    rows = class_scores(labels, predicted, classes)
    flat = flat_scores(labels, predicted, classes)
    log_loss, brier = proper_scores(predictions)
    return Report(
        split=predictions.split,
        label_names=predictions.label_names,
        per_class=rows,
        accuracy=flat["accuracy"],
        macro_avg=average_scores(rows, weighted=False),
        weighted_avg=average_scores(rows, weighted=True),
        balanced_accuracy=flat["balanced_accuracy"],
        cohen_kappa=None if math.isnan(flat["cohen_kappa"]) else flat["cohen_kappa"],
        matthews=flat["matthews"],
        log_loss=log_loss,
        brier=brier,
        expected_calibration_error=expected_calibration_error(predictions),
        confusion_matrix=confusion(labels, predicted, classes),
    )
