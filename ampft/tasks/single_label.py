"""One label per example: softmax, cross entropy, and the classification report.

Nothing here imports torch until a loss is computed or logits are decoded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from ampft.decision import UNTOUCHED, Decisions, Rule
from ampft.errors import check_type, quoted_list
from ampft.metrics.calibration import calibration_sums, expected_calibration_error
from ampft.metrics.ranking import class_ranking_metrics, positive_class
from ampft.metrics.scores import (
    MAX_MATRIX_CLASSES,
    Scores,
    case_brier_scores,
    case_log_losses,
    confusion,
    confusion_counts,
    flat_averages,
    output_dict,
    report_scores,
    row_blocks,
    scalar_scores,
    top_accuracy,
)
from ampft.metrics.sums import (
    ACCURACY,
    BALANCED_ACCURACY,
    BRIER,
    COHEN_KAPPA,
    LOG_LOSS,
    MACRO_F1,
    MATTHEWS,
    WEIGHTED_F1,
    CaseSums,
    Metric,
    mean_sums,
    single_label_sums,
)
from ampft.precision.transfer import cached_device_constant
from ampft.tasks.loss import constant_loss, parse_class_weights, summed_cross_entropy
from ampft.tasks.outcome import (
    FloatArray,
    IntArray,
    OutcomeMistakes,
    answered_column,
    check_arrays,
    check_ids_complete,
    check_weights,
    confusion_mistakes,
    constant_choice_text,
    list_column,
    read_probabilities,
    read_weights,
    weight_column,
)
from ampft.tasks.report import HubMetric, Report, as_tuples, score_cells, with_added_metrics
from ampft.text.escaping import display_width, inert
from ampft.text.page import Cell, Name, Table, terminal_table

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from ampft.tasks.loss_settings import LossSettings


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

    @property
    def class_scores(self) -> Mapping[str, Scores]:
        """Scores by class."""
        return dict(zip(self.label_names, self.per_class, strict=True))

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

    def output_dict(self) -> dict[str, Any]:
        """Return what `sklearn.metrics.classification_report` returns with `output_dict=True`.

        Supports are numbers of examples, also where rows have weights.
        """
        rows = dict(zip(self.label_names, self.per_class, strict=True))
        averages = {"macro avg": self.macro_avg, "weighted avg": self.weighted_avg}
        return {**output_dict(rows), "accuracy": self.accuracy, **output_dict(averages)}

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
        whose = "its" if len(absent) == 1 else "their"
        return f"No example has the label {quoted_list(absent)}; {whose} F1 counts as 0."

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
            f"{name} {'undefined' if v is None else f'{v:z.4f}'}" for name, v in others.items()
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


# A float32 softmax over K classes sums to one within K * 2^-23. This tolerance allows thousands of
# classes and still detects logits passed as probabilities.
SUM_TOLERANCE = 1e-3

MAX_TOP1_CLASSES = 10  # with more, the report has the top-5 accuracy too
MAX_COMPARED_CLASSES = 1000  # with a confusion matrix, which then has 8 MB

METRICS = {
    metric.name: metric
    for metric in (
        *(ACCURACY, MACRO_F1, WEIGHTED_F1, BALANCED_ACCURACY, MATTHEWS, COHEN_KAPPA),
        replace(LOG_LOSS, values=lambda p: case_log_losses(p.labels, p.probabilities)),
        replace(BRIER, values=lambda p: case_brier_scores(p.labels, p.probabilities)),
    )
}


@dataclass(frozen=True)
class Predictions:
    """Class probabilities of a model for every example of a split.

    Raises:
        ValueError: A shape, a dtype or a value is wrong, or an example is missing or counted twice.
            The message names the first wrong example.
    """

    example_ids: IntArray  # Shape (n,), int64: 0..n-1, ascending; the row of the split.
    labels: IntArray  # Shape (n,), int64: indices into `label_names`.
    probabilities: FloatArray  # Shape (n, K), float32: softmax in float32, so that rows sum to one.
    label_names: tuple[str, ...]  # The K class names, distinct.
    split: str  # Name of the split, such as "test".
    # How the probabilities, which the temperature has changed, become predictions.
    decisions: Decisions = UNTOUCHED
    # Shape (n, K), float32, before the temperature; None unless one is fitted.
    logits: FloatArray | None = None
    # Shape (n,), float64: weights of the examples in the metrics; None for 1.
    weights: npt.NDArray[np.float64] | None = None

    kind: ClassVar[str] = "single_label"
    threshold: ClassVar[float] = 0.5
    metric_rows: ClassVar[Mapping[str, Metric]] = METRICS

    def __post_init__(self) -> None:
        check_type("Predictions", "example_ids", self.example_ids, np.ndarray)
        check_type("Predictions", "label_names", self.label_names, (list, tuple))
        n, classes = len(self.example_ids), len(self.label_names)
        check_arrays(
            self,
            {
                "example_ids": (self.example_ids, (n,), np.int64),
                "labels": (self.labels, (n,), np.int64),
                "probabilities": (self.probabilities, (n, classes), np.float32),
            },
        )
        check_weights(self.weights, n)
        check_ids_complete(self.example_ids, n)
        if np.any(np.diff(self.example_ids) < 0):
            raise ValueError("example_ids must ascend: sort them together with the predictions")
        self._check_values()

    @classmethod
    def from_logits(
        cls, logits: Tensor, labels: Tensor, label_names: Sequence[str], *, split: str = "test"
    ) -> Predictions:
        """Return the predictions of a model from its logits.

        Args:
            logits: (n, K), any floating dtype and device.
            labels: (n,) int64 class indices.
            label_names: Names of the K classes.
            split: Name of the split.
        """
        import torch

        logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)
        return cls(
            example_ids=np.arange(len(labels)),
            labels=labels.cpu().numpy(),
            probabilities=logits.detach().float().softmax(dim=-1).cpu().numpy(),
            label_names=tuple(label_names),
            split=split,
        )

    @cached_property
    def predicted(self) -> IntArray:
        """The predicted class, shape (n,), int64: the most probable, unless a threshold decides."""
        return self.decisions.classes(self.probabilities)

    @property
    def confidence(self) -> FloatArray:
        """The probability of the predicted class, shape (n,), float32."""
        return self.probabilities[np.arange(len(self)), self.predicted]

    @property
    def class_names(self) -> tuple[str, ...]:
        """The K class names."""
        return self.label_names

    def __len__(self) -> int:
        return len(self.example_ids)

    @property
    def truth(self) -> IntArray:
        """The labels, shape (n,)."""
        return self.labels

    @property
    def choices(self) -> npt.NDArray[np.signedinteger[Any]]:
        """The predicted classes, shape (n,), int16 or int32."""
        small = len(self.label_names) <= np.iinfo(np.int16).max
        return self.predicted.astype(np.int16 if small else np.int32)

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """Whether the predicted class is the label, shape (n,)."""
        return self.predicted == self.labels

    @property
    def only_prediction(self) -> str | None:
        """The predicted class if all examples have the same; otherwise None."""
        return constant_choice_text(self.choices, self.label_names, SingleLabel.choice_text)

    def report(self) -> ClassificationReport:
        """Return the report of the split."""
        return self._report

    @cached_property
    def _report(self) -> ClassificationReport:
        return classification_report(self)

    def metrics(self) -> dict[str, float]:
        """Return the metrics that are functions of sums, and the calibration error."""
        return dict(self._metrics)

    @cached_property
    def _metrics(self) -> dict[str, float]:
        totals = self.unit_sums.totals()
        values = {
            name: float(row.from_sums(totals)) if row.label_effect else row.value(self.sums(name))
            for name, row in self.metric_rows.items()
        }
        error = expected_calibration_error(self.confidence, self.correct, weights=self.weights)
        return {**values, "expected_calibration_error": error}

    def sums(self, metric: str) -> CaseSums:
        """Return the sums from which `metric` is computed."""
        if self.metric_rows[metric].values is None:
            return self.unit_sums
        return mean_sums(self.case_values(metric)).weighted(self.weights)

    def case_values(self, metric: str) -> npt.NDArray[np.float64]:
        """Return the value of each example, (n,), whose mean a metric is.

        They are computed once: with many classes, that goes through more numbers than a training.
        """
        if metric not in self._case_values:
            compute = self.metric_rows[metric].values
            assert compute is not None, "it is a mean of values"
            self._case_values[metric] = np.asarray(compute(self))
        return self._case_values[metric]

    @cached_property
    def _case_values(self) -> dict[str, npt.NDArray[Any]]:
        return {}

    @cached_property
    def unit_sums(self) -> CaseSums:
        """The class counts of the examples."""
        sums = single_label_sums(self.labels, self.predicted, len(self.label_names))
        return sums.weighted(self.weights)

    def scores(self) -> tuple[Scores, ...]:
        """Return precision, recall, F1 and support of each class."""
        classes = len(self.label_names)
        return report_scores(self.labels, self.predicted, classes, self.weights)[0]

    def confusion(self) -> IntArray | None:
        """Return (K, K) counts: row = label, column = prediction; None for very many classes."""
        if len(self.label_names) > MAX_COMPARED_CLASSES:
            return None
        return confusion(self.labels, self.predicted, len(self.label_names))

    def calibration(self, bins: int) -> npt.NDArray[np.float64]:
        """Return (3, bins) sums per bin of equal width: count, confidence, number correct."""
        return calibration_sums(self.confidence, self.correct, bins=bins)

    def mistakes(self) -> OutcomeMistakes:
        """Return the mistakes, ranked by the probability of the wrong class."""
        return OutcomeMistakes(
            scores=self.confidence.astype(np.float64),
            names=self.class_names,
            support=[scores.support for scores in self.scores()],
            counts=confusion_mistakes(self.confusion()),
            confused=lambda label, wrong: (self.labels == label) & (self.predicted == wrong),
        )

    def columns(self, rows: slice) -> Mapping[str, pa.Array]:
        """Return labels, predictions, their indices, confidences and probabilities of some rows."""
        import pyarrow as pa

        labels, predicted = self.labels[rows], self.predicted[rows]
        probabilities = self.probabilities[rows]
        names = np.asarray(self.label_names, dtype=object)
        return {
            "label": pa.array(names[labels], pa.string()),
            "prediction": pa.array(names[predicted], pa.string()),
            "label_id": pa.array(labels),
            "prediction_id": pa.array(predicted),
            "confidence": pa.array(self.confidence[rows]),
            "probabilities": list_column(probabilities.ravel(), np.full(len(labels), len(names))),
            **answered_column(self.decisions.answered(self.confidence), rows),
            **weight_column(self.weights, rows),
        }

    def metadata(self) -> dict[str, Any]:
        """Return the split, the label names and the decisions."""
        names = self.label_names
        return {"split": self.split, "label_names": list(names), **self.decisions.entries(names)}

    @classmethod
    def from_table(cls, table: pa.Table, metadata: Mapping[str, Any]) -> Predictions:
        """Return the predictions from a table of `columns` and the result of `metadata`."""
        names = metadata["label_names"]
        return cls(
            example_ids=table["example_id"].to_numpy(),
            labels=table["label_id"].to_numpy(),
            probabilities=read_probabilities(table, len(names)),
            label_names=tuple(names),
            split=metadata["split"],
            decisions=Decisions.from_entries(metadata, names),
            weights=read_weights(table),
        )

    def _check_values(self) -> None:
        rows, classes = self.probabilities, len(self.label_names)
        infinite, outside, off = np.zeros((3, len(rows)), dtype=bool)
        for part in row_blocks(*rows.shape):
            infinite[part] = ~np.isfinite(rows[part]).all(axis=1)
            outside[part] = ((rows[part] < 0) | (rows[part] > 1)).any(axis=1)
            # In float64, because a float32 sum over many classes would add its own error.
            off[part] = np.abs(rows[part].sum(axis=1, dtype=np.float64) - 1) > SUM_TOLERANCE
        checks = {
            f"labels outside 0..{classes - 1}": (self.labels < 0) | (self.labels >= classes),
            "probabilities that are not finite": infinite,
            "probabilities outside [0, 1]": outside,
            "probabilities that do not sum to one (are they logits?)": off,
        }
        for problem, wrong in checks.items():
            if wrong.any():
                raise ValueError(
                    f"{int(wrong.sum())} of {len(rows)} examples have {problem}; "
                    f"the first is example {int(wrong.argmax())}"
                )


def classification_report(predictions: Predictions) -> ClassificationReport:
    """Return the report of a split.

    Args:
        predictions: One split; classes of its label map may be absent from it.
    """
    check_type("classification_report", "predictions", predictions, Predictions)
    labels, predicted = predictions.labels, predictions.predicted
    classes, weights = len(predictions.label_names), predictions.weights
    few, large = classes <= MAX_TOP1_CLASSES, classes > MAX_MATRIX_CLASSES
    rows, averages = scores = report_scores(labels, predicted, classes, weights)
    flat = scalar_scores(labels, predicted, classes, weights, scores)
    confidence, correct = predictions.confidence, predictions.correct
    top5 = None if few else top_accuracy(labels, predictions.probabilities, 5, weights)

    def mean(values: npt.NDArray[np.float64]) -> float:
        return float(np.average(values, weights=weights))

    report = ClassificationReport(
        split=predictions.split,
        examples=len(predictions),
        label_names=predictions.label_names,
        per_class=rows,
        accuracy=flat["accuracy"],
        macro_avg=averages["macro"],
        weighted_avg=averages["weighted"],
        balanced_accuracy=flat["balanced_accuracy"],
        cohen_kappa=None if math.isnan(flat["cohen_kappa"]) else flat["cohen_kappa"],
        matthews=flat["matthews"],
        log_loss=mean(predictions.case_values(LOG_LOSS.name)),
        brier=mean(predictions.case_values(BRIER.name)),
        expected_calibration_error=expected_calibration_error(confidence, correct, weights=weights),
        confusion_matrix=None if large else as_tuples(confusion(labels, predicted, classes)),
        confusion_counts=as_tuples(confusion_counts(labels, predicted)) if large else None,
        top5_accuracy=top5,
        is_weighted=weights is not None,
    )
    ranking = class_ranking_metrics(labels, predictions.probabilities, weights)
    ranked = None
    if classes == 2:
        counts = np.bincount(labels, weights, minlength=2)
        ranked = predictions.label_names[positive_class(counts)]
    return with_added_metrics(
        report, predictions.metric_rows, predictions.metrics(), ranking, ranked_class=ranked
    )


@dataclass(frozen=True)
class SingleLabel:
    """Classification in which each example has exactly one label."""

    label_names: tuple[str, ...]  # Names of the K classes, in the order of the logits.
    # (K,) float32 weights of the classes in the loss; None for equal weights.
    class_weights: npt.NDArray[np.float32] | None = None
    # Share of the target that is spread evenly over the classes, 0 to 1.
    label_smoothing: float = 0.0
    focal_gamma: float = 0.0  # Exponent of the focal loss; 0 for cross entropy.
    decisions: Decisions = UNTOUCHED  # Decisions of a saved model.
    # Whether predictions have their logits, from which a temperature is fitted.
    keeps_logits: bool = False

    name: ClassVar[str] = "single_label"
    transformers_type: ClassVar[str | None] = "single_label_classification"
    metrics: ClassVar = METRICS
    printed: ClassVar[tuple[str, ...]] = ("accuracy", "macro_f1", "log_loss")
    outcome_type: ClassVar[type[Predictions]] = Predictions
    report_type: ClassVar = ClassificationReport

    @classmethod
    def from_settings(
        cls, label_names: tuple[str, ...], targets: IntArray, settings: LossSettings
    ) -> Self:
        """Return the problem for the labels of the data.

        Args:
            label_names: Names of the K classes.
            targets: (n,) labels of the training split.
            settings: The user's choices.

        Raises:
            InputError: `--class_weights` does not fit the classes.
        """
        counts = np.bincount(targets, minlength=len(label_names))
        weights = parse_class_weights(settings.class_weights, counts, label_names)
        smoothing, gamma = settings.label_smoothing_factor, settings.focal_gamma
        return cls(label_names, weights, smoothing, gamma, keeps_logits=settings.calibrate)

    @classmethod
    def from_arguments(
        cls, label_names: tuple[str, ...], arguments: Mapping[str, Any]
    ) -> SingleLabel:
        """Return the problem of a saved model, with its decisions."""
        return cls(label_names, decisions=Decisions.from_entries(arguments, label_names))

    def weights(self, targets: IntArray) -> npt.NDArray[np.float64]:
        """Return the (n,) loss weights of the examples: their class weights, or 1."""
        if self.class_weights is None:
            return np.ones(len(targets))
        return self.class_weights.astype(np.float64)[targets]

    def loss(
        self,
        logits: Tensor,
        targets: Tensor,
        *,
        weights: Tensor | None = None,
        ignore_index: int = -100,
    ) -> Tensor:
        """Return the summed cross entropy or focal loss, a float32 scalar.

        Args:
            logits: (m, K, ...) float32.
            targets: (m, ...) int64 class indices.
            weights: (m,) factors of the losses, in addition to class weights; None for 1.
            ignore_index: Target of what does not count.
        """
        of_classes = None
        if self.class_weights is not None:
            of_classes = cached_device_constant(self.class_weights, logits.device)
        return summed_cross_entropy(
            logits,
            targets,
            class_weights=of_classes,
            label_smoothing=self.label_smoothing,
            focal_gamma=self.focal_gamma,
            ignore_index=ignore_index,
            weights=weights,
        )

    @property
    def rule(self) -> Rule:
        """How logits become probabilities and answers."""
        return Rule(self.label_names, decisions=self.decisions)

    def decode(self, logits: Tensor, inputs: Any = None) -> dict[str, FloatArray]:
        """Return the (m, K) softmax probabilities of logits, and the logits if kept."""
        values = logits.detach().cpu().numpy()
        kept = {"logits": values} if self.keeps_logits else {}
        return {"probabilities": self.rule.probabilities(values), **kept}

    def outcome(
        self, split: str, targets: IntArray, decoded: Mapping[str, npt.NDArray[Any]]
    ) -> Predictions:
        """Return the predictions of a split."""
        return self.outcome_type(
            example_ids=np.arange(len(targets)),
            labels=targets,
            probabilities=decoded["probabilities"],
            label_names=self.label_names,
            split=split,
            decisions=self.decisions,
            logits=decoded.get("logits"),
        )

    def constant(self, train: IntArray, targets: IntArray) -> dict[str, Any]:
        """Return the frequencies of the classes as the prediction of each example."""
        shares = self._shares(train).astype(np.float32)
        # A view, because all rows are equal.
        return {"probabilities": np.broadcast_to(shares, (len(targets), len(shares)))}

    def constant_loss(self, train: IntArray) -> float:
        """Return the loss of predicting the frequencies of the classes, per unit of weight."""
        return constant_loss(self, self._shares(train), np.log, train)

    def _shares(self, targets: IntArray) -> npt.NDArray[np.float64]:
        return np.bincount(targets, minlength=len(self.label_names)) / len(targets)

    def predicted(self, decoded: Mapping[str, npt.NDArray[Any]]) -> list[tuple[str, float]]:
        """Return the predicted class of each example, and its probability."""
        found = self.rule.answers(decoded["probabilities"])
        return list(zip(found.labels, found.confidence.tolist(), strict=True))

    @staticmethod
    def has_class(
        truth: npt.NDArray[Any], label_names: Sequence[str], index: int
    ) -> npt.NDArray[np.bool_]:
        """Return (n,) whether an example has the class `index`."""
        return truth == index

    @staticmethod
    def choice_text(choice: Any, label_names: Sequence[str]) -> str:
        """Return the name of a class."""
        return label_names[int(choice)]

    truth_text = choice_text
