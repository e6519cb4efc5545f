"""What a run answered on the split that is compared, reduced to what a comparison needs of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.errors import InputError
from ampft.metrics.calibration import expected_calibration_error
from ampft.metrics.predictions import FloatArray, IntArray, Predictions
from ampft.metrics.scores import (
    Scores,
    average_scores,
    class_scores,
    confusion,
    proper_scores,
)
from ampft.runs.predictions import read_predictions
from ampft.text.escaping import inert

PREDICTIONS_NAME = "predictions.parquet"
PREDICTIONS_FP32_NAME = "predictions_fp32.parquet"
SAME_ACCURACY = 1e-9  # relative; a count over a count, so nearly exact
BINS = 10  # of the calibration chart; the calibration error keeps the 15 of the run's report


@dataclass(frozen=True, kw_only=True)
class Questions:
    """The examples that every run of a comparison answers.

    Attributes:
        path: The predictions that they were read from.
        split: Its name.
        labels: Shape (n,), int64.
        label_names: In the order of the logits.
    """

    path: Path
    split: str
    labels: IntArray
    label_names: tuple[str, ...]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.label_names)


@dataclass(frozen=True, kw_only=True)
class Answers:
    """One run's answers. The probabilities of all classes are not kept: twenty runs would be GiBs.

    Attributes:
        predicted: Shape (n,), int16, or int32 with more classes than that holds.
        confidence: Of the predicted class, shape (n,), float32.
        metrics: By name, as `Arm.metrics` has them.
        scores: Per class.
        confusion: Shape (C, C), int64; rows are labels.
        bins: Shape (3, BINS), float64: count, sum of confidences, number right.
    """

    predicted: npt.NDArray[np.signedinteger]
    confidence: FloatArray
    metrics: Mapping[str, float]
    scores: tuple[Scores, ...]
    confusion: IntArray
    bins: npt.NDArray[np.float64]


def read_answers(path: Path, questions: Questions | None) -> tuple[Answers, Questions]:
    """Read one run's predictions.

    Args:
        path: As `write_predictions` writes it.
        questions: Those of the runs before; `None` for the first run, whose own they are.

    Returns:
        The answers, and the questions that all runs share.

    Raises:
        InputError: The file cannot be read, or answers other questions.
    """
    predictions = read_predictions(path)
    if questions is None:
        questions = Questions(
            path=path,
            split=predictions.split,
            labels=predictions.labels,
            label_names=predictions.label_names,
        )
    else:
        _check_same(path, predictions, questions)
    return _reduced(predictions), questions


def check_recorded(path: Path, answers: Answers, recorded: Mapping[str, Any] | None) -> None:
    """Check that predictions are those that the run's record speaks of.

    Args:
        path: Of the predictions.
        answers: Read from it.
        recorded: The metrics that run.json holds of them; without an accuracy nothing is checked.

    Raises:
        InputError: Their accuracy is another one.
    """
    expected, found = (recorded or {}).get("accuracy"), answers.metrics["accuracy"]
    if expected is None:
        return
    if not isinstance(expected, int | float) or not math.isclose(
        found, expected, rel_tol=SAME_ACCURACY
    ):
        raise InputError(
            f"RUN: {path} has an accuracy of {found:.9g}, but the run.json beside it says "
            f"{inert(str(expected))}. One of the two is of another run or was changed; copy the "
            "run's folder again, or train that run again."
        )


def _check_same(path: Path, predictions: Predictions, questions: Questions) -> None:
    found = {
        "splits": (questions.split, predictions.split),
        "label names": (questions.label_names, predictions.label_names),
        "numbers of examples": (len(questions.labels), len(predictions)),
    }
    for what, (expected, received) in found.items():
        if expected != received:
            raise InputError(
                f"RUN: {questions.path} and {path} have other {what}: {inert(str(expected))} and "
                f"{inert(str(received))}. Compare runs that report on the same examples."
            )
    # The ids are 0..n-1 in every file: Predictions checks it.
    other = questions.labels != predictions.labels
    if other.any():
        raise InputError(
            f"RUN: {questions.path} and {path} have other labels for {int(other.sum())} examples, "
            f"the first is example {int(other.argmax())}. Compare runs that report on the same "
            "examples."
        )


def _reduced(predictions: Predictions) -> Answers:
    labels, predicted = predictions.labels, predictions.predicted
    confidence = predictions.confidence
    classes = len(predictions.label_names)
    rows = class_scores(labels, predicted, classes)
    counts = np.asarray(confusion(labels, predicted, classes), dtype=np.int64)
    log_loss, brier = proper_scores(predictions)
    small = np.int16 if classes <= np.iinfo(np.int16).max else np.int32
    return Answers(
        predicted=predicted.astype(small),
        confidence=confidence,
        metrics={
            "accuracy": float(np.trace(counts) / counts.sum()),
            "macro_f1": average_scores(rows, weighted=False).f1,
            "balanced_accuracy": float(np.mean([row.recall for row in rows if row.support])),
            "matthews": _matthews(counts),
            "log_loss": log_loss,
            "brier": brier,
            "ece": expected_calibration_error(predictions),
        },
        scores=rows,
        confusion=counts,
        bins=_bins(confidence.astype(np.float64), labels == predicted),
    )


def _matthews(counts: IntArray) -> float:
    """Return what `flat_scores` does, from the confusion matrix: 20 million labels take a while.

    Source: Gorodkin, "Comparing two K-category assignments by a K-category correlation
    coefficient", Computational Biology and Chemistry 28, 2004.
    """
    total, right = float(counts.sum()), float(np.trace(counts))
    supports, guesses = counts.sum(axis=1).astype(float), counts.sum(axis=0).astype(float)
    spread = (total**2 - guesses @ guesses) * (total**2 - supports @ supports)
    return float((right * total - supports @ guesses) / np.sqrt(spread)) if spread > 0 else 0.0


def _bins(
    confidence: npt.NDArray[np.float64], right: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    # ((m-1)/M, m/M], as in `ampft.metrics.calibration`.
    bin_of = np.digitize(confidence, np.arange(1, BINS) / BINS, right=True)
    weights = (None, confidence, right)
    return np.stack([np.bincount(bin_of, weights=w, minlength=BINS) for w in weights]).astype(
        np.float64
    )
