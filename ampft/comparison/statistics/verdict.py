"""Verdicts on the modes of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ampft.comparison.statistics.detection_limits import min_support, rate_upper_limit
from ampft.comparison.statistics.interval import MIN_SEEDS, DifferenceEstimate
from ampft.comparison.statistics.multiplicity import holm
from ampft.comparison.statistics.power import seeds_to_decide
from ampft.errors import InputError
from ampft.metrics.sums import CostliestCase


class Verdict(StrEnum):
    """The result of comparing one mode with the baseline."""

    EQUIVALENT = "equivalent"
    WORSE_BEYOND = "worse beyond the margin"
    WORSE = "worse, size uncertain"
    BETTER_BEYOND = "better beyond the margin"
    BETTER = "better, size uncertain"
    UNDECIDED = "undecided"


EQUIVALENT, BETTER, WORSE, UNDECIDED = "equivalent", "better", "worse", "undecided"
OUTCOMES: Mapping[str, str] = {
    Verdict.EQUIVALENT: EQUIVALENT,
    Verdict.BETTER: BETTER,
    Verdict.BETTER_BEYOND: BETTER,
    Verdict.WORSE: WORSE,
    Verdict.WORSE_BEYOND: WORSE,
    Verdict.UNDECIDED: UNDECIDED,
}
"""Verdict -> its kind, without its size."""


@dataclass(frozen=True)
class DetectionLimits:
    """What a comparison cannot detect.

    Attributes:
        unseen_share: Largest share of cases that may be lost at every seed although the test set
            contains none of them (probability 5 %).
        failure_rate: Largest share of training runs that may fail although none of these seeds did
            (probability 5 %); None for fewer seeds than an interval over seeds needs.
        cases_needed: Minimum number of cases of the kind `costliest` for equivalence, if the t
            tests establish equivalence and only the test that allows for rare losses does not;
            otherwise None.
        costliest: The kind of case whose loss costs the metric most; None if it is unknown.
    """

    unseen_share: float
    failure_rate: float | None
    cases_needed: int | None
    costliest: CostliestCase | None


@dataclass(frozen=True)
class Decision:
    """A verdict with the numbers behind it.

    Attributes:
        verdict: The verdict; see `decide`.
        estimate: The difference mode - baseline.
        p_difference: Two-sided p-value of a difference, not adjusted.
        p_equivalence: p-value of equivalence at the margin, not adjusted.
        p_beyond: p-value of a difference beyond the margin, not adjusted.
        p_difference_holm: `p_difference` after Holm's correction over the modes.
        p_equivalence_holm: `p_equivalence` after Holm's correction over the modes.
        p_beyond_holm: `p_beyond` after Holm's correction over the modes.
        margin: Margin in the metric's unit.
        alpha: Level of the analysis.
        seeds_to_decide: Range of the number of seeds that may allow a decision, see
            `power.seeds_to_decide`; with several modes at alpha / (number of modes), the first step
            of Holm's procedure. None if decided, or if more seeds are unlikely to be enough.
        limits: What the comparison cannot detect.
    """

    verdict: Verdict
    estimate: DifferenceEstimate
    p_difference: float
    p_equivalence: float
    p_beyond: float
    p_difference_holm: float
    p_equivalence_holm: float
    p_beyond_holm: float
    margin: float
    alpha: float
    seeds_to_decide: tuple[int, int] | None
    limits: DetectionLimits


def decide(
    estimates: Mapping[str, DifferenceEstimate],
    *,
    margin: float,
    alpha: float = 0.05,
    higher_is_better: bool = True,
) -> dict[str, Decision]:
    """Return the decision on every mode, in the given order.

    The first rule that applies decides:

    1. "equivalent": the p-value of equivalence is at most alpha. The interval of level 1 - 2 alpha
       then lies within +-margin, although it may exclude 0.
    2. "worse" or "better beyond the margin": the interval of level 1 - alpha lies beyond it.
    3. "worse" or "better, size uncertain": that interval excludes 0.
    4. "undecided".

    With several modes, the rules apply to p-values after Holm's correction, separately for
    difference, difference beyond the margin, and equivalence. A mode that differs beyond the margin
    then always differs.

    Args:
        estimates: Estimates by mode, without the baseline.
        margin: Largest difference that does not matter, in the metric's unit, above 0.
        alpha: Level of this analysis (`interim.alpha_per_analysis`).
        higher_is_better: Whether higher values of the metric are better.

    Raises:
        InputError: `margin` or `alpha` is out of range.
    """
    if not 0 < margin < 1:
        raise InputError(
            f"margin {margin:g}: the margin must be between 0 and 1; 0.01 is one point"
        )
    if not 0 < alpha < 0.5:
        raise InputError(f"alpha {alpha:g}: the level must be between 0 and 0.5, such as 0.05")
    difference = {name: each.p_difference() for name, each in estimates.items()}
    equivalence = {name: each.p_equivalence(margin) for name, each in estimates.items()}
    beyond = {name: each.p_beyond(margin) for name, each in estimates.items()}
    adjusted = [holm(family) for family in (difference, equivalence, beyond)]
    not_equivalent = sum(p_value > alpha for p_value in adjusted[1].values())
    decisions: dict[str, Decision] = {}
    for name, each in estimates.items():
        p_difference, p_equivalence, p_beyond = (family[name] for family in adjusted)
        verdict = _verdict(
            each.estimate if higher_is_better else -each.estimate,
            is_different=p_difference <= alpha,
            is_equivalent=p_equivalence <= alpha,
            is_beyond=p_beyond <= alpha,
        )
        # Holm's procedure stops at this level for every mode that is not equivalent.
        last_level = None if p_equivalence <= alpha else alpha / not_equivalent
        seeds = None
        if verdict is Verdict.UNDECIDED and each.seed_variance is not None:
            seeds = seeds_to_decide(each, margin=margin, alpha=alpha / len(estimates))
        decisions[name] = Decision(
            verdict=verdict,
            estimate=each,
            p_difference=difference[name],
            p_equivalence=equivalence[name],
            p_beyond=beyond[name],
            p_difference_holm=p_difference,
            p_equivalence_holm=p_equivalence,
            p_beyond_holm=p_beyond,
            margin=margin,
            alpha=alpha,
            seeds_to_decide=seeds,
            limits=_detection_limits(each, margin=margin, last_level=last_level),
        )
    return decisions


def _detection_limits(
    each: DifferenceEstimate, *, margin: float, last_level: float | None
) -> DetectionLimits:
    """Return the detection limits of a mode.

    Args:
        each: Estimate of the mode.
        margin: Margin in the metric's unit.
        last_level: Level at which equivalence was not established; None if it was.
    """
    needed, seeds = None, len(each.per_seed)
    by_t = each.p_equivalence_by_t(margin)
    if last_level and each.costliest and by_t <= last_level:
        needed = min_support(each.costliest, each.cases, margin=margin, alpha=last_level)
    return DetectionLimits(
        unseen_share=rate_upper_limit(each.cases),
        failure_rate=rate_upper_limit(seeds) if seeds >= MIN_SEEDS else None,
        cases_needed=needed,
        costliest=each.costliest,
    )


def _verdict(gain: float, *, is_different: bool, is_equivalent: bool, is_beyond: bool) -> Verdict:
    if is_equivalent:
        return Verdict.EQUIVALENT
    if is_beyond:
        return Verdict.WORSE_BEYOND if gain < 0 else Verdict.BETTER_BEYOND
    if is_different:
        return Verdict.WORSE if gain < 0 else Verdict.BETTER
    return Verdict.UNDECIDED
