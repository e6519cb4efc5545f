"""The predicted masks of a split, reduced to counts per image, and their report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ampft.kinds.views import MASK_COLUMN
from ampft.media.iou import MEAN_IOU, PIXEL_ACCURACY, iou_per_class, metric_for_images
from ampft.metrics.scores import Scores, report_scores
from ampft.metrics.sums import ACCURACY, BALANCED_ACCURACY, LOG_LOSS, MACRO_F1, CaseSums
from ampft.tasks.outcome import (
    FloatArray,
    IntArray,
    OutcomeMistakes,
    check_arrays,
    confusion_mistakes,
    list_column,
)
from ampft.tasks.report import HubMetric, Report, as_tuples, score_cells, with_added_metrics
from ampft.text.page import Cell, Name, Table

if TYPE_CHECKING:
    import pyarrow as pa

BINS = 30  # of the calibration; neighbouring bins add up to 10 or 15 bins
COUNTED = (
    MEAN_IOU,
    PIXEL_ACCURACY,
    *map(metric_for_images, (MACRO_F1, BALANCED_ACCURACY, ACCURACY)),
)
# The sums over the pixels of each image, and over their squares.
PIXEL_LOSS = replace(LOG_LOSS, values=lambda p: p.losses)
METRICS = {metric.name: metric for metric in (*COUNTED, PIXEL_LOSS)}


@dataclass(frozen=True)
class PixelPredictions:
    """The predictions of n images as counts per image; their masks are kept as PNG files.

    Raises:
        ValueError: A shape, a dtype or a value is wrong.
    """

    # (n, K, K) int64 pixels of each image that count: row = label, column = prediction.
    counts: IntArray
    # (n, 2) float64 sums over these pixels of the negative log likelihood and its square.
    losses: npt.NDArray[np.float64]
    # (n, 3, BINS) float64 sums per bin of confidence: pixels, confidence, number correct.
    bins: npt.NDArray[np.float64]
    digests: IntArray  # (n,) int64 hash of each predicted mask.
    label_names: tuple[str, ...]  # The K class names, distinct.
    split: str  # Name of the split, such as "test".
    # (n,) PNG files of the predicted masks; None if they were not read.
    masks: npt.NDArray[np.object_] | None = None

    kind: ClassVar[str] = "pixels"

    def __post_init__(self) -> None:
        n, classes = len(self.counts), len(self.label_names)
        check_arrays(
            self,
            {
                "counts": (self.counts, (n, classes, classes), np.int64),
                "losses": (self.losses, (n, 2), np.float64),
                "bins": (self.bins, (n, 3, BINS), np.float64),
                "digests": (self.digests, (n,), np.int64),
            },
        )
        if (self.counts < 0).any() or not np.isfinite(self.losses).all():
            raise ValueError("a count is negative, or a loss is not finite")

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.label_names

    @property
    def truth(self) -> IntArray:
        """Pixels of each class by image, (n, K)."""
        return self.counts.sum(axis=2)

    @property
    def predicted(self) -> IntArray:
        """Pixels that count by predicted class and image, (n, K)."""
        return self.counts.sum(axis=1)

    @property
    def choices(self) -> IntArray:
        """Hash, then correct, labelled and predicted pixels of each class, (n, 1 + 3 K)."""
        parts = (self.digests[:, None], self._correct_pixels, self.truth, self.predicted)
        return np.concatenate(parts, axis=1)

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """Whether all pixels of an image that count are correct, (n,)."""
        return self._correct_pixels.sum(axis=1) == self.counts.sum(axis=(1, 2))

    @property
    def pixel_accuracies(self) -> npt.NDArray[np.float64]:
        """Share of the pixels of each image that count and are correct, (n,)."""
        pixels = self.counts.sum(axis=(1, 2))
        return self._correct_pixels.sum(axis=1) / np.maximum(pixels, 1)

    @property
    def confidence(self) -> FloatArray:
        """Mean probability of the predicted classes over the pixels of an image, (n,)."""
        pixels, confidence, _ = self.bins.sum(axis=2).T
        return (confidence / np.maximum(pixels, 1)).astype(np.float32)

    @property
    def only_prediction(self) -> str | None:
        """The class that is predicted for every pixel; None if there are several."""
        predicted = np.flatnonzero(self.predicted.sum(axis=0))
        return self.label_names[predicted[0]] if len(predicted) == 1 else None

    def report(self) -> PixelReport:
        totals = self.unit_sums.totals()
        values = self.metrics()
        report = PixelReport(
            split=self.split,
            examples=len(self),
            pixels=int(totals[-1]),
            label_names=self.label_names,
            per_class=self.scores(),
            per_class_iou=tuple(
                None if np.isnan(iou) else float(iou) for iou in iou_per_class(totals)
            ),
            mean_iou=values["mean_iou"],
            pixel_accuracy=values["pixel_accuracy"],
            balanced_accuracy=values["balanced_accuracy"],
            macro_f1=values["macro_f1"],
            log_loss=values["log_loss"],
            expected_calibration_error=values["expected_calibration_error"],
            confusion_matrix=as_tuples(self.confusion()),
        )
        return with_added_metrics(report, METRICS, values)

    def metrics(self) -> dict[str, float]:
        """Return the metrics that are functions of sums, and the calibration error."""
        values = {name: metric.value(self.sums(name)) for name, metric in METRICS.items()}
        pixels, confidence, correct = self.calibration(15)
        error = np.abs(correct - confidence).sum() / max(pixels.sum(), 1)
        return {**values, "expected_calibration_error": float(error)}

    def sums(self, metric: str) -> CaseSums:
        """Return the sums from which `metric` is computed; the units of an image are pixels."""
        values = METRICS[metric].values
        if values is None:
            return self.unit_sums
        pixels = self.counts.sum(axis=(1, 2), dtype=np.float64)
        return CaseSums.of_cases(np.column_stack([values(self), pixels]))

    @cached_property
    def unit_sums(self) -> CaseSums:
        """The class counts of the pixels of each image."""
        parts = [self._correct_pixels, self.truth, self.predicted]
        return CaseSums.of_cases(np.column_stack([*parts, self.counts.sum(axis=(1, 2))]))

    def scores(self) -> tuple[Scores, ...]:
        """Return precision, recall, F1 (Dice) and pixels of each class."""
        matrix = self.confusion()
        labels, predicted = np.indices(matrix.shape).reshape(2, -1)
        rows, _ = report_scores(labels, predicted, len(matrix), matrix.ravel().astype(float))
        pairs = zip(rows, matrix.sum(axis=1).tolist(), strict=True)
        return tuple(replace(row, support=pixels) for row, pixels in pairs)

    def confusion(self) -> IntArray:
        """Return (K, K) pixels: row = label, column = prediction."""
        return self.counts.sum(axis=0)

    def calibration(self, bins: int) -> npt.NDArray[np.float64]:
        """Return (3, bins) sums over the pixels per bin: count, confidence, number correct.

        Args:
            bins: Number of bins of equal width, a divisor of BINS.
        """
        return self.bins.sum(axis=0).reshape(3, bins, BINS // bins).sum(axis=2)

    def mistakes(self) -> OutcomeMistakes:
        """Return the mistakes, ranked by the share of wrong pixels: nearly every mask has some."""
        return OutcomeMistakes(
            scores=1 - self.pixel_accuracies,
            names=self.class_names,
            support=[scores.support for scores in self.scores()],
            counts=confusion_mistakes(self.confusion()),
            confused=lambda label, prediction: self.counts[:, label, prediction],
            unit="pixels",
            heading="Images with the most wrong pixels",
            ranking="The number is the share of the pixels that are wrong.",
            has_labels=False,
        )

    def columns(self, rows: slice) -> Mapping[str, pa.Array]:
        """Return counts, losses, confidence and, as PNG files, the predicted masks of some rows.

        The confusion matrix of an image is written as the cells that are not 0.
        """
        import pyarrow as pa

        counts = self.counts[rows].reshape(-1, len(self.label_names) ** 2)
        image, cell = np.nonzero(counts)
        cells = np.count_nonzero(counts, axis=1)
        bins = self.bins[rows]
        masks = {} if self.masks is None else {MASK_COLUMN: pa.array(self.masks[rows], pa.binary())}
        return {
            "pixel_cells": list_column(cell.astype(np.int32), cells),
            "pixel_counts": list_column(counts[image, cell], cells),
            "pixel_loss": pa.array(self.losses[rows, 0]),
            "pixel_squared_loss": pa.array(self.losses[rows, 1]),
            "confidence": pa.array(self.confidence[rows]),
            "pixel_calibration": list_column(bins.ravel(), np.full(len(bins), 3 * BINS)),
            "mask_digest": pa.array(self.digests[rows]),
            **masks,
        }

    def metadata(self) -> dict[str, Any]:
        """Return the split and the label names."""
        return {"split": self.split, "label_names": list(self.label_names)}

    @classmethod
    def from_table(cls, table: pa.Table, metadata: Mapping[str, Any]) -> PixelPredictions:
        """Return the predictions from a table of `columns` and the result of `metadata`."""
        names = metadata["label_names"]
        classes, n = len(names), table.num_rows
        cells = table["pixel_cells"].combine_chunks()
        counts = np.zeros((n, classes * classes), dtype=np.int64)
        pixels = table["pixel_counts"].combine_chunks().flatten().to_numpy()
        counts[cells.value_parent_indices().to_numpy(), cells.flatten().to_numpy()] = pixels
        bins = table["pixel_calibration"].combine_chunks().flatten().to_numpy()
        return cls(
            counts=counts.reshape(n, classes, classes),
            losses=np.column_stack(
                [table["pixel_loss"].to_numpy(), table["pixel_squared_loss"].to_numpy()]
            ),
            bins=bins.reshape(n, 3, BINS),
            digests=table["mask_digest"].to_numpy(),
            label_names=tuple(names),
            split=metadata["split"],
        )

    @property
    def _correct_pixels(self) -> IntArray:
        return self.counts.diagonal(axis1=1, axis2=2)


@dataclass(frozen=True)
class PixelReport(Report):
    """All metrics of one split of images with masks."""

    pixels: int  # Number of pixels that count.
    # The K class names; the rows of `per_class` and of `confusion_matrix`.
    label_names: tuple[str, ...]
    per_class: tuple[Scores, ...]  # Precision, recall, F1 (Dice) and pixels of each class.
    # Intersection over union of each class; None for one that does not occur.
    per_class_iou: tuple[float | None, ...]
    mean_iou: float  # Mean over the classes that occur, as labels or as predictions.
    pixel_accuracy: float  # Share of correct pixels.
    balanced_accuracy: float  # Mean recall of the classes that the split has.
    macro_f1: float  # Mean F1 over all classes.
    log_loss: float  # Mean negative log likelihood of a pixel, nats.
    # Expected calibration error of the pixels with 15 bins of equal width, in [0, 1].
    expected_calibration_error: float
    # (K, K) pixels, row = true class, column = predicted class.
    confusion_matrix: tuple[tuple[int, ...], ...]

    @property
    def accuracy(self) -> float:
        """The pixel accuracy, under the name that every task has."""
        return self.pixel_accuracy

    def own_metrics(self) -> dict[str, float | None]:
        """Return the scalar metrics by name, without added ones."""
        names = ("mean_iou", "pixel_accuracy", "accuracy", "balanced_accuracy", "macro_f1")
        return {
            **{name: getattr(self, name) for name in names},
            "log_loss": self.log_loss,
            "expected_calibration_error": self.expected_calibration_error,
        }

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
                f"{self.expected_calibration_error:.4f}.{self.added_text}",
            ),
        )

    def hub_metrics(self) -> tuple[HubMetric, ...]:
        """Return mean IoU and pixel accuracy."""
        return (
            HubMetric("mean_iou", "Mean IoU", self.mean_iou),
            HubMetric("accuracy", "Pixel accuracy", self.pixel_accuracy),
        )
