"""Verdicts over the modes of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ampft.comparison.statistics.interval import DifferenceEstimate
from ampft.comparison.statistics.multiplicity import holm
from ampft.comparison.statistics.power import seeds_to_decide
from ampft.comparison.statistics.unseen import rate_not_excluded, support_needed
from ampft.errors import InputError
from ampft.metrics.sums import CostliestCase


class Verdict(StrEnum):
    """What a comparison of one mode with the baseline found."""

    EQUIVALENT = "equivalent"
    WORSE_BEYOND = "worse beyond the margin"
    WORSE = "worse, size uncertain"
    BETTER_BEYOND = "better beyond the margin"
    BETTER = "better, size uncertain"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class BlindSpot:
    """What a comparison cannot see, to be said beside its verdict.

    Attributes:
        share_of_cases: Largest share of cases that may be lost at every seed with none of them in
            the test set (probability 5 %), see `unseen.rate_not_excluded`; None where the number of
            cases is unknown.
        failure_rate: Largest rate of failed trainings that this many clean seeds do not exclude.
        needed: Where the t interval is inside the margin but rare losses are not excluded: how many
            cases of the kind `costliest` are needed at least. None otherwise.
        costliest: The kind of case whose loss would cost most; None where it is unknown.
    """

    share_of_cases: float | None
    failure_rate: float
    needed: int | None
    costliest: CostliestCase | None


@dataclass(frozen=True)
class Decision:
    """A verdict with the numbers that it rests on.

    Attributes:
        verdict: See `decide`.
        estimate: The difference mode - baseline.
        interval95: Interval of level `levels[0]`, 0.95 with one look; of this mode alone, not
            adjusted for the number of modes.
        interval90: Interval of level `levels[1]`, 0.90 with one look; not adjusted either.
        levels: 1 - alpha and 1 - 2 alpha.
        p_difference: Two-sided, this mode alone.
        p_equivalence: Two one-sided tests at the margin, this mode alone.
        p_beyond: For a difference beyond the margin, this mode alone.
        p_difference_holm: Adjusted over the modes.
        p_equivalence_holm: Adjusted over the modes.
        p_beyond_holm: Adjusted over the modes.
        margin: In the metric's unit.
        alpha: Level of the look.
        seeds_to_decide: Where undecided, see `power.seeds_to_decide`; with several modes at
            alpha / (number of modes), Holm's first step. None where decided, or where more seeds
            are unlikely to decide.
        blind: What the comparison cannot see.
    """

    verdict: Verdict
    estimate: DifferenceEstimate
    interval95: tuple[float, float]
    interval90: tuple[float, float]
    levels: tuple[float, float]
    p_difference: float
    p_equivalence: float
    p_beyond: float
    p_difference_holm: float
    p_equivalence_holm: float
    p_beyond_holm: float
    margin: float
    alpha: float
    seeds_to_decide: tuple[int, int] | None
    blind: BlindSpot


def decide(
    estimates: Mapping[str, DifferenceEstimate],
    *,
    margin: float,
    alpha: float = 0.05,
    higher_is_better: bool = True,
) -> dict[str, Decision]:
    """Return the decision of every mode, in the order given.

    With one mode: equivalent when the p value of equivalence is at most alpha, and so the interval
    of level 1 - 2 alpha lies inside +-margin, even where it excludes 0 (a difference that is there
    and does not matter); else worse or better
    beyond the margin when the interval of level 1 - alpha lies beyond it; else worse or better,
    size uncertain, when that interval excludes 0; else undecided. With several modes the same
    rules hold for p values adjusted by Holm, difference, difference beyond the margin, and
    equivalence each a family. A mode beyond the margin is then always one that differs.

    Args:
        estimates: By mode, the baseline not among them.
        margin: Greatest difference that does not matter, in the metric's unit, > 0.
        alpha: Level of this look (`interim.alpha_per_look`).
        higher_is_better: Direction of the metric.

    Raises:
        InputError: `margin` or `alpha` is out of range.
    """
    if not 0 < margin < 1:
        raise InputError(f"margin {margin:g}: give a share between 0 and 1; 0.01 is one point")
    if not 0 < alpha < 0.5:
        raise InputError(f"alpha {alpha:g}: give a level between 0 and 0.5, such as 0.05")
    difference = {name: each.p_difference() for name, each in estimates.items()}
    equivalence = {name: each.p_equivalence(margin) for name, each in estimates.items()}
    beyond = {name: each.p_beyond(margin) for name, each in estimates.items()}
    adjusted = [holm(family) for family in (difference, equivalence, beyond)]
    decisions: dict[str, Decision] = {}
    for name, each in estimates.items():
        p_difference, p_equivalence, p_beyond = (family[name] for family in adjusted)
        verdict = _verdict(
            each.estimate if higher_is_better else -each.estimate,
            differs=p_difference <= alpha,
            equivalent=p_equivalence <= alpha,
            beyond=p_beyond <= alpha,
        )
        undecided = verdict is Verdict.UNDECIDED
        first_step = alpha / len(estimates)
        decisions[name] = Decision(
            verdict=verdict,
            estimate=each,
            interval95=each.interval(1 - alpha),
            interval90=each.interval(1 - 2 * alpha),
            levels=(1 - alpha, 1 - 2 * alpha),
            p_difference=difference[name],
            p_equivalence=equivalence[name],
            p_beyond=beyond[name],
            p_difference_holm=p_difference,
            p_equivalence_holm=p_equivalence,
            p_beyond_holm=p_beyond,
            margin=margin,
            alpha=alpha,
            seeds_to_decide=(
                seeds_to_decide(each, margin=margin, alpha=first_step) if undecided else None
            ),
            blind=_blind_spot(each, margin=margin, alpha=alpha),
        )
    return decisions


def _blind_spot(each: DifferenceEstimate, *, margin: float, alpha: float) -> BlindSpot:
    needed = None
    is_refused = each.p_equivalence_by_t(margin) <= alpha < each.p_equivalence(margin)
    if is_refused and each.costliest and each.cases:
        needed = support_needed(each.costliest, each.cases, margin=margin, alpha=alpha)
    return BlindSpot(
        share_of_cases=rate_not_excluded(each.cases) if each.cases else None,
        failure_rate=rate_not_excluded(len(each.per_seed)),
        needed=needed,
        costliest=each.costliest,
    )


def _verdict(gain: float, *, differs: bool, equivalent: bool, beyond: bool) -> Verdict:
    if equivalent:
        return Verdict.EQUIVALENT
    if beyond:
        return Verdict.WORSE_BEYOND if gain < 0 else Verdict.BETTER_BEYOND
    if differs:
        return Verdict.WORSE if gain < 0 else Verdict.BETTER
    return Verdict.UNDECIDED
