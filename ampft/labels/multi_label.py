"""Any number of labels per example: sigmoid, binary cross entropy, and the report over labels.

Nothing here imports torch until a loss is computed or logits are decoded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from ampft.decision import (
    UNTOUCHED,
    Decisions,
    Rule,
    decision_confidence,
    least_certain,
    unambiguous_separator,
)
from ampft.errors import InputError
from ampft.labels.label_counts import case_f1, class_count_sums
from ampft.metrics.calibration import calibration_sums, expected_calibration_error
from ampft.metrics.ranking import ranking_values
from ampft.metrics.scores import (
    Scores,
    case_binary_log_losses,
    flat_averages,
    output_dict,
    report_scores,
)
from ampft.metrics.sums import (
    LOG_LOSS,
    MACRO_F1,
    MICRO_F1,
    WEIGHTED_F1,
    CaseSums,
    mean_metric,
    mean_sums,
)
from ampft.precision.transfer import cached_device_constant
from ampft.tasks.loss import constant_loss, parse_class_weights, summed_binary_cross_entropy
from ampft.tasks.outcome import (
    FloatArray,
    OutcomeMistakes,
    answered_column,
    check_arrays,
    check_weights,
    constant_choice_text,
    list_column,
    read_probabilities,
    read_weights,
    weight_column,
)
from ampft.tasks.report import HubMetric, Report, score_cells, with_added_metrics
from ampft.text.page import Cell, Name, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from ampft.tasks.loss_settings import LossSettings


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

    rule: ClassVar[str] = "A label is predicted if its probability is at least {:g}."

    @property
    def class_scores(self) -> Mapping[str, Scores]:
        """Scores by class."""
        return dict(zip(self.label_names, self.per_label, strict=True))

    def own_metrics(self) -> dict[str, float | None]:
        """Return the scalar metrics by name, without added ones."""
        return {
            **flat_averages(self.averages),
            **self.means,
            **{f"{name}_average_precision": v for name, v in self.average_precision.items()},
            "expected_calibration_error": self.expected_calibration_error,
        }

    def output_dict(self) -> dict[str, Any]:
        """Return what `sklearn.metrics.classification_report` returns with `output_dict=True`."""
        rows = dict(zip(self.label_names, self.per_label, strict=True))
        return output_dict(rows | {f"{name} avg": row for name, row in self.averages.items()})

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
                *([""] if thresholds else []),
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
        rule = self.rule.format(self.threshold)
        if thresholds:
            header = (*header, "threshold")
            rule = (
                "A label is predicted if its probability is at least its threshold, which was "
                "chosen on the validation split, if that has rows of the label."
            )
        means = (
            f"{TITLES[name]} {value:z.4f}"
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


BoolArray = npt.NDArray[np.bool_]

METRICS = {metric.name: metric for metric in (MICRO_F1, MACRO_F1, WEIGHTED_F1, *MEANS)}


@dataclass(frozen=True)
class MultiLabelPredictions:
    """Label probabilities of a model for every example of a split.

    Raises:
        ValueError: A shape, a dtype or a value is wrong. The message names the first wrong example.
    """

    labels: BoolArray  # Shape (n, K), bool: whether an example has a label.
    probabilities: FloatArray  # Shape (n, K), float32: sigmoid in float32.
    label_names: tuple[str, ...]  # The K label names, distinct.
    split: str  # Name of the split, such as "test".
    threshold: float = 0.5  # Probability from which a label is predicted, if none was tuned.
    # Tuned thresholds, and the temperature that has changed the probabilities.
    decisions: Decisions = UNTOUCHED
    # Shape (n, K), float32, before the temperature; None unless one is fitted.
    logits: FloatArray | None = None
    # Shape (n,), float64: weights of the examples in the metrics; None for 1.
    weights: npt.NDArray[np.float64] | None = None

    kind: ClassVar[str] = "multi_label"
    report_type: ClassVar[type[MultiLabelReport]] = MultiLabelReport

    def __post_init__(self) -> None:
        shape = (len(self.labels), len(self.label_names))
        check_weights(self.weights, len(self.labels))
        check_arrays(
            self,
            {
                "labels": (self.labels, shape, np.bool_),
                "probabilities": (self.probabilities, shape, np.float32),
            },
        )
        wrong = ~((self.probabilities >= 0) & (self.probabilities <= 1)).all(axis=1)
        if wrong.any():
            raise ValueError(
                f"the probabilities of {int(wrong.sum())} of {len(self)} examples are outside "
                f"[0, 1] or not finite; the first is example {int(wrong.argmax())}"
            )

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """Probability from which each label is predicted; None if they were not tuned."""
        return self.decisions.thresholds

    @property
    def predicted(self) -> BoolArray:
        """Whether a label is predicted, shape (n, K)."""
        return self.decisions.labels(self.probabilities, self.threshold)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.label_names

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def truth(self) -> BoolArray:
        """The labels, shape (n, K)."""
        return self.labels

    @property
    def choices(self) -> npt.NDArray[np.uint8]:
        """The predicted labels, eight per byte, shape (n, ceil(K / 8))."""
        return np.packbits(self.predicted, axis=1)

    @property
    def correct(self) -> BoolArray:
        """Whether exactly the labels of an example are predicted, shape (n,)."""
        return (self.predicted == self.labels).all(axis=1)

    @property
    def decision_confidence(self) -> FloatArray:
        """The probability of each decision for or against a label, shape (n, K), float32."""
        return decision_confidence(self.probabilities, self.predicted)

    @property
    def confidence(self) -> FloatArray:
        """Probability of the least certain decision of an example, shape (n,), float32."""
        return least_certain(self.probabilities, self.predicted)

    @property
    def only_prediction(self) -> str | None:
        """The predicted labels if all examples have the same; otherwise None."""
        return constant_choice_text(self.choices, self.label_names, MultiLabel.choice_text)

    def report(self) -> MultiLabelReport:
        from sklearn.metrics import average_precision_score

        labels, probabilities, weights = self.labels, self.probabilities, self.weights
        counted = np.ones(len(self), dtype=bool) if weights is None else weights > 0
        precisions = [
            float(average_precision_score(has, score, sample_weight=weights))
            if has[counted].any()
            else None
            for has, score in zip(labels.T, probabilities.T, strict=True)
        ]
        known = [value for value in precisions if value is not None]
        micro = None
        if known:
            micro = average_precision_score(
                labels, probabilities, average="micro", sample_weight=weights
            )
        rows, averages = report_scores(labels, self.predicted, labels.shape[1], weights)
        report = self.report_type(
            split=self.split,
            examples=len(self),
            label_names=self.label_names,
            threshold=self.threshold,
            label_thresholds=self.thresholds,
            per_label=rows,
            per_label_average_precision=tuple(precisions),
            averages=averages,
            average_precision={
                "micro": None if micro is None else float(micro),
                "macro": float(np.mean(known)) if known else None,
            },
            means={
                row.name: float(np.average(row.values(self), weights=weights))
                for row in MEANS
                if row.values
            },
            expected_calibration_error=self.calibration_error(),
            is_weighted=weights is not None,
        )
        ranking = ranking_values(labels.astype(bool), probabilities, weights)
        return with_added_metrics(report, METRICS, self.metrics(), ranking)

    def metrics(self) -> dict[str, float]:
        """Return the metrics that are functions of sums, and the calibration error."""
        values = {name: metric.value(self.sums(name)) for name, metric in METRICS.items()}
        return {**values, "expected_calibration_error": self.calibration_error()}

    def calibration_error(self) -> float:
        """Return the expected calibration error over all n * K decisions, 15 bins."""
        correct = self.predicted == self.labels
        weights = None if self.weights is None else np.repeat(self.weights, correct.shape[1])
        return expected_calibration_error(
            self.decision_confidence.ravel(), correct.ravel(), weights=weights
        )

    def sums(self, metric: str) -> CaseSums:
        values = METRICS[metric].values
        return self.unit_sums if values is None else mean_sums(values(self)).weighted(self.weights)

    @cached_property
    def unit_sums(self) -> CaseSums:
        """The class counts of the examples."""
        return class_count_sums(self.labels, self.predicted).weighted(self.weights)

    def scores(self) -> tuple[Scores, ...]:
        """Return precision, recall, F1 and support of each label."""
        labels = self.labels
        return report_scores(labels, self.predicted, labels.shape[1], self.weights)[0]

    def confusion(self) -> None:
        """Return None: a confusion matrix needs one label per example."""

    def calibration(self, bins: int) -> npt.NDArray[np.float64]:
        """Return (3, bins) sums over all n * K decisions: count, confidence, number correct."""
        correct = self.predicted == self.labels
        return calibration_sums(self.decision_confidence.ravel(), correct.ravel(), bins=bins)

    def mistakes(self) -> OutcomeMistakes:
        """Return the mistakes, ranked by the probability of the most confident wrong decision.

        A label is taken for another if it is missed, and the other is wrongly predicted.
        """
        missed, wrong = self.labels & ~self.predicted, self.predicted & ~self.labels
        pairs = Counter(
            pair
            for row in range(len(self))
            for pair in product(np.flatnonzero(missed[row]), np.flatnonzero(wrong[row]))
        )

        between = _shown_separator(self.label_names)

        def details(case: int) -> str:
            listed = {
                title: between.join(
                    f"{self.label_names[k]} ({self.probabilities[case, k]:.2f})"
                    for k in np.flatnonzero(decided[case])
                )
                for title, decided in (("missed", missed), ("wrong", wrong))
            }
            return "; ".join(f"{title}: {labels}" for title, labels in listed.items() if labels)

        is_wrong = self.predicted != self.labels
        return OutcomeMistakes(
            scores=np.where(is_wrong, self.decision_confidence, 0).max(axis=1).astype(np.float64),
            names=self.class_names,
            support=[scores.support for scores in self.scores()],
            counts={(int(label), int(other)): count for (label, other), count in pairs.items()},
            confused=lambda label, other: missed[:, label] & wrong[:, other],
            unit="examples in which the label is missed and the other is predicted",
            details=details,
        )

    def columns(self, rows: slice) -> Mapping[str, pa.Array]:
        """Return labels and predictions as lists of names and of indices, and probabilities."""
        import pyarrow as pa

        probabilities = self.probabilities[rows]
        names = np.asarray(self.label_names, dtype=object)
        truth, predicted = self.labels[rows], self.predicted[rows]
        labels, predictions = np.nonzero(truth)[1], np.nonzero(predicted)[1]
        sizes, found = truth.sum(axis=1), predicted.sum(axis=1)
        return {
            "label": list_column(names[labels], sizes, pa.string()),
            "prediction": list_column(names[predictions], found, pa.string()),
            "label_id": list_column(labels, sizes),
            "prediction_id": list_column(predictions, found),
            "confidence": pa.array(self.confidence[rows]),
            "probabilities": list_column(
                probabilities.ravel(), np.full(len(probabilities), len(names))
            ),
            **answered_column(self.decisions.answered(self.confidence), rows),
            **weight_column(self.weights, rows),
        }

    def metadata(self) -> dict[str, Any]:
        """Return the split, the label names, the threshold and the decisions."""
        return {
            "split": self.split,
            "label_names": list(self.label_names),
            "threshold": self.threshold,
            **self.decisions.entries(self.label_names),
        }

    @classmethod
    def from_table(cls, table: pa.Table, metadata: Mapping[str, Any]) -> MultiLabelPredictions:
        """Return the predictions from a table of `columns` and the result of `metadata`."""
        names = metadata["label_names"]
        ids = table["label_id"].combine_chunks()
        labels = np.zeros((table.num_rows, len(names)), dtype=bool)
        labels[ids.value_parent_indices().to_numpy(), ids.flatten().to_numpy()] = True
        return cls(
            labels=labels,
            probabilities=read_probabilities(table, len(names)),
            label_names=tuple(names),
            split=metadata["split"],
            threshold=float(metadata["threshold"]),
            decisions=Decisions.from_entries(metadata, names),
            weights=read_weights(table),
        )


@dataclass(frozen=True)
class MultiLabel:
    """Classification in which each example has any number of labels."""

    label_names: tuple[str, ...]  # Names of the K labels, in the order of the logits.
    # (K,) float32 weights in the loss of examples with a label, as `pos_weight` of
    # `torch.nn.BCEWithLogitsLoss`; None for equal weights.
    class_weights: npt.NDArray[np.float32] | None = None
    label_smoothing: float = 0.0  # Share of each target that is moved to one half, 0 to 1.
    threshold: float = 0.5  # Probability from which a label is predicted, if none was tuned.
    decisions: Decisions = UNTOUCHED  # Decisions of a saved model.
    focal_gamma: float = 0.0  # Exponent of the focal loss; 0 for cross entropy.
    separator: str = ","  # Text between the labels of a printed prediction.
    # Whether predictions have their logits, from which a temperature is fitted.
    keeps_logits: bool = False

    name: ClassVar[str] = "multi_label"
    transformers_type: ClassVar[str | None] = "multi_label_classification"
    metrics: ClassVar = METRICS
    printed: ClassVar[tuple[str, ...]] = ("micro_f1", "macro_f1", "subset_accuracy")
    outcome_type: ClassVar[type[MultiLabelPredictions]] = MultiLabelPredictions
    report_type: ClassVar = MultiLabelReport

    @classmethod
    def from_settings(
        cls, label_names: tuple[str, ...], targets: BoolArray, settings: LossSettings
    ) -> Self:
        """Return the problem for the labels of the data.

        Args:
            label_names: Names of the K labels.
            targets: (n, K) whether an example of the training split has a label.
            settings: The user's choices.

        Raises:
            InputError: `--class_weights` does not fit the labels.
        """
        counts = targets.sum(axis=0)
        if settings.class_weights != "balanced":
            weights = parse_class_weights(settings.class_weights, counts, label_names)
        elif ((counts == 0) | (counts == len(targets))).any():
            raise InputError(
                "--class_weights balanced: a label is on no training example or on all, so its "
                "weight would be infinite or 0. Pass the weights as numbers."
            )
        else:
            weights = ((len(targets) - counts) / counts).astype(np.float32)
        return cls(
            label_names,
            weights,
            settings.label_smoothing_factor,
            settings.threshold,
            focal_gamma=settings.focal_gamma,
            keeps_logits=settings.calibrate,
        )

    @classmethod
    def from_arguments(
        cls, label_names: tuple[str, ...], arguments: Mapping[str, Any]
    ) -> MultiLabel:
        """Return the problem of a saved model, with its threshold and its decisions."""
        return cls(
            label_names,
            threshold=float(arguments["threshold"]),
            decisions=Decisions.from_entries(arguments, label_names),
            separator=str(arguments["label_separator"]),
        )

    def weights(self, targets: BoolArray) -> npt.NDArray[np.float64]:
        """Return the (n,) weights of the examples in the loss: their K decisions."""
        return np.full(len(targets), float(len(self.label_names)))

    def loss(self, logits: Tensor, targets: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """Return the summed binary cross entropy or focal loss, a float32 scalar.

        Args:
            logits: (m, K) float32.
            targets: (m, K) bool.
            weights: (m,) factors of the losses of the examples; None for 1.
        """
        positive = self.class_weights
        return summed_binary_cross_entropy(
            logits,
            targets,
            positive_weights=None
            if positive is None
            else cached_device_constant(positive, logits.device),
            label_smoothing=self.label_smoothing,
            focal_gamma=self.focal_gamma,
            weights=weights,
        )

    @property
    def rule(self) -> Rule:
        """How logits become probabilities and answers."""
        return Rule(self.label_names, True, self.threshold, self.separator, self.decisions)

    def decode(self, logits: Tensor, inputs: Any = None) -> dict[str, FloatArray]:
        """Return the (m, K) sigmoid probabilities of logits, and the logits if kept."""
        values = logits.detach().cpu().numpy()
        kept = {"logits": values} if self.keeps_logits else {}
        return {"probabilities": self.rule.probabilities(values), **kept}

    def outcome(
        self, split: str, targets: BoolArray, decoded: Mapping[str, npt.NDArray[Any]]
    ) -> MultiLabelPredictions:
        return self.outcome_type(
            targets,
            decoded["probabilities"],
            self.label_names,
            split,
            self.threshold,
            self.decisions,
            decoded.get("logits"),
        )

    def constant(self, train: BoolArray, targets: BoolArray) -> dict[str, Any]:
        """Return the frequencies of the labels as the prediction of each example."""
        shares = train.mean(axis=0).astype(np.float32)
        return {"probabilities": np.tile(shares, (len(targets), 1))}

    def constant_loss(self, train: BoolArray) -> float:
        """Return the loss of predicting the frequencies of the labels, per decision."""
        return constant_loss(self, train.mean(axis=0), lambda p: np.log(p / (1 - p)), train)

    def predicted(self, decoded: Mapping[str, npt.NDArray[Any]]) -> list[tuple[str, float]]:
        """Return the joined predicted labels of each example, and its confidence."""
        found = self.rule.answers(decoded["probabilities"])
        return list(zip(found.labels, found.confidence.tolist(), strict=True))

    @staticmethod
    def has_class(truth: BoolArray, label_names: Sequence[str], index: int) -> BoolArray:
        """Return (n,) whether an example has the label `index`."""
        return truth[:, index]

    @staticmethod
    def choice_text(choice: Any, label_names: Sequence[str]) -> str:
        return MultiLabel.truth_text(np.unpackbits(choice)[: len(label_names)], label_names)

    @staticmethod
    def truth_text(truth: Any, label_names: Sequence[str]) -> str:
        names = [name for name, has in zip(label_names, truth, strict=True) if has]
        return _shown_separator(label_names).join(names) or "(none)"


def _shown_separator(label_names: Sequence[str]) -> str:
    """Return what separates labels in a sentence: ", " unless a label contains a comma."""
    separator = unambiguous_separator(",", label_names)
    return ", " if separator == "," else f" {separator} "
