"""Finds the most confident errors of a run and its most confused pairs, for every task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from ampft.errors import InputError
from ampft.runs.finished import PREDICTIONS_NAME
from ampft.runs.manifest import check_files
from ampft.runs.predictions import RESERVED_COLUMNS, read_predictions
from ampft.runs.record import RunRecord, read_record
from ampft.runs.show import problem_of
from ampft.tasks.multi_label import MultiLabelPredictions
from ampft.tasks.outcome import Outcome, headline

ORIGINS = ("id", "file", "file_line", "file_row")
PAIR_EXAMPLES = 3
ONE_LABEL = "single_label"
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Mistake:
    """A case whose prediction is wrong.

    Attributes:
        case: Row of the split.
        label: Its label.
        prediction: Its prediction.
        confidence: Probability of the wrong prediction, 0 to 1.
        details: The labels that are missed and wrong, if a case has several; otherwise empty.
        inputs: Input columns of the case by name: texts, or a reference.
        origin: Where the case comes from: its id, or line or row of the file.
    """

    case: int
    label: str
    prediction: str
    confidence: float
    details: str
    inputs: dict[str, str]
    origin: str


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
    """

    record: RunRecord
    split: str
    cases: int
    wrong: int
    summary: str
    confident: tuple[Mistake, ...]
    pairs: tuple[ConfusedPair, ...]
    pair_unit: str


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
    shown = sorted({*order[:limit].tolist(), *(c for cases in examples.values() for c in cases)})
    rows = _rows(path, shown)

    def mistake(case: int) -> Mistake:
        inputs, origin = rows[case]
        return Mistake(
            case=case,
            label=problem.truth_text(outcome.truth[case], outcome.label_names),
            prediction=problem.choice_text(outcome.choices[case], outcome.label_names),
            confidence=float(confidence[case]),
            details=_details(outcome, case),
            inputs=inputs,
            origin=origin,
        )

    names, support = outcome.class_names, [scores.support for scores in outcome.scores()]
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
                support=support[label] if label < len(support) else 0,
                reverse=counts.get((prediction, label), 0),
                examples=tuple(map(mistake, examples[label, prediction])),
            )
            for label, prediction in cells
        ),
        pair_unit=_pair_unit(outcome),
    )


def _confidence(outcome: Outcome) -> npt.NDArray[np.float64]:
    """Return the probability of the prediction of each case, or of its worst wrong decision."""
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
    matrix = outcome.confusion()
    if matrix is None:
        return counts
    for label, prediction in np.argwhere(np.asarray(matrix) > 0).tolist():
        if label != prediction:
            counts[label, prediction] = int(matrix[label, prediction])
    return counts


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
    elif outcome.kind == ONE_LABEL:
        is_pair = (outcome.truth == label) & (outcome.choices == prediction)
    else:  # units of a case, such as tokens or pixels
        return []
    cases: list[int] = order[is_pair[order]].tolist()
    return cases


def _details(outcome: Outcome, case: int) -> str:
    if not isinstance(outcome, MultiLabelPredictions):
        return ""
    parts = []
    for title, decided in zip(("missed", "wrong"), _missed_and_wrong(outcome), strict=True):
        listed = _with_probability(outcome, case, _indices(decided[case]))
        parts += [f"{title}: {listed}"] if listed else []
    return "; ".join(parts)


def _with_probability(outcome: MultiLabelPredictions, case: int, labels: Sequence[int]) -> str:
    return ", ".join(
        f"{outcome.label_names[k]} ({outcome.probabilities[case, k]:.2f})" for k in labels
    )


def _pair_unit(outcome: Outcome) -> str:
    if isinstance(outcome, MultiLabelPredictions):
        return "examples in which the label is missed and the other is predicted"
    return "examples" if outcome.kind == ONE_LABEL else "units"


def _rows(path: Path, cases: Sequence[int]) -> dict[int, tuple[dict[str, str], str]]:
    """Return the inputs and the origin of some cases, by case."""
    file = pq.ParquetFile(path.absolute())
    names = file.schema_arrow.names
    inputs = [name for name in names if name not in RESERVED_COLUMNS]
    origins = [name for name in ORIGINS if name in names]
    table = file.read(columns=[*inputs, *origins]).take(list(cases)).to_pylist()
    return {
        case: (
            {name: str(row[name]) for name in inputs},
            ", ".join(f"{name.replace('_', ' ')} {_value(row[name])}" for name in origins)
            or f"row {case}",
        )
        for case, row in zip(cases, table, strict=True)
    }


def _value(value: Any) -> str:
    return "unknown" if value is None else str(value)
