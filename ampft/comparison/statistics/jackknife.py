"""Differences of a metric at every seed, and their jackknife variance over the cases.

A difference is (arm - baseline). A metric is a function of sums over cases, so the effect of
leaving a case out depends only on what that case adds to the sums. One value for each distinct
contribution therefore gives every leave-one-out value, exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ampft.errors import InputError
from ampft.metrics.sums import CaseSums, CostliestCase, Metric

FloatArray = npt.NDArray[np.float64]

CHUNK = 1 << 16  # cases at a time; memory besides the sums is S x CHUNK floats


@dataclass(frozen=True)
class JackknifeDifferences:
    """Differences of one metric between two arms, in the metric's unit (1 = 100 points).

    Attributes:
        per_seed: Difference arm - baseline at each seed, shape (S,), float64.
        variance: J, the jackknife variance of a difference over cases, mean over seeds.
        covariance: C, the jackknife covariance of the differences at two seeds, mean over the
            pairs of seeds; may be negative. 0 with one seed.
        cases: n.
        case_effect: Effect of one changed case, see `Metric.effect_of_changed_case`.
        pseudovalues: The jackknife's pseudo-value of each case, mean over seeds, shape (n,),
            float64. Their mean is the difference. For accuracy they are the differences of the
            cases, from -1 (lost at every seed) to 1.
        costliest: The kind of case whose loss costs the metric most, see `Metric.costliest_case`.
    """

    per_seed: FloatArray
    variance: float
    covariance: float
    cases: int
    case_effect: float
    pseudovalues: FloatArray
    costliest: CostliestCase


def jackknife_differences(
    arm: Sequence[CaseSums], baseline: Sequence[CaseSums], metric: Metric
) -> JackknifeDifferences:
    """Return the difference at each seed with its jackknife variance and covariance.

    With d_s(-i) the difference at seed s without case i,

        cov(s, t) = (n - 1) / n * sum over i of (d_s(-i) - mean d_s) (d_t(-i) - mean d_t),

    as in Obuchowski and Rockette (1995) and in Hillis, Obuchowski, Schartz and Berbaum (Statistics
    in Medicine 24, 2005, doi:10.1002/sim.2024). Time is O(S^2 n); memory is O(n), plus O(S) per
    case of a chunk.

    Args:
        arm: Sums of the arm at each of S seeds.
        baseline: Sums of the baseline at the same seeds, over the same cases.
        metric: A function of these sums.

    Raises:
        InputError: There are fewer than two cases, or the metric is undefined.
        ValueError: The sides differ in seeds or cases.
    """
    cases, seeds = len(baseline[0]), len(baseline)
    if len(arm) != seeds or any(len(sums) != cases for sums in (*arm, *baseline)):
        raise ValueError("both sides need the same seeds and the same cases")
    if cases < 2:
        raise InputError(
            f"a comparison needs at least 2 independent test cases, and there are {cases}. Use a "
            "larger test set."
        )
    values = np.array([[metric.value(sums) for sums in side] for side in (arm, baseline)])
    if not np.isfinite(values).all():
        raise InputError(
            f"--metric {metric.name}: it is undefined for these predictions. Use another metric."
        )
    covariances, left_out = _left_out(arm, baseline, metric)
    per_seed = values[0] - values[1]
    diagonal = float(np.trace(covariances))
    pairs = seeds * (seeds - 1)
    return JackknifeDifferences(
        per_seed=per_seed,
        variance=diagonal / seeds,
        covariance=(float(covariances.sum()) - diagonal) / pairs if pairs else 0.0,
        cases=cases,
        case_effect=max(metric.effect_of_changed_case(sums) for sums in baseline),
        pseudovalues=per_seed.mean() - (cases - 1) * (left_out - left_out.mean()),
        costliest=metric.costliest_case(baseline),
    )


def _left_out(
    arm: Sequence[CaseSums], baseline: Sequence[CaseSums], metric: Metric
) -> tuple[FloatArray, FloatArray]:
    """Return the (S, S) jackknife covariances, and the (n,) leave-one-out means over seeds."""
    cases, seeds = len(baseline[0]), len(baseline)
    sides = [[_centred(metric.leave_one_out(sums)) for sums in side] for side in (arm, baseline)]
    total, products, means = np.zeros(seeds), np.zeros((seeds, seeds)), np.empty(cases)
    for start in range(0, cases, CHUNK):
        part = slice(start, start + CHUNK)
        left_out = np.empty((seeds, len(baseline[0].pattern_of[part])))
        for seed in range(seeds):
            mine, other = (
                values[seed][side[seed].pattern_of[part]]
                for values, side in zip(sides, (arm, baseline), strict=True)
            )
            np.subtract(mine, other, out=left_out[seed])
        total += left_out.sum(axis=1)
        products += left_out @ left_out.T
        left_out.mean(axis=0, out=means[part])
    covariances = (cases - 1) / cases * (products - np.outer(total, total) / cases)
    return covariances, means


def _centred(values: FloatArray) -> FloatArray:
    # Sums of small numbers are accurate; variances may be 1e-7 while values are near 1.
    centred: FloatArray = values - values.mean()
    return centred
