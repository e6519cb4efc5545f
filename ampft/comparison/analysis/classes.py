"""What the arms do class by class, and how far their confidence can be believed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampft.comparison.analysis.answers import BINS, Answers
from ampft.comparison.findings import CalibrationBin, ClassFigures


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
