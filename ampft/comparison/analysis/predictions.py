"""Changed predictions, figures per class, confusion matrices and calibration of the arms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ampft.comparison.analysis.run_predictions import BINS, Cases, RunPredictions, rows_differ
from ampft.comparison.findings import (
    CalibrationBin,
    ClassDifference,
    ClassFigures,
    FlippedExample,
    Flips,
)
from ampft.comparison.statistics.mcnemar import mcnemar_mid_p
from ampft.data.groups import Groups
from ampft.runs.predictions import is_input, read_rows

# Maps example ids to the inputs of these examples, joined.
Texts = Callable[[Sequence[int]], Mapping[int, str]]

MAX_EXAMPLES = 12
MAX_TEXT_LENGTH = 200  # characters


def flips(
    cases: Cases,
    predictions: Sequence[RunPredictions],
    baseline: Sequence[RunPredictions],
    texts: Texts,
) -> Flips:
    """Count changed predictions seed by seed, and choose a few examples.

    Args:
        cases: Cases that are predicted.
        predictions: Predictions of the arm, by seed.
        baseline: Predictions of the baseline with the same seeds.
        texts: Function that returns the inputs of examples.
    """
    pairs = list(zip(predictions, baseline, strict=True))
    flipped = np.stack([rows_differ(arm.choices, base.choices) for arm, base in pairs])
    gained = [int((arm.correct & ~base.correct).sum()) for arm, base in pairs]
    lost = [int((base.correct & ~arm.correct).sum()) for arm, base in pairs]
    per_seed = flipped.sum(axis=1).tolist()
    return Flips(
        per_seed=tuple(per_seed),
        mean=float(np.mean(per_seed)),
        gained=float(np.mean(gained)),
        lost=float(np.mean(lost)),
        mcnemar_mid_p=tuple(_mcnemar(arm, base, cases.groups) for arm, base in pairs),
        examples=_examples(cases, predictions, baseline, flipped, texts),
    )


def _mcnemar(arm: RunPredictions, base: RunPredictions, groups: Groups | None) -> float:
    """Return McNemar's mid-p; a group counts once, by the sign of its net gain."""
    gain = arm.correct.astype(np.int64) - base.correct
    if groups is not None:
        gain = np.rint(np.bincount(groups.ids, weights=gain)).astype(np.int64)
    return mcnemar_mid_p(int((gain > 0).sum()), int((gain < 0).sum()))


def _examples(
    cases: Cases,
    predictions: Sequence[RunPredictions],
    baseline: Sequence[RunPredictions],
    flipped: npt.NDArray[np.bool_],
    texts: Texts,
) -> tuple[FlippedExample, ...]:
    """Return the examples that flip for the most seeds; ties by confidence, then by id."""
    times = flipped.sum(axis=0)
    candidates = np.flatnonzero((times > 0) & (times >= _min_flips(times)))
    first = flipped[:, candidates].argmax(axis=0)
    confidence, base_confidence = (
        _confidences(side, first, candidates) for side in (predictions, baseline)
    )
    by_confidence = -np.minimum(confidence, base_confidence)
    order = np.lexsort((candidates, by_confidence, -times[candidates]))[:MAX_EXAMPLES]
    text_of = texts(candidates[order].tolist())
    problem = cases.problem
    names = cases.label_names
    return tuple(
        FlippedExample(
            example_id=(example := int(candidates[k])),
            text=truncated(text_of[example]),
            label=problem.truth_text(cases.truth[example], names),
            seeds=int(times[example]),
            baseline=problem.choice_text(baseline[first[k]].choices[example], names),
            baseline_confidence=_finite(base_confidence[k]),
            arm=problem.choice_text(predictions[first[k]].choices[example], names),
            arm_confidence=_finite(confidence[k]),
        )
        for k in order
    )


def _confidences(
    predictions: Sequence[RunPredictions],
    seeds: npt.NDArray[np.integer],
    cases: npt.NDArray[np.integer],
) -> npt.NDArray[np.floating]:
    """Return the confidence of each case at its seed; NaN if no probabilities are known."""
    if any(each.confidence is None for each in predictions):
        return np.full(len(cases), np.nan)
    confidences = np.stack([each.confidence[cases] for each in predictions])  # type: ignore[index]
    return confidences[seeds, np.arange(len(cases))]


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _min_flips(times: npt.NDArray[np.integer]) -> int:
    """Return the minimum number of flips of an example that can be among the chosen ones."""
    flipped = times[times > 0]
    if len(flipped) <= MAX_EXAMPLES:
        return 1
    return int(np.partition(flipped, -MAX_EXAMPLES)[-MAX_EXAMPLES])


def read_texts(path: Path, rows: Sequence[int]) -> dict[int, str]:
    """Return the inputs of a few rows of a predictions.parquet, joined, by example id.

    They are empty if the file has no inputs.

    Raises:
        InputError: The inputs are damaged.
    """
    found = read_rows(path, rows, is_input)
    return {row: " | ".join(map(str, values.values())) for row, values in found.items()}


def truncated(text: str) -> str:
    """Return a text on one line, shortened to `MAX_TEXT_LENGTH` characters."""
    text = " ".join(text.split())
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[: MAX_TEXT_LENGTH - 1]}…"


def class_figures(
    label_names: Sequence[str],
    predictions: Sequence[RunPredictions],
    baseline: Sequence[RunPredictions] | None,
    differences: Sequence[ClassDifference | None] = (),
) -> tuple[ClassFigures, ...]:
    """Return the figures of each class, as means over the seeds.

    Args:
        label_names: Names of the C classes.
        predictions: Predictions of the arm, by seed.
        baseline: Predictions of the baseline; None for the baseline itself.
        differences: Differences of the classes to the baseline; empty if they are not known.
    """
    figures = []
    for index, name in enumerate(label_names):
        rows = [each.scores[index] for each in predictions]
        f1 = float(np.mean([row.f1 for row in rows]))
        base_f1 = None if baseline is None else [each.scores[index].f1 for each in baseline]
        figures.append(
            ClassFigures(
                name=name,
                support=rows[0].support,
                precision=float(np.mean([row.precision for row in rows])),
                recall=float(np.mean([row.recall for row in rows])),
                f1=f1,
                f1_difference=None if base_f1 is None else f1 - float(np.mean(base_f1)),
                difference=differences[index] if differences else None,
            )
        )
    return tuple(figures)


def summed_confusion(predictions: Sequence[RunPredictions]) -> tuple[tuple[int, ...], ...]:
    """Return the sum of the confusion matrices of all seeds, with labels as rows."""
    matrices = [each.confusion for each in predictions if each.confusion is not None]
    if not matrices:
        return ()
    return tuple(tuple(row) for row in np.sum(matrices, axis=0).tolist())


def calibration_bins(predictions: Sequence[RunPredictions]) -> tuple[CalibrationBin, ...]:
    """Return bins of equal width over the predictions of all seeds."""
    binned = [each.bins for each in predictions if each.bins is not None]
    if not binned:
        return ()
    counts, confidences, correct = np.sum(binned, axis=0)
    return tuple(
        CalibrationBin(
            low=index / BINS,
            high=(index + 1) / BINS,
            count=int(count),
            confidence=float(confidences[index] / count) if count else None,
            accuracy=float(correct[index] / count) if count else None,
        )
        for index, count in enumerate(counts)
    )
