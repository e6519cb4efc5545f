"""The report of a split whose examples have any number of labels each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ampft.metrics.scores import Scores, case_binary_log_losses, case_f1, flat_averages
from ampft.metrics.sums import LOG_LOSS, mean_metric
from ampft.tasks.report import HubMetric, Report, score_cells
from ampft.text.tables import Cell, Name, Table

SAMPLES_F1 = mean_metric(
    "samples_f1",
    "samples F1",
    higher_is_better=True,
    is_share=True,
    values=lambda p: case_f1(p.labels, p.predicted),
)
MEANS = (
    mean_metric(
        "subset_accuracy",
        "subset accuracy",
        higher_is_better=True,
        is_share=True,
        values=lambda p: p.correct.astype(np.float64),
    ),
    SAMPLES_F1,
    mean_metric(
        "hamming_loss",
        "Hamming loss",
        is_share=True,
        values=lambda p: (p.predicted != p.labels).mean(axis=1),
    ),
    replace(LOG_LOSS, values=lambda p: case_binary_log_losses(p.labels, p.probabilities)),
)
TITLES = {metric.name: metric.title for metric in MEANS}


@dataclass(frozen=True)
class MultiLabelReport(Report):
    """All metrics of one split whose examples have any number of labels."""

    label_names: tuple[str, ...]  # The K label names; the rows of `per_label`.
    threshold: float  # Probability from which a label is predicted.
    # Scores of each label; a label absent from the split has support 0.
    per_label: tuple[Scores, ...]
    # Average precision of each label; None without support.
    per_label_average_precision: tuple[float | None, ...]
    # Scores by kind of average: `micro` (all labels of all examples together), `macro` (mean over
    # the labels), `weighted` (by support), `samples` (mean over the examples).
    averages: Mapping[str, Scores]
    # Area under the precision-recall curve: `micro`, and `macro` over the labels that the split
    # has; None if it has none.
    average_precision: Mapping[str, float | None]
    means: Mapping[str, float]  # The metrics of `MEANS`; log loss in nats per decision.
    # Expected calibration error of the n * K decisions with 15 bins of equal width, in [0, 1].
    expected_calibration_error: float
    # The same for each label, if they were tuned on validation; otherwise None.
    label_thresholds: tuple[float, ...] | None = None

    def own_metrics(self) -> dict[str, float | None]:
        """Return the scalar metrics by name, without added ones."""
        return {
            **flat_averages(self.averages),
            **self.means,
            **{f"{name}_average_precision": v for name, v in self.average_precision.items()},
            "expected_calibration_error": self.expected_calibration_error,
        }

    def tables(self) -> tuple[Table, ...]:
        """Return the scores of the labels, with the other metrics in the note."""
        precisions = self.per_label_average_precision
        thresholds = [f"{value:.3f}" for value in self.label_thresholds or ()]
        rows: list[tuple[Cell, ...]] = [
            (Name(name), *_cells(scores, precision), *thresholds[index : index + 1])
            for index, (name, scores, precision) in enumerate(
                zip(self.label_names, self.per_label, precisions, strict=True)
            )
        ]
        rows += [
            (
                f"{name} average",
                *_cells(scores, self.average_precision.get(name)),
                *[""] * bool(thresholds),
            )
            for name, scores in self.averages.items()
        ]
        header: tuple[str, ...] = (
            "label",
            "precision",
            "recall",
            "F1",
            "average precision",
            "support",
        )
        rule = f"A label is predicted if its probability is at least {self.threshold:g}."
        if thresholds:
            header = (*header, "threshold")
            rule = (
                "A label is predicted if its probability is at least its threshold, which was "
                "chosen on the validation split."
            )
        means = (
            f"{TITLES[name]} {value:.4f}"
            for name, value in self.means.items()
            if name != SAMPLES_F1.name
        )
        return (
            Table(
                header=header,
                rows=rows,
                note=f"Also: {', '.join(means)}, expected calibration error "
                f"{self.expected_calibration_error:.4f} (15 bins).{self.added_text} {rule}",
            ),
        )

    def hub_metrics(self) -> tuple[HubMetric, ...]:
        """Return micro and macro F1."""
        return tuple(
            HubMetric("f1", f"{name.capitalize()} F1", self.averages[name].f1, {"average": name})
            for name in ("micro", "macro")
        )


def _cells(scores: Scores, average_precision: float | None) -> tuple[str, ...]:
    *values, support = score_cells(scores)
    return (*values, "" if average_precision is None else f"{average_precision:.3f}", support)
