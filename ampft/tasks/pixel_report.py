"""The report of a split whose examples are images with masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ampft.metrics.scores import Scores
from ampft.tasks.added_metrics import AddedMetric, added_text, added_values, report_dict
from ampft.tasks.outcome import HubMetric, report_from_json, score_cells
from ampft.text.tables import Cell, Name, Table, html_tables, terminal_section


@dataclass(frozen=True)
class PixelReport:
    """All metrics of one split of images with masks.

    Attributes:
        split: Name of the split.
        examples: Number of images.
        pixels: Number of pixels that count.
        label_names: The K class names; the rows of `per_class` and of `confusion_matrix`.
        per_class: Precision, recall, F1 (Dice) and pixels of each class.
        per_class_iou: Intersection over union of each class; None for one that does not occur.
        mean_iou: Mean over the classes that occur, as labels or as predictions.
        pixel_accuracy: Share of correct pixels.
        balanced_accuracy: Mean recall of the classes that the split has.
        macro_f1: Mean F1 over all classes.
        log_loss: Mean negative log likelihood of a pixel, nats.
        expected_calibration_error: Expected calibration error of the pixels with 15 bins of equal
            width, in [0, 1].
        confusion_matrix: (K, K) pixels, row = true class, column = predicted class.
        added: Metrics of the problem beyond those above.
    """

    split: str
    examples: int
    pixels: int
    label_names: tuple[str, ...]
    per_class: tuple[Scores, ...]
    per_class_iou: tuple[float | None, ...]
    mean_iou: float
    pixel_accuracy: float
    balanced_accuracy: float
    macro_f1: float
    log_loss: float
    expected_calibration_error: float
    confusion_matrix: tuple[tuple[int, ...], ...]
    added: tuple[AddedMetric, ...] = ()

    @property
    def accuracy(self) -> float:
        """The pixel accuracy, under the name that every task has."""
        return self.pixel_accuracy

    def metrics(self) -> dict[str, float | None]:
        """Return the scalar metrics by name."""
        names = ("mean_iou", "pixel_accuracy", "accuracy", "balanced_accuracy", "macro_f1")
        return {
            **{name: getattr(self, name) for name in names},
            "log_loss": self.log_loss,
            "expected_calibration_error": self.expected_calibration_error,
            **added_values(self.added),
        }

    def text(self) -> str:
        """Return the scores of the classes as a table."""
        (table,) = self.tables()
        return terminal_section(table)

    def _repr_html_(self) -> str:
        """Return the tables as HTML, for notebooks."""
        return str(html_tables(self.tables()))

    def tables(self) -> tuple[Table, ...]:
        """Return the scores of the classes, with the other metrics in the note."""
        rows: list[tuple[Cell, ...]] = [
            (Name(name), "-" if iou is None else f"{iou:.3f}", *score_cells(scores))
            for name, iou, scores in zip(
                self.label_names, self.per_class_iou, self.per_class, strict=True
            )
        ]
        absent = sum(iou is None for iou in self.per_class_iou)
        rows.append(("mean", f"{self.mean_iou:.3f}", "", "", f"{self.macro_f1:.3f}", ""))
        return (
            Table(
                header=("class", "IoU", "precision", "recall", "F1 (Dice)", "pixels"),
                rows=rows,
                note=f"Pixel accuracy {self.pixel_accuracy:.4f} over {self.pixels:,} labelled "
                f"pixels of {self.examples:,} images. "
                + (f"{absent} classes do not occur. " if absent else "")
                + f"Also: balanced accuracy {self.balanced_accuracy:.4f}, log loss (nats) "
                f"{self.log_loss:.4f}, expected calibration error (15 bins) "
                f"{self.expected_calibration_error:.4f}.{added_text(self.added)}",
            ),
        )

    def hub_metrics(self) -> tuple[HubMetric, ...]:
        """Return mean IoU and pixel accuracy."""
        return (
            HubMetric("mean_iou", "Mean IoU", self.mean_iou),
            HubMetric("accuracy", "Pixel accuracy", self.pixel_accuracy),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values; `from_dict` is the inverse."""
        return report_dict(self, self.metrics())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> PixelReport:
        """Return the report from the result of `as_dict`.

        Raises:
            ValueError: A field is missing or of another type.
        """
        return report_from_json(cls, values)
