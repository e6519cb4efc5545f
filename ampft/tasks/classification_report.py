"""The report of a split whose examples have one label each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ampft.errors import quoted_list
from ampft.metrics.scores import MAX_MATRIX_CLASSES, Scores, flat_averages
from ampft.tasks.report import HubMetric, Report, score_cells
from ampft.text.escaping import display_width, inert
from ampft.text.tables import Cell, Name, Table, terminal_table

SHOWN_CLASSES = 10  # best and worst, of very many classes
MAX_NAME_WIDTH = 60  # columns; the table in a terminal, and only that, cuts longer class names
# As wide as scikit-learn's columns, so that its table is equal to the character.
HEADER = ("", "precision", "  recall", "f1-score", " support")


@dataclass(frozen=True)
class ClassificationReport(Report):
    """All metrics of one split whose examples have one label each."""

    # The K class names; the rows of `per_class` and of `confusion_matrix`.
    label_names: tuple[str, ...]
    # Scores of each class; a class absent from the split has support 0.
    per_class: tuple[Scores, ...]
    accuracy: float  # Share of correct examples.
    macro_avg: Scores  # Mean over the classes of the label map.
    weighted_avg: Scores  # Mean over the classes, weighted by support.
    balanced_accuracy: float  # Mean recall of the classes that the split has.
    cohen_kappa: float | None  # Agreement beyond chance; None if undefined (only one class).
    matthews: float  # Matthews correlation coefficient.
    log_loss: float  # Mean negative log likelihood, nats.
    brier: float  # Mean over the examples of the sum of squares over the classes, in [0, 2].
    # Expected calibration error with 15 bins of equal width, in [0, 1].
    expected_calibration_error: float
    # (K, K) counts, row = true class, column = predicted class; None with more than 200 classes.
    confusion_matrix: tuple[tuple[int, ...], ...] | None = None
    # With more than 200 classes, (label, prediction, count) for each pair of classes that occurs,
    # as indices of `label_names`, ascending; otherwise None.
    confusion_counts: tuple[tuple[int, ...], ...] | None = None
    # With more than 10 classes, share of examples whose class is among the five most probable;
    # otherwise None.
    top5_accuracy: float | None = None

    @property
    def macro_f1(self) -> float:
        """Mean F1 over the classes."""
        return self.macro_avg.f1

    def own_metrics(self) -> dict[str, float | None]:
        """Return the scalar metrics by name, without added ones."""
        flat = ("cohen_kappa", "matthews", "log_loss", "brier", "expected_calibration_error")
        return {
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            **flat_averages({"macro": self.macro_avg, "weighted": self.weighted_avg}),
            **{name: getattr(self, name) for name in flat},
            **({} if self.top5_accuracy is None else {"top5_accuracy": self.top5_accuracy}),
        }

    def text(self) -> str:
        """Return the table of `sklearn.metrics.classification_report` with digits=3.

        With more than 200 classes it has only the 10 best and the 10 worst. A sentence after it
        lists the classes without an example. Class names of more than 60 columns are cut.
        """
        classes = [_row(_cut(self.label_names[i]), self.per_class[i]) for i in self.shown]
        blank = ("",) * len(HEADER)
        averages = {"macro avg": self.macro_avg, "weighted avg": self.weighted_avg}
        rows = [
            *(blank, *classes, blank),
            ("accuracy", "", "", f"{self.accuracy:.3f}", str(self.examples)),
            *(_row(name, scores) for name, scores in averages.items()),
        ]
        sentences = [*filter(None, (self.absence, self.added_text.strip()))]
        if len(classes) < len(self.per_class):
            sentences.insert(0, f"{self.omission} report.json has all.")
        table = terminal_table(Table(header=HEADER, rows=rows, left=0))
        return "\n".join(f"{part}\n" for part in (table, *sentences))

    @property
    def absence(self) -> str:
        """The sentence that lists the classes without an example; empty if there are none."""
        pairs = zip(self.label_names, self.per_class, strict=True)
        absent = [name for name, scores in pairs if not scores.support]
        if not absent:
            return ""
        return f"No {self.split} example has the label {quoted_list(absent)}; their F1 counts as 0."

    @property
    def shown(self) -> tuple[int, ...]:
        """Indices of the classes of the tables: all, or the best and then the worst by F1.

        Of classes with the same F1, those with more examples come first.
        """
        classes = range(len(self.per_class))
        if len(classes) <= MAX_MATRIX_CLASSES:
            return tuple(classes)
        scores = self.per_class
        best = sorted(classes, key=lambda i: (-scores[i].f1, -scores[i].support))[:SHOWN_CLASSES]
        rest = set(classes).difference(best)
        worst = sorted(rest, key=lambda i: (scores[i].f1, -scores[i].support, i))[:SHOWN_CLASSES]
        return (*best, *reversed(worst))

    @property
    def omission(self) -> str:
        """The sentence that says which classes the tables have."""
        return (
            f"The {SHOWN_CLASSES} best and the {SHOWN_CLASSES} worst of"
            f" {len(self.per_class):,} classes by F1."
        )

    def tables(self) -> tuple[Table, ...]:
        """Return the scores of the classes, with the other metrics in the note."""
        rows: list[tuple[Cell, ...]] = [
            (Name(self.label_names[i]), *score_cells(self.per_class[i])) for i in self.shown
        ]
        omission = f"{self.omission} " if len(rows) < len(self.per_class) else ""
        omission += f"{self.absence} " if self.absence else ""
        averages = {"macro average": self.macro_avg, "weighted average": self.weighted_avg}
        others = {
            "balanced accuracy": self.balanced_accuracy,
            "Cohen's kappa": self.cohen_kappa,
            "Matthews correlation": self.matthews,
            "log loss (nats)": self.log_loss,
            "Brier score (0 to 2)": self.brier,
            "expected calibration error (15 bins)": self.expected_calibration_error,
        }
        if self.top5_accuracy is not None:
            others["top-5 accuracy"] = self.top5_accuracy
        listed = (
            f"{name} {'undefined' if v is None else f'{v:.4f}'}" for name, v in others.items()
        )
        return (
            Table(
                header=("class", "precision", "recall", "F1", "support"),
                rows=(*rows, *((name, *score_cells(scores)) for name, scores in averages.items())),
                note=f"{omission}Also: {', '.join(listed)}.{self.added_text}",
            ),
        )

    def hub_metrics(self) -> tuple[HubMetric, ...]:
        """Return accuracy and macro F1."""
        return (
            HubMetric("accuracy", "Accuracy", self.accuracy),
            HubMetric("f1", "Macro F1", self.macro_f1, {"average": "macro"}),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values; `report_from_json` is the inverse."""
        unused = {"confusion_counts" if self.confusion_counts is None else "confusion_matrix"}
        unused |= {"top5_accuracy"} if self.top5_accuracy is None else set()
        return {name: value for name, value in super().as_dict().items() if name not in unused}


def _row(name: str, scores: Scores) -> tuple[str, ...]:
    values = (scores.precision, scores.recall, scores.f1)
    return name, *(f"{value:.3f}" for value in values), str(scores.support)


def _cut(name: str) -> str:
    shown = inert(name)
    if display_width(shown) <= MAX_NAME_WIDTH:
        return shown
    end = next(i for i in range(len(shown)) if display_width(shown[: i + 1]) >= MAX_NAME_WIDTH)
    return f"{shown[:end]}…"
