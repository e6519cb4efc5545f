"""The outcome of a split: its predictions, their report, and the protocols of both.

Nothing here imports torch, because comparisons and reports read outcomes without a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt

from ampft.decision import Decisions, Rule
from ampft.errors import listed, quoted
from ampft.metrics.scores import Scores
from ampft.metrics.sums import CaseSums, Metric
from ampft.tasks.report import Report

if TYPE_CHECKING:
    import pyarrow as pa

    from ampft.tasks.loss_settings import LossSettings

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]

WEIGHT = "row_weight"  # column of predictions.parquet


@dataclass(frozen=True, kw_only=True)
class OutcomeMistakes:
    """The mistakes of an outcome with n cases and K classes."""

    # (n,) float64 number by which wrong cases are ranked, largest first: the probability of the
    # wrong answer, 0 to 1, or another share.
    scores: npt.NDArray[np.float64]
    names: Sequence[str]  # Names of the K classes.
    support: Sequence[int]  # Number of cases or units of each class.
    # Number of mistakes by (label, prediction), as indices of `names`.
    counts: Mapping[tuple[int, int], int]
    # Function that returns for a label and a prediction how often each case has this mistake, (n,)
    # booleans or counts.
    confused: Callable[[int, int], npt.NDArray[np.generic]]
    unit: str = "examples"  # What `support` and `counts` count, in the plural.
    # Function that returns which labels or words of a case are wrong, if it has several.
    details: Callable[[int], str] = lambda case: ""
    heading: str = "Most confident errors"  # Heading of the ranked cases.
    # Sentences about the order of the cases.
    ranking: str = "The number is the probability that the model gave to the wrong answer."
    # Whether a mistake is a label taken for another; otherwise the text of the prediction says how
    # good it is.
    has_labels: bool = True


class Outcome(Protocol):
    """The predictions of one model on one split."""

    kind: ClassVar[str]  # Name of the task's problem, such as "single_label".

    @property
    def split(self) -> str:
        """Name of the split."""

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the K classes."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes of `scores` and `confusion`."""

    def __len__(self) -> int:
        """Number of cases, n."""

    @property
    def truth(self) -> npt.NDArray[Any]:
        """The labels of the cases, (n, ...)."""

    @property
    def choices(self) -> npt.NDArray[Any]:
        """The predictions in a compact dtype, (n, ...); equal entries are equal predictions."""

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """Whether the whole prediction of each case is correct, (n,)."""

    @property
    def confidence(self) -> FloatArray:
        """Probability of the prediction of each case, or of its least certain part, (n,)."""

    @property
    def only_prediction(self) -> str | None:
        """The prediction as text if it is the same everywhere; otherwise None."""

    def report(self) -> Report:
        """Return the report of the split."""

    def metrics(self) -> dict[str, float]:
        """Return by name the metrics that are compared, and others that are cheap."""

    def sums(self, metric: str) -> CaseSums:
        """Return the sums from which `metric` is computed."""

    @property
    def unit_sums(self) -> CaseSums:
        """The class counts over `label_names` of the units of each case."""

    def scores(self) -> tuple[Scores, ...]:
        """Return precision, recall, F1 and support of each class."""

    def confusion(self) -> IntArray | None:
        """Return (K, K) counts, row = label, column = prediction; None if it is undefined."""

    def calibration(self, bins: int) -> npt.NDArray[np.float64] | None:
        """Return (3, bins) sums per bin of equal width: count, confidence, number correct.

        None if it is undefined.
        """

    def mistakes(self) -> OutcomeMistakes:
        """Return how the wrong cases are ranked, and which classes are confused."""

    def columns(self, rows: slice) -> Mapping[str, pa.Array]:
        """Return the columns of `predictions.parquet` for the cases `rows`."""

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of a predictions file as JSON values."""

    @classmethod
    def from_table(cls, table: pa.Table, metadata: Mapping[str, Any]) -> Self:
        """Return the outcome from a table of `columns` and the result of `metadata`.

        Raises:
            ValueError: The table is not one of such an outcome.
        """


@runtime_checkable
class TunableOutcome(Outcome, Protocol):
    """Predictions of cases that have one label, or any number of labels, of K."""

    @property
    def decisions(self) -> Decisions:
        """How the probabilities became predictions."""

    @property
    def probabilities(self) -> FloatArray:
        """The (n, K) probabilities, float32, after the temperature."""

    @property
    def logits(self) -> FloatArray | None:
        """The (n, K) logits before the temperature; None unless one is fitted."""

    @property
    def predicted(self) -> npt.NDArray[Any]:
        """The predicted classes, (n,), or whether each label is predicted, (n, K)."""

    @property
    def threshold(self) -> float:
        """Probability from which a label is predicted, if none was tuned."""


class Problem(Protocol):
    """The part of a task that defines its labels."""

    name: ClassVar[str]  # Name of the problem, such as "single_label".
    # Name of the problem in configurations of transformers; None for none.
    transformers_type: ClassVar[str | None]
    # Metrics that are compared with an interval, by name; the primary one first.
    metrics: ClassVar[Mapping[str, Metric]]
    # Names of the metrics that are printed after a validation and at the end of a run.
    printed: ClassVar[tuple[str, ...]]
    outcome_type: ClassVar[type[Outcome]]  # Class of its outcomes.
    report_type: ClassVar[type[Report]]  # Class of its reports.

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the K classes, in the order of the logits."""

    @classmethod
    def from_settings(
        cls, label_names: tuple[str, ...], targets: Any, settings: LossSettings
    ) -> Self:
        """Return the problem of a training.

        Args:
            label_names: Names of the K classes.
            targets: Labels of the training split.
            settings: The user's choices.

        Raises:
            InputError: A setting does not fit the labels.
        """

    @classmethod
    def from_arguments(cls, label_names: tuple[str, ...], arguments: Mapping[str, Any]) -> Self:
        """Return the problem of a saved model.

        Args:
            label_names: Names of the K classes.
            arguments: Arguments of the training, as in run.json.
        """

    def weights(self, targets: Any) -> npt.NDArray[np.float64]:
        """Return the (n,) weight of each example in the loss."""

    def loss(self, logits: Any, targets: Any, *, weights: Any = None) -> Any:
        """Return the loss summed over the examples, a float32 scalar tensor.

        Args:
            logits: (m, K) float32.
            targets: (m, ...) labels.
            weights: (m,) factors of the losses, in addition to class weights; None for 1.
        """

    def decode(self, logits: Any, inputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return predictions from logits: arrays (m, ...), or tensors.

        Args:
            logits: (m, K, ...) float32.
            inputs: The collated batch with its labels; None if labels are unknown.
        """

    def outcome(self, split: str, targets: Any, decoded: Mapping[str, npt.NDArray[Any]]) -> Outcome:
        """Return the outcome of a split.

        Args:
            targets: (n, ...) labels, in the order of the examples, or `UnitLabels`.
            decoded: Results of `decode` for all examples, in order.
        """

    def constant(self, train: Any, targets: Any) -> dict[str, npt.NDArray[Any]]:
        """Return what `decode` would for the model that always predicts the class frequencies.

        Args:
            train: Labels of the training split, from which the frequencies are counted.
            targets: Labels of the n examples to predict.
        """

    def constant_loss(self, train: Any) -> float:
        """Return the loss of that model on the training split, per unit of weight."""

    def predicted(self, decoded: Mapping[str, npt.NDArray[Any]]) -> list[tuple[str, float]]:
        """Return the prediction of each example as text, and its confidence."""

    @staticmethod
    def has_class(
        truth: npt.NDArray[Any], label_names: Sequence[str], index: int
    ) -> npt.NDArray[np.bool_]:
        """Return (n,) whether `Outcome.truth` has the class with an index in `class_names`."""

    @staticmethod
    def choice_text(choice: Any, label_names: Sequence[str]) -> str:
        """Return an entry of `Outcome.choices` as text."""

    @staticmethod
    def truth_text(truth: Any, label_names: Sequence[str]) -> str:
        """Return an entry of `Outcome.truth` as text."""


def main_metrics_text(problem: type[Problem] | Problem, metrics: Mapping[str, float | None]) -> str:
    """Return the first two printed metrics: "accuracy 0.8642, macro F1 0.8635"."""
    return ", ".join(
        f"{problem.metrics[name].title} {'undefined' if value is None else f'{value:z.4f}'}"
        for name in problem.printed[:2]
        for value in (metrics.get(name),)
    )


def check_arrays(
    outcome: Outcome,
    expected: Mapping[str, tuple[npt.NDArray[Any], tuple[int, ...], type]],
    *,
    cases: str = "examples",
) -> None:
    """Check the arrays of an outcome, and that it has cases and at least two distinct label names.

    Args:
        expected: Array, shape and dtype by name.

    Raises:
        ValueError: An array has another shape or dtype, and the message names the first one; there
            is no case; or there are fewer than two names, or one occurs twice.
    """
    for name, (array, shape, dtype) in expected.items():
        if not isinstance(array, np.ndarray):
            raise ValueError(f"{name} must be an array of NumPy, received {quoted(array)}")
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(
                f"{name} must have shape {shape} and dtype {np.dtype(dtype)}, "
                f"received {array.shape} and {array.dtype}"
            )
    if not len(outcome):
        raise ValueError(f"the split {outcome.split!r} has no {cases} to report on")
    names = outcome.label_names
    if len(names) < 2 or len(set(names)) != len(names):
        raise ValueError(f"label_names must be at least two distinct names, received {names}")


def check_ids_complete(ids: IntArray, n: int) -> None:
    """Check that `ids` contains each of 0..n-1 exactly once, in any order.

    Args:
        ids: Example ids, shape (m,), any integer dtype.
        n: Number of examples of the split.

    Raises:
        ValueError: An id is missing, counted twice or outside the split; the message names up to
            five of each.
    """
    unique, counts = np.unique(ids, return_counts=True)
    wrong = {
        "missing": np.setdiff1d(np.arange(n), unique),
        "counted more than once": unique[counts > 1],
        "outside the split": unique[(unique < 0) | (unique >= n)],
    }
    problems = [
        f"{listed(which.astype(str).tolist(), limit=5)} {problem}"
        for problem, which in wrong.items()
        if which.size
    ]
    if problems:
        raise ValueError(
            f"an evaluation must count each of {n} examples once, received {ids.size} ids: "
            + "; ".join(problems)
        )


def problem_with_rule(problem_type: type[Problem], rule: Rule) -> Problem:
    """Return the problem of a saved model, with the labels and decisions of its contract."""
    decided = {"threshold": rule.threshold, "label_separator": rule.separator}
    decided |= rule.decisions.entries(rule.label_names)
    return problem_type.from_arguments(rule.label_names, decided)


def label_config_arguments(problem: Problem) -> dict[str, Any]:
    """Return the labels of a problem as arguments of a configuration of transformers."""
    names, kind = problem.label_names, problem.transformers_type
    return {
        # Replaces the type in the checkpoint, on which transformers.pipeline depends.
        **({} if kind is None else {"problem_type": kind}),
        "num_labels": len(names),
        "id2label": dict(enumerate(names)),
        "label2id": {name: index for index, name in enumerate(names)},
    }


def list_column(
    values: npt.NDArray[Any], lengths: npt.NDArray[np.integer], kind: pa.DataType | None = None
) -> pa.ListArray:
    """Return a column of lists for `predictions.parquet`.

    Args:
        values: The entries of all lists, one list after the other.
        lengths: (n,) number of entries of each list.
        kind: Type of an entry; None for the type of the values.
    """
    import pyarrow as pa

    offsets = np.append(0, np.cumsum(lengths)).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, pa.array(values, kind))


def read_probabilities(table: pa.Table, classes: int) -> FloatArray:
    """Return the (m, classes) probabilities of a table of `predictions.parquet`."""
    flat = table["probabilities"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return flat.astype(np.float32, copy=False).reshape(-1, classes)


def check_weights(weights: npt.NDArray[np.float64] | None, n: int) -> None:
    """Check the weights of n examples.

    Raises:
        ValueError: They are not n finite numbers of at least 0, one of them above 0.
    """
    if weights is None:
        return
    is_valid = weights.shape == (n,) and np.isfinite(weights).all() and (weights >= 0).all()
    if not is_valid or not weights.any():
        raise ValueError(f"weights must be {n} finite numbers of at least 0, and not all 0")


def weight_column(weights: npt.NDArray[np.float64] | None, rows: slice) -> dict[str, pa.Array]:
    """Return the column of the weights in the metrics; none if there are no weights."""
    import pyarrow as pa

    return {} if weights is None else {WEIGHT: pa.array(weights[rows])}


def read_weights(table: pa.Table) -> npt.NDArray[np.float64] | None:
    """Return the weights of a table of `predictions.parquet`; None if it has none."""
    if WEIGHT not in table.column_names:
        return None
    weights: npt.NDArray[np.float64] = table[WEIGHT].to_numpy().astype(np.float64)
    return weights


def answered_column(answered: npt.NDArray[np.bool_] | None, rows: slice) -> dict[str, pa.Array]:
    """Return the column of the rows that are answered; none without abstention."""
    import pyarrow as pa

    return {} if answered is None else {"answered": pa.array(answered[rows])}


def confusion_mistakes(matrix: npt.NDArray[np.int64] | None) -> dict[tuple[int, int], int]:
    """Return the counts of a (K, K) confusion matrix that are mistakes, without zeros."""
    if matrix is None:
        return {}
    cells = np.argwhere(np.asarray(matrix) > 0).tolist()
    return {(row, column): int(matrix[row, column]) for row, column in cells if row != column}


def constant_choice_text(
    choices: npt.NDArray[Any], names: Sequence[str], text: Callable[[Any, Sequence[str]], str]
) -> str | None:
    """Return the text of the choice that all examples have; None if they have several."""
    return text(choices[0], names) if len(np.unique(choices, axis=0)) == 1 else None
