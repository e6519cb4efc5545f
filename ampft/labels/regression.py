"""One number per example: squared or Huber's loss, and the report of errors and correlations.

The model gives numbers in the unit of the labels, so that a pipeline of transformers does too. The
loss is computed on numbers divided by the standard deviation of the training labels, around their
mean; the head begins there and is updated in that unit. So nothing depends on the unit.

Nothing here imports torch until a loss is computed or outputs are decoded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ampft.decision import Rule
from ampft.errors import InputError
from ampft.labels.number_metrics import pearson, r_squared
from ampft.labels.unclassified import Unclassified
from ampft.metrics.sums import CaseSums, Metric, costliest_of_worst, mean_metric
from ampft.tasks.loss import summed_squared_error
from ampft.tasks.loss_settings import LossSettings
from ampft.tasks.outcome import OutcomeMistakes, check_weights, read_weights, weight_column
from ampft.tasks.report import HubMetric, Report
from ampft.text.numbers import or_dash
from ampft.text.page import Table

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

FloatArray = npt.NDArray[np.float64]

R2 = Metric("r2", "R²", r_squared, None, costliest_of_worst, cost_of_mean=2)
MSE = replace(
    mean_metric("mse", "mean squared error", values=lambda p: p.errors**2),
    costliest=costliest_of_worst,
    cost_of_mean=1,
)
MAE = replace(
    mean_metric("mae", "mean absolute error", values=lambda p: np.abs(p.errors)),
    costliest=costliest_of_worst,
    cost_of_mean=1,
)
PEARSON = Metric(
    "pearson",
    "Pearson correlation",
    pearson,
    None,
    costliest_of_worst,
    is_share=False,
    cost_of_mean=3,
)
METRICS = {metric.name: metric for metric in (R2, MSE, MAE, PEARSON)}


@dataclass(frozen=True)
class RegressionReport(Report):
    """The errors of one split, and how its predictions and labels go together."""

    title: ClassVar[str] = "regression report"

    name: str  # What the labels measure.
    label_mean: float  # Mean of the labels.
    label_deviation: float  # Standard deviation of the labels, of the split as it is.
    mse: float  # Mean squared error.
    rmse: float  # Its root, in the unit of the labels.
    mae: float  # Mean absolute error.
    r2: float | None  # 1 - mse / variance of the labels; None if they are all equal.
    pearson: float | None  # None if the labels or the predictions are all equal.
    spearman: float | None  # Pearson correlation of the ranks, with mean ranks for ties.

    def own_metrics(self) -> dict[str, float | None]:
        """Return the metrics by name."""
        names = ("r2", "mse", "rmse", "mae", "pearson", "spearman")
        return {name: getattr(self, name) for name in names}

    def tables(self) -> tuple[Table, ...]:
        """Return the table of the metrics."""
        titles = {
            "r2": R2.title,
            "mse": MSE.title,
            "rmse": "root mean squared error",
            "mae": MAE.title,
            "pearson": PEARSON.title,
            "spearman": "Spearman correlation",
        }
        rows = [
            (titles[name], or_dash(value, "{:z.4f}".format))
            for name, value in self.own_metrics().items()
        ]
        note = (
            f"{self.examples:,} examples of {self.name}; labels have the mean "
            f"{self.label_mean:z.4g} and the standard deviation {self.label_deviation:z.4g}."
        )
        return (Table(header=("metric", "value"), rows=rows, note=f"{note}{self.added_text}"),)

    def hub_metrics(self) -> tuple[HubMetric, ...]:
        """Return the squared error and the correlations that are defined."""
        named = (("pearson", "pearsonr", "Pearson"), ("spearman", "spearmanr", "Spearman"))
        found = ((kind, title, getattr(self, name)) for name, kind, title in named)
        correlations = (HubMetric(*each) for each in found if each[2] is not None)
        return (HubMetric("mse", "Mean squared error", self.mse), *correlations)


@dataclass(frozen=True)
class RegressionPredictions(Unclassified):
    """Predicted numbers of a model for every example of a split.

    Raises:
        ValueError: A shape is wrong, or a number is not finite.
    """

    labels: FloatArray  # Shape (n,), float64.
    values: FloatArray  # Shape (n,), float64: the predictions.
    label_names: tuple[str, ...]  # What the numbers measure, one name.
    split: str  # Name of the split, such as "test".
    # Shape (n,), float64: weights of the examples in the metrics; None for 1.
    weights: FloatArray | None = None

    kind: ClassVar[str] = "regression"
    class_names: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        n = len(self.labels)
        check_weights(self.weights, n)
        if self.labels.shape != (n,) or self.values.shape != (n,) or not n:
            raise ValueError(
                f"labels and values must be n numbers each, received {self.labels.shape} and "
                f"{self.values.shape}"
            )
        if not (np.isfinite(self.labels).all() and np.isfinite(self.values).all()):
            raise ValueError("labels and values must be finite")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def errors(self) -> FloatArray:
        """The predictions minus the labels, (n,)."""
        return self.values - self.labels

    @property
    def truth(self) -> FloatArray:
        """The labels, (n,)."""
        return self.labels

    @property
    def choices(self) -> FloatArray:
        """The predictions, (n,)."""
        return self.values

    @property
    def only_prediction(self) -> str | None:
        """The prediction if all examples have the same."""
        return Regression.choice_text(self.values[0], ()) if np.ptp(self.values) == 0 else None

    def report(self) -> RegressionReport:
        """Return the report of the split."""
        values = self.metrics()
        known = {name: None if np.isnan(value) else value for name, value in values.items()}
        mean = float(np.average(self.labels, weights=self.weights))
        variance = float(np.average((self.labels - mean) ** 2, weights=self.weights))
        return RegressionReport(
            split=self.split,
            examples=len(self),
            name=self.label_names[0],
            label_mean=mean,
            label_deviation=variance**0.5,
            mse=values["mse"],
            rmse=values["mse"] ** 0.5,
            mae=values["mae"],
            r2=known["r2"],
            pearson=known["pearson"],
            spearman=self._spearman(),
            is_weighted=self.weights is not None,
        )

    def metrics(self) -> dict[str, float]:
        """Return the metrics that are functions of sums; an undefined one is NaN."""
        return {name: metric.value(self.sums(name)) for name, metric in METRICS.items()}

    def sums(self, metric: str) -> CaseSums:
        """Return the sums from which `metric` is computed."""
        values = METRICS[metric].values
        if values is not None:
            mean = np.full(len(self), np.average(self.labels, weights=self.weights))
            parts = (values(self), values(replace(self, values=mean)), np.ones(len(self)))
            return CaseSums.of_cases(np.stack(parts, axis=1)).weighted(self.weights)
        label, value = self._standardized
        error = label - value
        vectors: tuple[FloatArray, ...] = (error**2, label, label**2, np.ones(len(self)))
        if metric == PEARSON.name:
            vectors = (label * value, label, value, label**2, value**2, np.ones(len(self)))
        return CaseSums.of_cases(np.stack(vectors, axis=1)).weighted(self.weights)

    @cached_property
    def _standardized(self) -> tuple[FloatArray, FloatArray]:
        """Labels and predictions in standard deviations of the labels, around their mean.

        All models have the same labels, so that the sums of their cases can be compared.
        """
        mean = np.average(self.labels, weights=self.weights)
        deviation = np.average((self.labels - mean) ** 2, weights=self.weights) ** 0.5 or 1.0
        return (self.labels - mean) / deviation, (self.values - mean) / deviation

    def _spearman(self) -> float | None:
        pair = self.labels, self.values
        counted = slice(None) if self.weights is None else self.weights > 0
        if any(np.ptp(each[counted]) == 0 for each in pair):
            return None
        labels, values = (_mean_ranks(each, self.weights) for each in pair)
        return replace(self, labels=labels, values=values).metrics()["pearson"]

    @property
    def unit_sums(self) -> CaseSums:
        """The sums of the squared errors."""
        return self.sums(MSE.name)

    def mistakes(self) -> OutcomeMistakes:
        """Return the cases by their absolute errors, the largest first."""
        return OutcomeMistakes(
            scores=np.abs(self.errors),
            names=(),
            support=(),
            counts={},
            confused=lambda label, prediction: self.correct,
            heading="Largest errors",
            ranking="The number is the distance of the prediction from the label.",
        )

    def columns(self, rows: slice) -> Mapping[str, pa.Array]:
        """Return labels and predictions of some rows."""
        import pyarrow as pa

        return {
            "label": pa.array(self.labels[rows]),
            "prediction": pa.array(self.values[rows]),
            **weight_column(self.weights, rows),
        }

    def metadata(self) -> dict[str, Any]:
        """Return the split and what the numbers measure."""
        return {"split": self.split, "label_names": list(self.label_names)}

    @classmethod
    def from_table(cls, table: pa.Table, metadata: Mapping[str, Any]) -> RegressionPredictions:
        """Return the predictions from a table of `columns` and the result of `metadata`."""
        return cls(
            labels=table["label"].to_numpy().astype(np.float64),
            values=table["prediction"].to_numpy().astype(np.float64),
            label_names=tuple(metadata["label_names"]),
            split=metadata["split"],
            weights=read_weights(table),
        )


def _mean_ranks(values: FloatArray, weights: FloatArray | None) -> FloatArray:
    """Return (n,) ranks, equal ones for ties. A row of weight 2 takes as many ranks as two rows."""
    _, place = np.unique(values, return_inverse=True)
    sizes = np.bincount(place, weights)
    ranks: FloatArray = (np.cumsum(sizes) - (sizes - 1) / 2)[place]
    return ranks


@dataclass(frozen=True)
class Regression:
    """Regression: each example has one number."""

    label_names: tuple[str, ...]  # What the numbers measure, one name.
    mean: float = 0.0  # Mean of the training labels, by the weights of their rows.
    scale: float = 1.0  # Their standard deviation, which is the unit of the loss.
    # Error, in the unit of the labels, from which the loss grows linearly; None for squares.
    huber_delta: float | None = None

    name: ClassVar[str] = "regression"
    transformers_type: ClassVar[str | None] = "regression"
    metrics: ClassVar[Mapping[str, Metric]] = METRICS
    printed: ClassVar[tuple[str, ...]] = ("r2", "mse", "mae")
    outcome_type: ClassVar[Any] = RegressionPredictions
    report_type: ClassVar[Any] = RegressionReport

    @classmethod
    def from_settings(
        cls,
        label_names: tuple[str, ...],
        targets: FloatArray,
        settings: LossSettings,
        weights: FloatArray | None = None,
    ) -> Regression:
        """Return the problem for the labels of the data.

        Args:
            label_names: What the numbers measure.
            targets: (n,) labels of the training split.
            settings: The user's choices.
            weights: (n,) weights of the rows; None for 1.

        Raises:
            InputError: All labels are equal.
        """
        counted = targets if weights is None else targets[weights > 0]
        if not np.ptp(counted) > 0:
            raise InputError(
                f"--task regression: all {len(counted)} training labels are {counted[0]:g}, so "
                "there is nothing to learn. Check --label_column_name, and --weight_column: rows "
                "with the weight 0 do not count."
            )
        mean = float(np.average(targets, weights=weights))
        scale = float(np.average((targets - mean) ** 2, weights=weights)) ** 0.5
        return cls(label_names, mean, scale, settings.huber_delta)

    @classmethod
    def from_arguments(
        cls, label_names: tuple[str, ...], arguments: Mapping[str, Any]
    ) -> Regression:
        """Return the problem of a saved model."""
        return cls(label_names)

    def weights(self, targets: FloatArray) -> FloatArray:
        """Return (n,) ones."""
        return np.ones(len(targets))

    def loss(self, logits: Tensor, targets: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """Return the summed loss in units of the variance of the training labels.

        Args:
            logits: (m, 1) float32.
            targets: (m,) float64.
            weights: (m,) factors of the losses of the examples; None for 1.
        """
        delta = None if self.huber_delta is None else self.huber_delta / self.scale
        return summed_squared_error(
            (logits[:, 0] - self.mean) / self.scale,
            (targets - self.mean) / self.scale,
            huber_delta=delta,
            weights=weights,
        )

    def begin_head(self, layer: Any) -> None:
        """Give the outputs of a new last layer the mean and the unit of the training labels."""
        import torch

        with torch.no_grad():
            layer.weight.mul_(self.scale)
            if layer.bias is not None:
                layer.bias.fill_(self.mean)

    @property
    def rule(self) -> Rule:
        """How outputs become answers: they are the answers."""
        return Rule(self.label_names, numbers=True)

    def decode(self, logits: Tensor, inputs: Any = None) -> dict[str, Any]:
        """Return the (m, 1) outputs."""
        return {"values": logits.detach().cpu().numpy()}

    def outcome(
        self, split: str, targets: FloatArray, decoded: Mapping[str, npt.NDArray[Any]]
    ) -> RegressionPredictions:
        """Return the predictions of a split."""
        values = decoded["values"][:, 0].astype(np.float64)
        return RegressionPredictions(targets, values, self.label_names, split)

    def constant(self, train: FloatArray, targets: FloatArray) -> dict[str, Any]:
        """Return the mean of the training labels as the prediction of each example."""
        return {"values": np.full((len(targets), 1), self.mean)}

    def constant_loss(self, train: FloatArray) -> float:
        """Return the loss of predicting the mean of the training labels, per example."""
        import torch

        logits = torch.full((len(train), 1), float(train.mean()), dtype=torch.float64)
        return float(self.loss(logits, torch.from_numpy(train))) / len(train)

    def predicted(self, decoded: Mapping[str, npt.NDArray[Any]]) -> list[tuple[str, float]]:
        """Return the predicted number of each example as text, without a confidence."""
        return [(f"{value:z.6g}", float("nan")) for value in decoded["values"][:, 0].tolist()]

    @staticmethod
    def has_class(
        truth: npt.NDArray[Any], label_names: Sequence[str], index: int
    ) -> npt.NDArray[np.bool_]:
        """Return False everywhere: there are no classes."""
        return np.zeros(len(truth), dtype=np.bool_)

    @staticmethod
    def choice_text(choice: Any, label_names: Sequence[str]) -> str:
        """Return a number as text."""
        return f"{float(choice):z.6g}"

    truth_text = choice_text
