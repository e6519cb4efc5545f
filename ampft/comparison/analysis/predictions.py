"""What the arms predict: examples that flip, figures per class, confusions and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ampft.comparison.analysis.answers import BINS, Answers, Questions
from ampft.comparison.findings import CalibrationBin, ClassFigures, FlippedExample, Flips
from ampft.comparison.statistics.mcnemar import mcnemar_mid_p
from ampft.errors import InputError
from ampft.runs.predictions import OWN_COLUMNS

EXAMPLES = 12
LONGEST_TEXT = 200


def flips(
    questions: Questions,
    answers: Sequence[Answers],
    baseline: Sequence[Answers],
    texts: Path,
) -> Flips:
    """Count what differs, seed by seed, and show a few examples.

    Args:
        questions: The examples.
        answers: Of the arm, by seed.
        baseline: Of the baseline, at the same seeds.
        texts: A predictions.parquet, whose inputs are shown.
    """
    pairs = list(zip(answers, baseline, strict=True))
    flipped = np.stack([_differ(own.choices, base.choices) for own, base in pairs])
    gained = [int((own.right & ~base.right).sum()) for own, base in pairs]
    lost = [int((base.right & ~own.right).sum()) for own, base in pairs]
    per_seed = flipped.sum(axis=1).tolist()
    return Flips(
        per_seed=tuple(per_seed),
        mean=float(np.mean(per_seed)),
        gained=float(np.mean(gained)),
        lost=float(np.mean(lost)),
        mcnemar_mid_p=tuple(mcnemar_mid_p(g, k) for g, k in zip(gained, lost, strict=True)),
        examples=_examples(questions, answers, baseline, flipped, texts),
    )


def _differ(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return (n,) whether entries of (n, ...) arrays differ."""
    differ: npt.NDArray[np.bool_] = (one != other).reshape(len(one), -1).any(axis=1)
    return differ


def _examples(
    questions: Questions,
    answers: Sequence[Answers],
    baseline: Sequence[Answers],
    flipped: npt.NDArray[np.bool_],
    texts: Path,
) -> tuple[FlippedExample, ...]:
    """Return those that flip in most seeds; among equals the surest ones, then the first."""
    times = flipped.sum(axis=0)
    candidates = np.flatnonzero((times > 0) & (times >= _least(times)))
    first = flipped[:, candidates].argmax(axis=0)
    sure, base_sure = (
        np.stack([each.confidence[candidates] for each in side])[first, np.arange(len(first))]
        for side in (answers, baseline)
    )
    order = np.lexsort((candidates, -np.minimum(sure, base_sure), -times[candidates]))[:EXAMPLES]
    shown = read_texts(texts, candidates[order].tolist())
    problem = questions.problem
    names = questions.label_names
    return tuple(
        FlippedExample(
            example_id=(example := int(candidates[k])),
            text=shown[example],
            label=problem.truth_text(questions.truth[example], names),
            seeds=int(times[example]),
            baseline=problem.choice_text(baseline[first[k]].choices[example], names),
            baseline_confidence=float(base_sure[k]),
            arm=problem.choice_text(answers[first[k]].choices[example], names),
            arm_confidence=float(sure[k]),
        )
        for k in order
    )


def _least(times: npt.NDArray[np.integer]) -> int:
    """Return the least number of flips that an example to be shown can have."""
    flipped = times[times > 0]
    if len(flipped) <= EXAMPLES:
        return 1
    return int(np.partition(flipped, -EXAMPLES)[-EXAMPLES])


def read_texts(path: Path, rows: Sequence[int]) -> dict[int, str]:
    """Read the inputs of a few rows of a predictions.parquet, and nothing else of it.

    Args:
        path: Whose rows are the examples 0..n-1 in order.
        rows: Example ids.

    Returns:
        The inputs of each, joined and shortened; empty where the file shows none.

    Raises:
        InputError: The inputs are damaged.
    """
    try:
        return _read_texts(pq.ParquetFile(path), rows)
    except (OSError, pa.ArrowException, ValueError) as error:  # a text that is no UTF-8 too
        raise InputError(
            f"{path}: its texts cannot be read ({error}); copy the file again, or train that run "
            "again"
        ) from error


def _read_texts(file: pq.ParquetFile, rows: Sequence[int]) -> dict[int, str]:
    columns = [name for name in file.schema_arrow.names if name not in OWN_COLUMNS]
    found = dict.fromkeys(rows, "")
    start = 0
    for group in range(file.num_row_groups):
        stop = start + file.metadata.row_group(group).num_rows
        inside = [row for row in found if start <= row < stop]
        if inside and columns:
            table = file.read_row_group(group, columns=columns)
            for row in inside:
                values = (table[name][row - start].as_py() for name in columns)
                found[row] = _shortened(" | ".join(str(value) for value in values))
        start = stop
    return found


def _shortened(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"


def class_figures(
    label_names: Sequence[str], answers: Sequence[Answers], baseline: Sequence[Answers] | None
) -> tuple[ClassFigures, ...]:
    """Return the figures of each class, means over the seeds.

    Args:
        label_names: The C class names.
        answers: Of the arm, by seed.
        baseline: Of the baseline; `None` for the baseline itself.
    """
    figures = []
    for index, name in enumerate(label_names):
        rows = [each.scores[index] for each in answers]
        f1 = float(np.mean([row.f1 for row in rows]))
        others = None if baseline is None else [each.scores[index].f1 for each in baseline]
        figures.append(
            ClassFigures(
                name=name,
                support=rows[0].support,
                precision=float(np.mean([row.precision for row in rows])),
                recall=float(np.mean([row.recall for row in rows])),
                f1=f1,
                f1_difference=None if others is None else f1 - float(np.mean(others)),
            )
        )
    return tuple(figures)


def summed_confusion(answers: Sequence[Answers]) -> tuple[tuple[int, ...], ...]:
    """Return the confusion matrices of all seeds, summed: rows are labels."""
    matrices = [each.confusion for each in answers if each.confusion is not None]
    if not matrices:
        return ()
    return tuple(tuple(row) for row in np.sum(matrices, axis=0).tolist())


def calibration_bins(answers: Sequence[Answers]) -> tuple[CalibrationBin, ...]:
    """Return bins of equal width over the predictions of all seeds."""
    binned = [each.bins for each in answers if each.bins is not None]
    if not binned:
        return ()
    counts, confidences, right = np.sum(binned, axis=0)
    return tuple(
        CalibrationBin(
            low=index / BINS,
            high=(index + 1) / BINS,
            count=int(count),
            confidence=float(confidences[index] / count) if count else None,
            accuracy=float(right[index] / count) if count else None,
        )
        for index, count in enumerate(counts)
    )
