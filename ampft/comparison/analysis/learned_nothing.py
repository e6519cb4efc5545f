"""The gate before every verdict: what models that learned nothing may be called.

All comparisons pass it, whatever they compare: planned and finished runs, tables of other programs,
folds, precisions of inference, artifacts, and candidates of `ampft judge`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ampft.comparison.analysis.run_predictions import RunPredictions
from ampft.comparison.findings import ArmResult
from ampft.comparison.statistics.verdict import BETTER, OUTCOMES, WORSE, Difference
from ampft.evaluation.sanity import STANDARD_ERRORS
from ampft.metrics.paired import paired_gain
from ampft.metrics.sums import class_counts

SAME_PREDICTION = "the model predicts the same for every example."
NOT_BETTER = (
    "the predictions are not shown to be better than a constant one: their informedness (Youden's "
    f"J) is not above 0 by {STANDARD_ERRORS:g} standard errors."
)


def result_of_gate(
    difference: Difference, sides: Sequence[ArmResult], *, has_fixed_models: bool
) -> Difference:
    """Return a difference without its verdict if a side has a model that learned nothing.

    Two models that learned nothing are alike, but equivalent to nothing of use. Of finished models,
    one that learned nothing may still be worse. If some trainings learned nothing, there is no
    verdict, because the effects are not a sample of one distribution.

    Args:
        difference: The difference with its verdict.
        sides: The arm and the baseline.
        has_fixed_models: Whether the verdict is on these models, not on other trainings.
    """
    if not any(side.suspect_runs for side in sides):
        return difference
    is_one_sided = OUTCOMES.get(difference.verdict or "") in (BETTER, WORSE)
    return difference if has_fixed_models and is_one_sided else replace(difference, verdict=None)


def signs_of_no_learning(
    predictions: RunPredictions, *, reads_labels: bool = True
) -> tuple[str, ...]:
    """Return why a model seems to have learned nothing; empty if it does not seem so.

    A run records more signs than predictions have, see `ampft.evaluation.sanity`.

    Args:
        reads_labels: Whether the answer may depend on the labels.
    """
    choices = predictions.choices
    if len(choices) > 1 and bool((choices == choices[0]).all()) and not predictions.correct.all():
        return (SAME_PREDICTION,)
    if not reads_labels or predictions.class_sums is None:
        return ()
    return () if _is_informed(predictions) else (NOT_BETTER,)


def _is_informed(predictions: RunPredictions) -> bool:
    """Return whether Youden's J, summed over the classes, is above 0 beyond chance."""
    sums = predictions.class_sums
    assert sums is not None
    counts = class_counts(sums.totals())
    units, classes = float(counts.cases), len(counts.labelled)
    is_varied = (counts.labelled > 0) & (counts.labelled < units)
    if not is_varied.any():
        return True
    positive = np.where(is_varied, units / np.maximum(counts.labelled, 1), 0.0)
    negative = np.where(is_varied, units / np.maximum(units - counts.labelled, 1), 0.0)
    gains = sums.patterns[:, :classes] @ (positive + negative)
    gains = gains - sums.patterns[:, 2 * classes : 3 * classes] @ negative
    sizes = sums.patterns[:, [-1]].toarray()[:, 0]
    gain = paired_gain(gains[sums.pattern_of], np.zeros(len(sums)), sizes[sums.pattern_of])
    return gain.cases > 1 and gain.mean > STANDARD_ERRORS * gain.error
