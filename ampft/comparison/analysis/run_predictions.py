"""The predictions of a run on the compared split, reduced to what a comparison needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.comparison.settings import without_interval
from ampft.data.splits import Groups
from ampft.decision import UNTOUCHED, Decisions
from ampft.errors import InputError, did_you_mean
from ampft.metrics.scores import Scores
from ampft.metrics.sums import MACRO_F1, CaseSums
from ampft.runs.predictions import read_groups, read_predictions
from ampft.tasks.outcome import FloatArray, IntArray, Outcome, Problem
from ampft.tasks.table import problem_types
from ampft.text.escaping import inert

PREDICTIONS_FP32_NAME = "predictions_fp32.parquet"
METRIC_TOLERANCE = 1e-9  # relative; metrics are functions of counts and so nearly exact
ROUNDING = 1e-5  # share of a number, or of the spread of the labels
BINS = 10  # of the calibration chart; the calibration error uses the 15 bins of the run's report


@dataclass(frozen=True)
class CaseInputs:
    """How the inputs of cases are read and called."""

    # Function that returns the inputs of some cases, joined, by index.
    read: Callable[[Sequence[int]], Mapping[int, str]] = lambda rows: dict.fromkeys(rows, "")
    noun: str = "texts"  # What the cases are called, in the plural.
    has_words: bool = False  # Whether the inputs have words.


@dataclass(frozen=True, kw_only=True)
class Cases:
    """The cases that every run of a comparison predicts."""

    path: Path  # Predictions file that they were read from.
    kind: str  # Name of the problem.
    split: str  # Name of the split.
    truth: npt.NDArray[Any]  # (n, ...) labels.
    label_names: tuple[str, ...]  # Label names in the order of the logits.
    class_names: tuple[str, ...]  # Names of the classes that are scored.
    groups: Groups | None = None  # Groups of examples that are not independent; None if all are.
    inputs: CaseInputs = CaseInputs()  # Inputs of the cases.

    @property
    def problem(self) -> type[Problem]:
        """The problem that the runs solve."""
        return problem_types()[self.kind]

    @property
    def group_count(self) -> int | None:
        """Number of groups; None if all examples are independent."""
        return len(self.groups) if self.groups else None


@dataclass(frozen=True, kw_only=True)
class RunPredictions:
    """The predictions of one run.

    The probabilities of all classes are not kept, because twenty runs would need GiBs.
    """

    choices: npt.NDArray[Any]  # (n, ...) predictions in compact form.
    correct: npt.NDArray[np.bool_]  # (n,) whether each case is correct as a whole.
    confidence: FloatArray | None  # (n,) float32; None if probabilities are unknown.
    metrics: Mapping[str, float]  # Metrics by name.
    # Contributions of each example, or group of examples, to the sums of the primary metric.
    sums: CaseSums
    scores: tuple[Scores, ...]  # Scores per class.
    # (K, K) int64, labels as rows; None if the problem has no such matrix.
    confusion: IntArray | None
    # (3, BINS) float64: count, sum of confidences, number correct; None likewise.
    bins: npt.NDArray[np.float64] | None
    # Contributions of each example, or group of examples, to the counts per class; None if they are
    # unknown.
    class_sums: CaseSums | None = None
    # (n,) fold of each example, or group of examples, of a cross-validation; None for a test split.
    folds: IntArray | None = None
    # (n,) whether the model would answer each case; None if it answers all, without `--abstain`.
    answered: npt.NDArray[np.bool_] | None = None
    # Hash of predictions and probabilities, which no label has a part in; None if it is unknown.
    sha256: str | None = None


def read_run_predictions(
    path: Path, cases: Cases | None, metric: str, recorded: Mapping[str, Any] | None = None
) -> tuple[RunPredictions, Cases]:
    """Read the predictions of one run.

    Args:
        path: File written by `write_predictions`.
        cases: Cases of the previous runs; None for the first run, which defines them.
        recorded: Metrics in run.json, which the predictions must match in the problem's first
            printed metric; None skips the check.

    Returns:
        The predictions, and the cases that all runs share.

    Raises:
        InputError: The file cannot be read, has other cases, lacks the metric, or does not match
            the record.
    """
    outcome = read_predictions(path)
    if cases is None:
        cases = cases_from_outcome(path, outcome, read_groups(path))
    else:
        _check_same_cases(path, outcome, cases)
    found = predictions_from_outcome(outcome, primary_metric(metric, cases.problem), cases.groups)
    name = cases.problem.printed[0]
    expected = (recorded or {}).get(name)
    if expected is not None:
        _check_recorded(path, found.metrics[name], expected, name, cases.problem)
    return found, cases


def cases_from_outcome(
    path: Path, outcome: Outcome, groups: Groups | None, inputs: CaseInputs | None = None
) -> Cases:
    """Return the cases that an outcome predicts, which was read from `path`."""
    return Cases(
        path=path,
        kind=outcome.kind,
        split=outcome.split,
        truth=outcome.truth,
        label_names=outcome.label_names,
        class_names=outcome.class_names,
        groups=groups,
        inputs=inputs or CaseInputs(),
    )


def primary_metric(metric: str | None, problem: type[Problem]) -> str:
    """Return the name of a metric that was asked for; None stands for the problem's first.

    Raises:
        InputError: The problem has no such metric.
    """
    name = metric or next(iter(problem.metrics))
    if name not in problem.metrics:
        raise InputError(
            f"--metric {name}: the runs have the metrics {', '.join(problem.metrics)}."
            f"{without_interval(name) or did_you_mean(name, problem.metrics)}"
        )
    return name


def _check_recorded(
    path: Path, actual: float, expected: object, metric: str, problem: type[Problem]
) -> None:
    if not isinstance(expected, int | float) or not math.isclose(
        actual, expected, rel_tol=METRIC_TOLERANCE
    ):
        raise InputError(
            f"RUN: {path} has {problem.metrics[metric].title} {actual:.9g}, but the run.json next "
            f"to it has {inert(str(expected))}. One of the two files belongs to another run or was "
            "modified. Copy the folder of the run again, or repeat the run."
        )


def rows_differ(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return (n,) whether the rows of two (n, ...) arrays differ."""
    return (one != other).reshape(len(one), -1).any(axis=1)


def numbers_differ(
    one: npt.NDArray[Any], other: npt.NDArray[Any], spread: float
) -> npt.NDArray[np.bool_]:
    """Return (n,) whether two (n,) arrays of numbers differ by more than rounding in float32.

    Args:
        one: Numbers.
        other: Numbers in the same order.
        spread: Standard deviation of the labels.
    """
    return ~np.isclose(one, other, rtol=ROUNDING, atol=ROUNDING * spread)


def _check_same_cases(path: Path, outcome: Outcome, cases: Cases) -> None:
    properties = {
        "kinds of labels": (cases.kind, outcome.kind),
        "splits": (cases.split, outcome.split),
        "label names": (cases.label_names, outcome.label_names),
        "numbers of examples": (len(cases.truth), len(outcome)),
    }
    for name, (expected, received) in properties.items():
        if expected != received:
            raise InputError(
                f"RUN: {cases.path} and {path} have different {name}: {inert(str(expected))} and "
                f"{inert(str(received))}. Compare runs that report on the same examples."
            )
    if read_groups(path) != cases.groups:
        raise InputError(
            f"RUN: {cases.path} and {path} have different groups of examples. Compare runs with "
            "the same --group_column and the same groups in it, of the same version of ampft."
        )
    # The outcome checks that the ids are 0..n-1 in every file.
    differs = rows_differ(cases.truth, outcome.truth)
    if differs.any():
        raise InputError(
            f"RUN: {cases.path} and {path} have different labels. The number of such examples is "
            f"{int(differs.sum())}, and the first is example {int(differs.argmax())}. Compare runs "
            "that report on the same examples."
        )


def predictions_from_outcome(
    outcome: Outcome, metric: str, groups: Groups | None
) -> RunPredictions:
    """Reduce the predictions of one model to what a comparison needs.

    Args:
        groups: Groups of examples that are not independent; None if all are.
    """
    class_sums: CaseSums | None = None
    sums = outcome.sums(metric)
    if sums.patterns.shape[1] == 3 * len(outcome.class_names) + 1:
        class_sums = sums
    elif MACRO_F1.name in problem_types()[outcome.kind].metrics:
        class_sums = outcome.sums(MACRO_F1.name)
    decisions: Decisions = getattr(outcome, "decisions", UNTOUCHED)
    answered = None
    if decisions.abstention is not None and outcome.confidence is not None:
        answered = decisions.answered(outcome.confidence)
    return RunPredictions(
        answered=answered,
        choices=outcome.choices,
        correct=outcome.correct,
        confidence=outcome.confidence,
        metrics=outcome.metrics(),
        sums=sums if groups is None else sums.grouped(groups.ids),
        scores=outcome.scores(),
        confusion=outcome.confusion(),
        bins=outcome.calibration(BINS),
        class_sums=class_sums
        if class_sums is None or groups is None
        else class_sums.grouped(groups.ids),
    )
