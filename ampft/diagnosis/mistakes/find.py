"""Finds the most confident errors of a run and its most confused pairs, for every task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.errors import InputError
from ampft.kinds.views import CasePrediction
from ampft.runs.case_views import CaseViews
from ampft.runs.finished import PREDICTIONS_NAME
from ampft.runs.manifest import check_files
from ampft.runs.predictions import is_input, read_predictions, read_rows
from ampft.runs.record import RunRecord, read_record
from ampft.runs.show import problem_of
from ampft.tasks.multi_label import MultiLabelPredictions
from ampft.tasks.outcome import Outcome, headline
from ampft.tasks.pixel_outcome import PixelPredictions
from ampft.tasks.token_labels import TokenPredictions
from ampft.tasks.token_report import NO_TYPE
from ampft.text.shown_case import ShownCase

ORIGINS = ("id", "file", "file_line", "file_row", "position")
PAIR_EXAMPLES = 3
BoolArray = npt.NDArray[np.bool_]
PAIRS_WITH_FILES = 6  # pairs whose examples are shown if these are pictures or sounds
WRONG_WORDS = 8  # of a sentence that are listed
MOST_CONFIDENT = "Most confident errors"
WORST_MASKS = "Images with the most wrong pixels"
RANKING = "The number is the probability that the model gave to the wrong answer."
RANKING_OF_WORDS = (
    "The number is the probability of the most confident wrong tag of the sentence. Label and "
    "prediction agree on spans with a solid green line, and not on those with a dashed red one. "
    "The list of wrong words begins with the one whose label was least probable."
)
RANKING_OF_PIXELS = "The number is the share of the pixels that are wrong."


@dataclass(frozen=True)
class Mistake:
    """A case whose prediction is wrong.

    Attributes:
        case: Row of the split.
        label: Its label; empty if `prediction` says how good the prediction is.
        prediction: Its prediction.
        confidence: Probability of the wrong prediction, 0 to 1; of masks, the share of wrong
            pixels.
        details: The labels or words that are wrong, if a case has several; otherwise empty.
        inputs: Input columns of the case by name: texts, or a reference.
        origin: Where the case comes from: its id, or line or row of the file.
        shown: The case as the page shows it.
    """

    case: int
    label: str
    prediction: str
    confidence: float
    details: str
    inputs: dict[str, str]
    origin: str
    shown: ShownCase

    @property
    def statement(self) -> str:
        """The label and the prediction in words."""
        return f"{self.label} predicted as {self.prediction}" if self.label else self.prediction


@dataclass(frozen=True)
class ConfusedPair:
    """A class that is taken for another.

    Attributes:
        label: The class.
        prediction: The class that is predicted.
        count: Number of cases or units for which this happened.
        support: Number of those of the class.
        reverse: Number of those for which the opposite happened.
        examples: The most confident of these mistakes, if they are cases.
    """

    label: str
    prediction: str
    count: int
    support: int
    reverse: int
    examples: tuple[Mistake, ...]


@dataclass(frozen=True)
class Mistakes:
    """The mistakes of a run on its final split.

    Attributes:
        record: Record of the run.
        split: Name of the split.
        cases: Number of cases.
        wrong: Number of cases whose prediction is wrong.
        summary: Metrics of the split.
        confident: The most confident errors, the most confident first.
        pairs: The most confused pairs, the most frequent first.
        pair_unit: What `pairs` count, in the plural.
        heading: Heading of `confident`.
        ranking: What `confident` is ordered by, in sentences.
    """

    record: RunRecord
    split: str
    cases: int
    wrong: int
    summary: str
    confident: tuple[Mistake, ...]
    pairs: tuple[ConfusedPair, ...]
    pair_unit: str
    heading: str
    ranking: str


def find_mistakes(folder: Path, limit: int) -> Mistakes:
    """Return the mistakes of a finished run.

    Args:
        folder: Output folder of the run.
        limit: Number of confident errors, and of pairs.

    Raises:
        InputError: The folder does not hold a finished run, or its predictions were changed.
    """
    record = read_record(folder)
    if record.status != "finished":
        raise InputError(f"RUN {folder}: the run is {record.status}; it has no predictions.")
    check_files(folder, record.files, [PREDICTIONS_NAME])
    path = folder / PREDICTIONS_NAME
    outcome, problem = read_predictions(path), problem_of(record)
    wrong = np.flatnonzero(~outcome.correct)
    confidence = _confidence(outcome)
    order = wrong[np.argsort(-confidence[wrong], kind="stable")]
    counts = _pair_counts(outcome)
    cells = sorted(counts, key=lambda cell: (-counts[cell], cell))[:limit]
    examples = {cell: _cases_of(outcome, order, cell)[:PAIR_EXAMPLES] for cell in cells}
    if record.data.kind in ("image", "sound", "pixels"):
        examples |= {cell: [] for cell in cells[PAIRS_WITH_FILES:]}
    views = CaseViews(record, outcome.split, outcome.label_names)
    truth, choices = outcome.truth, outcome.choices
    is_mask = isinstance(outcome, PixelPredictions)
    shown = sorted({*order[:limit].tolist(), *(c for cases in examples.values() for c in cases)})
    rows = _rows(path, shown)

    @cache
    def mistake(case: int) -> Mistake:
        inputs, origin = rows[case]
        prediction = CasePrediction("prediction", choices[case], path)
        return Mistake(
            case=case,
            label="" if is_mask else problem.truth_text(truth[case], outcome.label_names),
            prediction=problem.choice_text(choices[case], outcome.label_names),
            confidence=float(confidence[case]),
            details=_details(outcome, case),
            inputs=inputs,
            origin=origin,
            shown=views.show(case, inputs, truth[case], [prediction]),
        )

    names, support = _pair_classes(outcome)
    return Mistakes(
        record=record,
        split=outcome.split,
        cases=len(outcome),
        wrong=len(wrong),
        summary=headline(problem, outcome.metrics()),
        confident=tuple(mistake(case) for case in order[:limit].tolist()),
        pairs=tuple(
            ConfusedPair(
                label=names[label],
                prediction=names[prediction],
                count=counts[label, prediction],
                support=support[label],
                reverse=counts.get((prediction, label), 0),
                examples=tuple(map(mistake, examples[label, prediction])),
            )
            for label, prediction in cells
        ),
        pair_unit=_pair_unit(outcome),
        heading=WORST_MASKS if is_mask else MOST_CONFIDENT,
        ranking=_ranking(outcome),
    )


def _confidence(outcome: Outcome) -> npt.NDArray[np.float64]:
    """Return the probability of the prediction of each case, or of its worst wrong decision.

    Of masks, return the share of wrong pixels: nearly every image has some.
    """
    if isinstance(outcome, PixelPredictions):
        return 1 - outcome.pixel_accuracies
    if isinstance(outcome, TokenPredictions):
        probabilities = np.where(outcome.word_is_correct, 0, outcome.probabilities.max(axis=1))
        starts = np.cumsum(outcome.counts) - outcome.counts
        return np.maximum.reduceat(probabilities, starts).astype(np.float64)
    if isinstance(outcome, MultiLabelPredictions):
        is_wrong = outcome.predicted != outcome.labels
        return np.where(is_wrong, outcome.decision_confidence, 0).max(axis=1).astype(np.float64)
    return np.asarray(outcome.confidence, dtype=np.float64)


def _pair_counts(outcome: Outcome) -> Counter[tuple[int, int]]:
    """Return the number of mistakes by (label, prediction), as indices of `class_names`."""
    counts: Counter[tuple[int, int]] = Counter()
    if isinstance(outcome, MultiLabelPredictions):
        for missed, wrong in zip(*_missed_and_wrong(outcome), strict=True):
            counts.update(product(_indices(missed), _indices(wrong)))
        return counts
    matrix = _confusion(outcome)
    if matrix is None:
        return counts
    for label, prediction in np.argwhere(np.asarray(matrix) > 0).tolist():
        if label != prediction:
            counts[label, prediction] = int(matrix[label, prediction])
    return counts


def _confusion(outcome: Outcome) -> npt.NDArray[np.int64] | None:
    """Return counts of cases or units; of words with entities, the last class is O."""
    if isinstance(outcome, TokenPredictions):
        return np.array(outcome.report().type_confusion, dtype=np.int64)
    return outcome.confusion()


def _pair_classes(outcome: Outcome) -> tuple[tuple[str, ...], list[int]]:
    """Return the names of the classes of pairs, and the number of cases or units of each."""
    if isinstance(outcome, TokenPredictions):
        matrix = _confusion(outcome)
        assert matrix is not None, "words always have one"
        return (*outcome.class_names, NO_TYPE)[: len(matrix)], matrix.sum(axis=1).tolist()
    return outcome.class_names, [scores.support for scores in outcome.scores()]


def _missed_and_wrong(outcome: MultiLabelPredictions) -> tuple[BoolArray, BoolArray]:
    """Return (n, K) the labels that are not predicted, and the predictions that are not labels."""
    return outcome.labels & ~outcome.predicted, outcome.predicted & ~outcome.labels


def _indices(mask: BoolArray) -> list[int]:
    found: list[int] = np.flatnonzero(mask).tolist()
    return found


def _cases_of(outcome: Outcome, order: npt.NDArray[np.intp], cell: tuple[int, int]) -> list[int]:
    """Return the cases in which a label was taken for another, in the given order."""
    label, prediction = cell
    if isinstance(outcome, MultiLabelPredictions):
        missed, wrong = _missed_and_wrong(outcome)
        is_pair = missed[:, label] & wrong[:, prediction]
    elif isinstance(outcome, TokenPredictions):
        labels, predicted = outcome.word_types()
        is_pair = outcome.sentences.sums((labels == label) & (predicted == prediction)) > 0
    elif isinstance(outcome, PixelPredictions):
        pixels = outcome.counts[:, label, prediction]
        return [case for case in np.argsort(-pixels, kind="stable").tolist() if pixels[case]]
    else:
        is_pair = (outcome.truth == label) & (outcome.choices == prediction)
    cases: list[int] = order[is_pair[order]].tolist()
    return cases


def _details(outcome: Outcome, case: int) -> str:
    if isinstance(outcome, TokenPredictions):
        return _wrong_words(outcome, case)
    if not isinstance(outcome, MultiLabelPredictions):
        return ""
    parts = []
    for title, decided in zip(("missed", "wrong"), _missed_and_wrong(outcome), strict=True):
        listed = _with_probability(outcome, case, _indices(decided[case]))
        parts += [f"{title}: {listed}"] if listed else []
    return "; ".join(parts)


def _wrong_words(outcome: TokenPredictions, case: int) -> str:
    """Return the wrong words of a sentence by number, that with the least probable label first."""
    end = int(outcome.counts[: case + 1].sum())
    words = np.arange(end - outcome.counts[case], end)
    of_label = outcome.probabilities[words, outcome.labels[words]]
    wrong = np.flatnonzero(~outcome.word_is_correct[words])
    order = wrong[np.argsort(of_label[wrong], kind="stable")]
    names, predicted = outcome.label_names, outcome.predicted[words]
    listed = [
        f"word {i + 1}: {names[predicted[i]]} "
        f"({outcome.probabilities[words[i], predicted[i]]:.2f}) for "
        f"{names[outcome.labels[words[i]]]} ({of_label[i]:.2f})"
        for i in order[:WRONG_WORDS].tolist()
    ]
    more = len(order) - WRONG_WORDS
    return "; ".join(listed) + (f"; and {more} more" if more > 0 else "")


def _with_probability(outcome: MultiLabelPredictions, case: int, labels: Sequence[int]) -> str:
    return ", ".join(
        f"{outcome.label_names[k]} ({outcome.probabilities[case, k]:.2f})" for k in labels
    )


def _pair_unit(outcome: Outcome) -> str:
    if isinstance(outcome, MultiLabelPredictions):
        return "examples in which the label is missed and the other is predicted"
    if isinstance(outcome, TokenPredictions):
        return "words"
    return "pixels" if isinstance(outcome, PixelPredictions) else "examples"


def _ranking(outcome: Outcome) -> str:
    if isinstance(outcome, TokenPredictions):
        return RANKING_OF_WORDS
    return RANKING_OF_PIXELS if isinstance(outcome, PixelPredictions) else RANKING


def _rows(path: Path, cases: Sequence[int]) -> dict[int, tuple[dict[str, str], str]]:
    """Return the inputs and the origin of some cases, by case."""
    found = read_rows(path, cases, lambda name: is_input(name) or name in ORIGINS)
    return {
        case: (
            {name: str(value) for name, value in row.items() if is_input(name)},
            ", ".join(
                f"{name.replace('_', ' ')} {_value(row[name])}" for name in ORIGINS if name in row
            )
            or f"row {case}",
        )
        for case, row in found.items()
    }


def _value(value: Any) -> str:
    return "unknown" if value is None else str(value)
