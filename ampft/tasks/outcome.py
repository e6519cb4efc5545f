"""What a task makes of the predictions of one split: the outcome, its report, and how both read.

Nothing here imports torch: comparisons and reports read outcomes where no model is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from ampft.metrics.scores import Scores
from ampft.metrics.sums import CaseSums, Metric
from ampft.text.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class HubMetric:
    """A metric under the name that the hub has for it, for the metadata of a model card."""

    kind: str
    title: str
    value: float
    arguments: Mapping[str, str] | None = None


class Report(Protocol):
    """Every metric of one split, to be printed, written and read back."""

    @property
    def split(self) -> str:
        """Name of the split."""
        ...

    @property
    def examples(self) -> int:
        """Number of examples of the split."""
        ...

    def metrics(self) -> dict[str, float | None]:
        """Return the scalar metrics by name; None where one is undefined."""
        ...

    def text(self) -> str:
        """Return the report for a terminal."""
        ...

    def tables(self) -> tuple[Table, ...]:
        """Return the tables that a model card shows."""
        ...

    def hub_metrics(self) -> tuple[HubMetric, ...]:
        """Return the metrics that the metadata of a model card names, the primary one first."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, every scalar metric under its name."""
        ...

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the report that `as_dict` was made of.

        Raises:
            ValueError: The values are not those of a report.
        """
        ...


class Outcome(Protocol):
    """The predictions of one model on one split, as their task understands them.

    Attributes:
        kind: Name of the task's problem, such as "single_label".
    """

    kind: ClassVar[str]

    @property
    def split(self) -> str:
        """Name of the split."""
        ...

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the K classes."""
        ...

    def __len__(self) -> int:
        """Number of cases, n."""
        ...

    @property
    def truth(self) -> npt.NDArray[Any]:
        """The labels of the cases, (n, ...)."""
        ...

    @property
    def choices(self) -> npt.NDArray[Any]:
        """What was predicted, (n, ...) in a compact dtype; equal entries are equal predictions."""
        ...

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """Whether each case is predicted right as a whole, (n,)."""
        ...

    @property
    def confidence(self) -> FloatArray:
        """How sure the model is of its prediction of each case, (n,) in [0, 1]."""
        ...

    def report(self) -> Report:
        """Return every metric of the split."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return the metrics that are compared, and others that are cheap, by name."""
        ...

    def sums(self, metric: str) -> CaseSums:
        """Return what each case adds to the sums that `metric` is a function of."""
        ...

    def scores(self) -> tuple[Scores, ...]:
        """Return precision, recall, F1 and support of each class."""
        ...

    def confusion(self) -> IntArray | None:
        """Return (K, K) counts, row = label, column = prediction; None where there is no such."""
        ...

    def calibration(self, bins: int) -> npt.NDArray[np.float64] | None:
        """Return (3, bins) sums per bin of equal width: count, confidence, right; None likewise."""
        ...

    def columns(self, rows: slice) -> Mapping[str, pa.Array]:
        """Return the columns of `predictions.parquet` for some cases: label, prediction, ..."""
        ...

    def metadata(self) -> dict[str, Any]:
        """Return what a predictions file says of all its rows, as JSON values."""
        ...

    @classmethod
    def from_table(cls, table: pa.Table, metadata: Mapping[str, Any]) -> Self:
        """Return the outcome that `columns` and `metadata` were made of.

        Raises:
            ValueError: The table is not that of such an outcome.
        """
        ...


class Problem(Protocol):
    """The part of a task that knows what a label is.

    Attributes:
        name: Name of the problem, such as "single_label".
        metrics: Metrics that are compared with an interval, by name; the primary one first.
        printed: Names of the metrics that a validation and the last line of a run print.
        outcome_type: Class of its outcomes.
        report_type: Class of its reports.
    """

    name: ClassVar[str]
    metrics: ClassVar[Mapping[str, Metric]]
    printed: ClassVar[tuple[str, ...]]
    outcome_type: ClassVar[type[Outcome]]
    report_type: ClassVar[type[Report]]

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the K classes, in the order of the logits."""
        ...

    @classmethod
    def from_arguments(cls, label_names: tuple[str, ...], arguments: Mapping[str, Any]) -> Self:
        """Return the problem that a saved model solves.

        Args:
            label_names: Names of the K classes.
            arguments: What the user set in training, as run.json has it.
        """
        ...

    def model_arguments(self) -> dict[str, Any]:
        """Return what a configuration of transformers needs to know of the labels."""
        ...

    def weights(self, targets: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Return the (n,) weight of each example in the loss."""
        ...

    def loss(self, logits: Any, targets: Any) -> Any:
        """Return the loss summed over the examples, a float32 scalar tensor.

        Args:
            logits: (m, K) float32.
            targets: (m, ...) as `targets` of the data gave them.
        """
        ...

    def decode(self, logits: Any) -> dict[str, Any]:
        """Return what is kept of (m, K) float32 logits: tensors (m, ...) on the same device."""
        ...

    def outcome(
        self,
        split: str,
        targets: npt.NDArray[Any],
        kept: Mapping[str, npt.NDArray[Any]],
    ) -> Outcome:
        """Return the outcome of a split.

        Args:
            split: Name of the split.
            targets: (n, ...) labels, in the order of the examples.
            kept: What `decode` returned, all examples in order.
        """
        ...

    def predicted(self, kept: Mapping[str, npt.NDArray[Any]]) -> list[tuple[str, float]]:
        """Return what a person is told of each example: the prediction and its confidence."""
        ...

    @staticmethod
    def choice_text(choice: Any, label_names: Sequence[str]) -> str:
        """Return an entry of `Outcome.choices` in words."""
        ...

    @staticmethod
    def truth_text(truth: Any, label_names: Sequence[str]) -> str:
        """Return an entry of `Outcome.truth` in words."""
        ...


def headline(problem: type[Problem] | Problem, metrics: Mapping[str, float | None]) -> str:
    """Return the printed metrics in words: "accuracy 0.8549, macro F1 0.8552"."""
    return ", ".join(
        f"{problem.metrics[name].title} {'undefined' if value is None else f'{value:.4f}'}"
        for name in problem.printed[:2]
        for value in (metrics.get(name),)
    )


def check_shapes(expected: Mapping[str, tuple[npt.NDArray[Any], tuple[int, ...], type]]) -> None:
    """Check that arrays have the shape and dtype that are named beside them.

    Raises:
        ValueError: Names the first one that does not.
    """
    for name, (array, shape, dtype) in expected.items():
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(
                f"{name} must have shape {shape} and dtype {np.dtype(dtype)}, "
                f"got {array.shape} and {array.dtype}"
            )


def check_names(label_names: Sequence[str]) -> None:
    """Check that there are two or more distinct label names.

    Raises:
        ValueError: There are not.
    """
    if len(label_names) < 2 or len(set(label_names)) != len(label_names):
        raise ValueError(f"label_names must be two or more distinct, got {tuple(label_names)}")


def check_census(ids: IntArray, n: int) -> None:
    """Check that `ids` holds each of 0..n-1 exactly once, in any order.

    Args:
        ids: Example ids, shape (m,), any integer dtype.
        n: Number of examples of the split.

    Raises:
        ValueError: When an id is missing, counted twice or foreign; the message names up to
            five of each.
    """
    unique, counts = np.unique(ids, return_counts=True)
    found = {
        "missing": np.setdiff1d(np.arange(n), unique),
        "counted more than once": unique[counts > 1],
        "outside the split": unique[(unique < 0) | (unique >= n)],
    }
    problems = [f"{_some(which)} {problem}" for problem, which in found.items() if which.size]
    if problems:
        raise ValueError(
            f"an evaluation must count each of {n} examples once, got {ids.size} ids: "
            + "; ".join(problems)
        )


def _some(ids: IntArray, limit: int = 5) -> str:
    shown = ", ".join(str(i) for i in ids[:limit])
    return shown if ids.size <= limit else f"{shown} and {ids.size - limit} more"
