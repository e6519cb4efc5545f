"""Keep, drop or undecided: the decision on one candidate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from ampft.comparison.statistics.interval import DifferenceEstimate
from ampft.comparison.statistics.power import seeds_to_decide
from ampft.referee.error_budget import TryLevel

MOST_STEPS = 4  # shown with a keep; more would make later keeps harder
COVARIANCE_ERRORS = 2.0  # standard errors that are added to the estimated covariance between seeds
SMALLEST_P = 1e-13  # of the test that allows for rare losses, which is exact to about 1e-15


class Answer(StrEnum):
    """What the referee says about a candidate."""

    KEEP = "keep"
    DROP = "drop"
    UNDECIDED = "undecided"


class Claim(StrEnum):
    """What a candidate must show."""

    BETTER = "better"
    NOT_WORSE = "not_worse"


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked about a candidate.

    Attributes:
        claim: What it must show.
        margin: For "not_worse", the largest loss that does not matter; for "better" without
            effect on a keep, and the least gain worth further seeds. In the metric's unit.
        max_seeds: Number of seeds from which a candidate is not continued.
        sealed: Whether answers other than a keep must not depend on the test rows.
        higher_is_better: Whether higher values of the metric are better.
    """

    claim: Claim
    margin: float
    max_seeds: int
    sealed: bool
    higher_is_better: bool = True


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The answer, and what may be said with it.

    Attributes:
        answer: The answer.
        shown_points: For a keep of a better candidate, the number of whole steps of the margin that
            the gain exceeds at this level, at most `MOST_STEPS`; otherwise 0.
        gain: Mean gain over the seeds, positive if better, in the metric's unit.
        lower: Lower limit of the gain, at the level of this try and with allowance for reuse.
        interval: 95 % interval of the gain as if this were the only try.
        seeds: Range of the number of seeds that may decide; None unless undecided and open.
        cases: Number of cases that would show a gain of this size; None likewise.
    """

    answer: Answer
    shown_points: int
    gain: float
    lower: float
    interval: tuple[float, float]
    seeds: tuple[int, int] | None = None
    cases: int | None = None


def lower_limit(estimate: DifferenceEstimate, allowed: TryLevel, *, gain: float) -> float:
    """Return the lower limit of a gain, at the level of a try and with allowance for reuse.

    Args:
        estimate: Estimate of the difference.
        allowed: What the try may use.
        gain: The difference, with the sign that makes an improvement positive.
    """
    limit = estimate.half_width(allowed.level)
    if allowed.log_share and estimate.seed_variance is not None:
        seeds, cases = len(estimate.per_seed), estimate.cases
        shared, every = estimate.jackknife_covariance, estimate.jackknife_variance
        uncertain = max(every - shared, 0.0) * math.sqrt(2 / (seeds * (seeds - 1) * cases))
        reuse = allowed.reuse_limit(
            math.sqrt(max(shared + COVARIANCE_ERRORS * uncertain, estimate.min_variance)),
            math.sqrt(estimate.seed_variance / seeds),
            seeds=seeds,
            cases=cases,
        )
        limit = max(limit, reuse)
    return gain - limit


def decide(estimate: DifferenceEstimate, allowed: TryLevel, question: Question) -> Decision:
    """Return the decision on a candidate.

    A better candidate is kept if the lower limit of its gain is above 0; one that must be not worse
    if the limit is above -margin and rare losses, which the test rows may lack, are excluded at the
    same level. In a sealed ledger the other answers depend only on the number of seeds. In an open
    one, a candidate is also dropped if its 95 % interval excludes what it must show, or if no
    number of seeds is likely to decide.

    Args:
        estimate: Estimate of candidate - best.
        allowed: What the try may use.
        question: What is asked.
    """
    sign = 1.0 if question.higher_is_better else -1.0
    gain = sign * estimate.estimate
    lower = lower_limit(estimate, allowed, gain=gain)
    ends = estimate.interval(0.95)
    interval = ends if sign > 0 else (-ends[1], -ends[0])
    is_better = question.claim is Claim.BETTER
    is_kept = lower > 0 if is_better else lower > -question.margin
    if is_kept and not is_better:
        is_kept = _excludes_rare_losses(estimate, allowed, question)
    if is_kept:
        points = min(int(lower / question.margin), MOST_STEPS) if is_better else 0
        return Decision(
            answer=Answer.KEEP, shown_points=points, gain=gain, lower=lower, interval=interval
        )
    answer, seeds, cases = Answer.UNDECIDED, None, None
    if len(estimate.per_seed) >= question.max_seeds:
        answer = Answer.DROP
    elif not question.sealed:
        threshold = question.margin if is_better else -question.margin
        seeds = seeds_to_decide(estimate, margin=question.margin, alpha=2 * allowed.level)
        if interval[1] < threshold or seeds is None or seeds[0] > question.max_seeds:
            answer, seeds = Answer.DROP, None
        else:
            distance = gain - (0.0 if is_better else -question.margin)
            cases = _cases_to_show(estimate, gain - lower, distance)
    return Decision(
        answer=answer,
        shown_points=0,
        gain=gain,
        lower=lower,
        interval=interval,
        seeds=seeds,
        cases=cases,
    )


def _excludes_rare_losses(
    estimate: DifferenceEstimate, allowed: TryLevel, question: Question
) -> bool:
    """Return whether rare losses of the margin are excluded, for every transcript at once."""
    if estimate.case_distribution is None:
        return True
    level = max(allowed.level * math.exp(allowed.log_share), SMALLEST_P)
    test = estimate.case_distribution
    if question.higher_is_better:
        return test.p_above(-question.margin, noise=estimate.seed_noise) <= level
    return test.p_below(question.margin, noise=estimate.seed_noise) <= level


def _cases_to_show(estimate: DifferenceEstimate, half_width: float, distance: float) -> int | None:
    """Return the cases at which a half-width that shrinks with their root equals a distance."""
    if distance <= 0:
        return None
    return math.ceil(estimate.cases * (half_width / distance) ** 2)
