"""What `interval_calibration.py` does with one drawn comparison: its differences, rules, controls.

Beside the rule that ampft uses, the rule without each of its allowances, and three negative
controls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import ndtri, stdtr
from simulated_seeds import BoolArray, Drawn, DrawnSums, Setting

from ampft.comparison.statistics.interval import (
    DifferenceEstimate,
    JackknifeDifferences,
    jackknife_differences,
)
from ampft.comparison.statistics.verdict import mcnemar_mid_p
from ampft.metrics.sums import CaseSums, CostliestCase, single_label_sums
from ampft.tasks.single_label import METRICS

ALPHA = 0.05
CONTROLS = ("pooled_mcnemar", "examples_alone", "seeds_alone")
METHODS = ("now", "without rare losses", "without skewness")


def all_differences(setting: Any, drawn: Drawn | DrawnSums) -> list[JackknifeDifferences]:
    """Return the differences of each arm."""
    if isinstance(drawn, DrawnSums):
        metric = setting.measure()
        return [jackknife_differences(arm, drawn.baseline, metric) for arm in drawn.arms]
    if setting.metric == "accuracy" and drawn.groups is None:
        return [accuracy_differences(arm, drawn.baseline) for arm in drawn.arms]
    baseline, *arms = (
        [sums_of(setting, drawn, right) for right in rows] for rows in (drawn.baseline, *drawn.arms)
    )
    return [jackknife_differences(arm, baseline, METRICS[setting.metric]) for arm in arms]


def sums_of(setting: Setting, drawn: Drawn, right: BoolArray) -> CaseSums:
    """Return the sums of one side at one seed; a group is a case."""
    predicted = np.where(right, drawn.labels, drawn.wrong)
    sums = single_label_sums(drawn.labels, predicted, setting.classes)
    return sums if drawn.groups is None else sums.grouped(drawn.groups)


def accuracy_differences(arm: BoolArray, baseline: BoolArray) -> JackknifeDifferences:
    """Return what `jackknife_differences` returns for accuracy, ten times as fast."""
    seeds, cases = arm.shape
    each = arm.astype(np.float64) - baseline
    per_seed = each.mean(axis=1)
    centred = each - per_seed[:, None]
    covariances = centred @ centred.T / (cases * (cases - 1))
    diagonal = float(np.trace(covariances))
    return JackknifeDifferences(
        per_seed=per_seed,
        variance=diagonal / seeds,
        covariance=(float(covariances.sum()) - diagonal) / (seeds * (seeds - 1)),
        cases=cases,
        case_effect=1 / cases,
        pseudovalues=each.mean(axis=0),
        costliest=CostliestCase(1 / cases, None, cases),
    )


class WithoutSkewness(DifferenceEstimate):
    """The rule, without an allowance for skewed effects of seeds in the test of equivalence."""

    def half_width(self, tail: float, *, allows_skewness: bool = False) -> float:
        """Return the half-width by t."""
        return super().half_width(tail)


def by_method(estimate: DifferenceEstimate) -> dict[str, DifferenceEstimate]:
    """Return the estimate with the intervals of each method: see `METHODS`."""
    values = {each.name: getattr(estimate, each.name) for each in fields(estimate)}
    return {
        "now": estimate,
        "without rare losses": replace(estimate, case_distribution=None),
        "without skewness": WithoutSkewness(**values),
    }


def covers(estimate: DifferenceEstimate, truth: float) -> bool:
    """Return whether the 95 % interval holds the truth, without looking for its ends."""
    case_distribution, noise = estimate.case_distribution, estimate.seed_noise
    half = estimate.half_width(ALPHA / 2)
    low, high = estimate.estimate - half, estimate.estimate + half
    if low <= truth <= high:
        return True
    if case_distribution is None:
        return False
    if truth < low:
        return low <= 0 and case_distribution.p_above(truth, noise=noise) > ALPHA / 2
    return high >= 0 and case_distribution.p_below(truth, noise=noise) > ALPHA / 2


def differs(estimate: DifferenceEstimate) -> bool:
    """Return whether p of the difference is at most 5 %, without computing it."""
    return abs(estimate.estimate) >= estimate.half_width(ALPHA / 2)


def is_equivalent(
    estimate: DifferenceEstimate, margin: float, excluded: Callable[[float], bool] | None = None
) -> bool:
    """Return whether p of equivalence is at most 5 %; rare losses are looked at last.

    Args:
        estimate: Estimate.
        margin: Margin.
        excluded: `excludes_rare_losses` of the estimate, if that is known for several methods.
    """
    if abs(estimate.estimate) + estimate.half_width(ALPHA, allows_skewness=True) > margin:
        return False
    if estimate.case_distribution is None:
        return True
    return (excluded or partial(excludes_rare_losses, estimate))(margin)


def excludes_rare_losses(estimate: DifferenceEstimate, margin: float) -> bool:
    """Return whether the test that allows for rare losses finds equivalence."""
    cases, noise = estimate.case_distribution, estimate.seed_noise
    assert cases is not None
    return max(cases.p_above(-margin, noise=noise), cases.p_below(margin, noise=noise)) <= ALPHA


def controls(drawn: Drawn | DrawnSums, jackknife: JackknifeDifferences) -> tuple[bool, ...]:
    """Return whether each negative control finds a difference: see `CONTROLS`."""
    differences = jackknife.per_seed
    seeds, mean = len(differences), abs(float(differences.mean()))
    examples = (jackknife.variance + (seeds - 1) * jackknife.covariance) / seeds
    spread = float(differences.std(ddof=1)) / np.sqrt(seeds)
    pooled = 1.0
    if isinstance(drawn, Drawn):
        arm, baseline = drawn.arms[0], drawn.baseline
        pooled = mcnemar_mid_p(int((arm & ~baseline).sum()), int((baseline & ~arm).sum()))
    return (
        pooled <= ALPHA,
        bool(mean > -ndtri(ALPHA / 2) * np.sqrt(max(examples, 0.0))),
        bool(2 * stdtr(seeds - 1, -mean / spread) <= ALPHA) if spread else mean > 0,
    )
