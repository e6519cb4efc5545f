"""The difference in F1 of every class, with its interval, so that a loss in one class is seen."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from scipy.sparse import csr_array

from ampft.comparison.analysis.run_predictions import RunPredictions
from ampft.comparison.findings import ClassDifference
from ampft.comparison.statistics.interval import (
    MIN_SEEDS,
    DifferenceEstimate,
    estimate_difference,
)
from ampft.comparison.statistics.jackknife import jackknife_differences
from ampft.comparison.statistics.multiplicity import holm
from ampft.metrics.sums import MACRO_F1, CaseSums

MAX_WORK = 100_000_000  # classes times cases times runs; with more, no intervals are computed


def class_differences(
    predictions: Mapping[str, Sequence[RunPredictions]],
    baseline: Sequence[RunPredictions],
    *,
    judged: Collection[str],
    alpha: float,
) -> dict[str, tuple[ClassDifference | None, ...]]:
    """Return the difference in F1 of each class by arm, after Holm over classes and arms.

    A class without an example has no difference. An arm has none with fewer than three seeds, or if
    its problem does not count classes.

    Args:
        predictions: Predictions by seed of each arm, without the baseline.
        baseline: Predictions of the baseline by seed.
        judged: Arms whose differences get p-values: not the placebo.
        alpha: Level of the analysis.
    """
    sums = [each.class_sums for each in baseline]
    if len(baseline) < MIN_SEEDS or sums[0] is None:
        return {}
    classes = len(sums[0].totals()) // 3
    if classes * len(sums[0]) * len(baseline) * (len(predictions) + 1) > MAX_WORK:
        return {}
    estimates: dict[tuple[str, int], DifferenceEstimate] = {}
    for label in np.flatnonzero(sums[0].totals()[classes : 2 * classes]).tolist():
        base = _sums_of_class(sums, label)
        for name, runs in predictions.items():
            arm = _sums_of_class([run.class_sums for run in runs], label)
            estimates[name, label] = estimate_difference(jackknife_differences(arm, base, MACRO_F1))
    p_values = {key: each.p_difference() for key, each in estimates.items() if key[0] in judged}
    corrected = holm({f"{name} {label}": p for (name, label), p in p_values.items()})
    found = {
        key: ClassDifference(
            estimate=each.estimate,
            interval=each.interval(1 - alpha),
            level=1 - alpha,
            p_difference=p_values.get(key),
            p_difference_holm=corrected.get(f"{key[0]} {key[1]}"),
        )
        for key, each in estimates.items()
    }
    return {
        name: tuple(found.get((name, label)) for label in range(classes)) for name in predictions
    }


def _sums_of_class(seeds: Sequence[CaseSums | None], label: int) -> list[CaseSums]:
    """Return the sums of one class at each seed, as if it were the only one."""
    result = []
    for sums in seeds:
        assert sums is not None, "all runs have the same problem"
        classes = sums.patterns.shape[1] // 3
        columns = [label, classes + label, 2 * classes + label, 3 * classes]
        rows, index = np.unique(sums.patterns[:, columns].toarray(), axis=0, return_inverse=True)
        result.append(CaseSums(csr_array(rows), index.reshape(-1)[sums.pattern_of]))
    return result
