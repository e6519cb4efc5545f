"""What a run answered on the split that is compared, reduced to what a comparison needs of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.errors import InputError, nearest
from ampft.metrics.scores import Scores
from ampft.metrics.sums import CaseSums
from ampft.runs.predictions import read_predictions
from ampft.tasks import problem_types
from ampft.tasks.outcome import FloatArray, IntArray, Outcome, Problem
from ampft.text.escaping import inert

PREDICTIONS_NAME = "predictions.parquet"
PREDICTIONS_FP32_NAME = "predictions_fp32.parquet"
SAME_METRIC = 1e-9  # relative; functions of counts, so nearly exact
BINS = 10  # of the calibration chart; the calibration error keeps the 15 of the run's report


@dataclass(frozen=True, kw_only=True)
class Questions:
    """The cases that every run of a comparison answers.

    Attributes:
        path: The predictions that they were read from.
        kind: Name of the problem.
        split: Name of the split.
        truth: (n, ...) labels.
        label_names: In the order of the logits.
    """

    path: Path
    kind: str
    split: str
    truth: npt.NDArray[Any]
    label_names: tuple[str, ...]

    @property
    def problem(self) -> type[Problem]:
        """The problem that the runs solve."""
        return problem_types()[self.kind]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """One run's answers. The probabilities of all classes are not kept: twenty runs would be GiBs.

    Attributes:
        choices: (n, ...) what was predicted, compact.
        right: (n,) whether each case is right as a whole.
        confidence: (n,) float32.
        metrics: Values by name.
        sums: What each case adds to the sums of the primary metric.
        scores: Scores per class.
        confusion: (K, K) int64, rows are labels; None where there is no such matrix.
        bins: (3, BINS) float64: count, sum of confidences, number right; None likewise.
    """

    choices: npt.NDArray[Any]
    right: npt.NDArray[np.bool_]
    confidence: FloatArray
    metrics: Mapping[str, float]
    sums: CaseSums
    scores: tuple[Scores, ...]
    confusion: IntArray | None
    bins: npt.NDArray[np.float64] | None


def read_answers(path: Path, questions: Questions | None, metric: str) -> tuple[Answers, Questions]:
    """Read one run's predictions.

    Args:
        path: A file that `write_predictions` wrote.
        questions: Those of the runs before; `None` for the first run, whose own they are.
        metric: Name of the primary metric.

    Returns:
        The answers, and the questions that all runs share.

    Raises:
        InputError: The file cannot be read, answers other questions, or has no such metric.
    """
    outcome = read_predictions(path)
    if questions is None:
        questions = questions_of(path, outcome)
    else:
        _check_same(path, outcome, questions)
    check_metric(metric, questions.problem)
    return _reduced(outcome, metric), questions


def questions_of(path: Path, outcome: Outcome) -> Questions:
    """Return the cases that an outcome answers."""
    return Questions(
        path=path,
        kind=outcome.kind,
        split=outcome.split,
        truth=outcome.truth,
        label_names=outcome.label_names,
    )


def check_metric(metric: str, problem: type[Problem]) -> None:
    """Check that runs can be compared by a metric.

    Raises:
        InputError: The problem has no such metric.
    """
    if metric not in problem.metrics:
        raise InputError(
            f"--metric {metric}: these runs have {', '.join(problem.metrics)}."
            f"{nearest(metric, problem.metrics)}"
        )


def check_recorded(
    path: Path, answers: Answers, recorded: Mapping[str, Any] | None, problem: type[Problem]
) -> None:
    """Check that predictions are those that the run's record speaks of.

    Args:
        path: File of the predictions.
        answers: Read from it.
        recorded: The metrics that run.json holds of them; nothing is checked without them.
        problem: Its first printed metric is checked.

    Raises:
        InputError: The metric has another value.
    """
    name = problem.printed[0]
    expected, found = (recorded or {}).get(name), answers.metrics[name]
    if expected is None:
        return
    if not isinstance(expected, int | float) or not math.isclose(
        found, expected, rel_tol=SAME_METRIC
    ):
        title = problem.metrics[name].title
        raise InputError(
            f"RUN: {path} has {title} {found:.9g}, but the run.json beside it says "
            f"{inert(str(expected))}. One of the two belongs to another run or was changed. Copy "
            "the run's folder again, or train that run again."
        )


def _check_same(path: Path, outcome: Outcome, questions: Questions) -> None:
    found = {
        "kinds of labels": (questions.kind, outcome.kind),
        "splits": (questions.split, outcome.split),
        "label names": (questions.label_names, outcome.label_names),
        "numbers of examples": (len(questions.truth), len(outcome)),
    }
    for what, (expected, received) in found.items():
        if expected != received:
            raise InputError(
                f"RUN: {questions.path} and {path} have different {what}: {inert(str(expected))} "
                f"and {inert(str(received))}. Compare runs that report on the same examples."
            )
    # The ids are 0..n-1 in every file: the outcome checks it.
    other = (questions.truth != outcome.truth).reshape(len(outcome), -1).any(axis=1)
    if other.any():
        raise InputError(
            f"RUN: {questions.path} and {path} have different labels for {int(other.sum())} "
            f"examples; the first is example {int(other.argmax())}. Compare runs that report on "
            "the same examples."
        )


def _reduced(outcome: Outcome, metric: str) -> Answers:
    return Answers(
        choices=outcome.choices,
        right=outcome.right,
        confidence=outcome.confidence,
        metrics=outcome.metrics(),
        sums=outcome.sums(metric),
        scores=outcome.scores(),
        confusion=outcome.confusion(),
        bins=outcome.calibration(BINS),
    )
