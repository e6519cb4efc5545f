"""Keep, drop or undecided: the decision on one candidate, as one of a sequence of tries.

**Spending.** Try t is tested at the level a(t) = error * share(t), with shares that sum to 1. So at
most `error` of all sequences contain a false keep, by the union bound, for any dependence between
the tries (alpha spending, as in Foster and Stine, "Alpha-investing", JRSS B 70, 2008, but without
earning levels back, because that bounds a rate of false discoveries, not their existence). A look
at the same candidate with more seeds is a try of its own.

**Reuse.** Whoever chose try t has seen the earlier answers, and these depend on the test rows. A
change can therefore suit the rows better than the population. Seeds are fresh, so only the rows
carry this error. If every answer but a keep says nothing about the rows, the answers before try t
are one of few transcripts: which of the t - 1 tries were kept, and what was said about each gain. A
prefix code gives each transcript a share, with a sum of at most 1:

    share = 2^-(k + 1) / (t - 1 choose k) * product over the keeps of 2^-(points shown + 1).

For one transcript the candidate is a fixed procedure, whose error R over the rows is normal with
the standard error C^(1/2): C is the covariance between different seeds, which is what the rows do
to the procedure, whatever the seeds. With Q the tail of a standard normal, the union bound over
transcripts gives P(Q(R / C^(1/2)) <= u * share) <= u, so that R is in distribution at most

    R* = C^(1/2) Q^-1(U * share),    U uniform.

The rest of the error, T, comes from fresh trainings: s^2 / S with S - 1 degrees of freedom,
independent of the transcript, because a candidate is trained after it. (The best's trainings are
not fresh, but their luck is the same for all candidates, so that no choice of a candidate uses it.)
So a gain is kept if it exceeds c with P(R* + T > c) = level, and the limit without reuse as well.
This is the bound of the Ladder (Blum and Hardt, ICML 2015), of description length (Dwork et al.,
"Generalization in adaptive data analysis and holdout reuse", NeurIPS 2015), used for a test instead
of a score. C is estimated from few seeds, so two standard errors of its estimate are added: rows
whose trainings are independent give pairs of seeds a covariance with the standard error
(J - C) (2 / (S (S - 1) n))^(1/2).

Before the first keep the share is 1/2, and R* is the absolute value of a normal variable.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from ampft.comparison.statistics.interval import DifferenceEstimate
from ampft.comparison.statistics.power import seeds_to_decide

PLANNED_SHARE = 0.75  # of the error, for the planned tries
SMALLEST_TAIL, LEAST_LOG = 1e-300, -690.0  # so that quantiles are finite
PARTS, SMALLEST_PART = 200, 1e-3  # of the range of U, and of the level: the first of them
SMALLEST_SPREAD = 1e-6  # of the seeds, relative to the rows
MOST_STEPS = 4  # shown with a keep; more would make later keeps harder
COVARIANCE_ERRORS = 2.0  # standard errors that are added to the estimated covariance between seeds
SMALLEST_P = 1e-13  # of the test that allows for rare losses, which is exact to about 1e-15


@dataclass(frozen=True, kw_only=True)
class TryErrorBudget:
    """The probability of a false keep that one try may use."""

    number: int  # Number of the try, from 1.
    level: float  # Probability that this try is a false keep, at most.
    log_share: float  # Natural logarithm of the share of the transcript of earlier answers.

    def reuse_limit(self, over_rows: float, over_seeds: float, *, seeds: int, cases: int) -> float:
        """Return the limit c that a gain must exceed on rows that earlier answers tell about.

        Without a true gain, it is exceeded with at most the probability `level`.

        Args:
            over_rows: Standard error over the rows, C^(1/2).
            over_seeds: Standard error over the seeds, s / S^(1/2).
            seeds: S >= 2, for Student's distribution with S - 1 degrees of freedom.
            cases: n >= 2, likewise for the rows.
        """
        from scipy.optimize import brentq
        from scipy.special import stdtr, stdtrit

        # R* falls with U, so its value at the lower end of each interval of U is a bound.
        ends = np.geomspace(SMALLEST_PART * self.level, 1.0, PARTS)
        tails = np.maximum(ends[:-1] * math.exp(max(self.log_share, LEAST_LOG)), SMALLEST_TAIL)
        errors, weights = -over_rows * stdtrit(cases - 1, tails), np.diff(ends)
        spread = max(over_seeds, SMALLEST_SPREAD * over_rows, SMALLEST_TAIL)

        def excess(limit: float) -> float:
            above = weights @ stdtr(seeds - 1, (errors - limit) / spread)
            return float(ends[0] + above) - self.level

        most = float(errors.max()) - over_seeds * float(stdtrit(seeds - 1, self.level / 2))
        return brentq(excess, 0.0, most) if excess(0.0) > 0 else 0.0


def share_of_try(number: int, planned: int) -> float:
    """Return the share of the error that try `number` may use.

    The planned tries share three quarters evenly. The rest is for later tries, as 1 / (j (j + 1))
    for the j-th of them, so that it never runs out.

    Args:
        number: Number of the try, from 1.
        planned: Number of planned tries, at least 1.
    """
    if number <= planned:
        return PLANNED_SHARE / planned
    later = number - planned
    return (1 - PLANNED_SHARE) / (later * (later + 1))


def log_transcript_share(number: int, shown_points: Sequence[int]) -> float:
    """Return the logarithm of the share of the answers before a try.

    Args:
        number: Number of the try, from 1.
        shown_points: For each earlier keep, the whole number that its answer showed, at least 0.
    """
    keeps, earlier = len(shown_points), number - 1
    orders = math.lgamma(earlier + 1) - math.lgamma(keeps + 1) - math.lgamma(earlier - keeps + 1)
    bits = keeps + 1 + sum(points + 1 for points in shown_points)
    return -orders - bits * math.log(2)


def level_of_try(
    number: int, shown_points: Sequence[int], *, error: float, planned: int, sealed: bool
) -> TryErrorBudget:
    """Return the error that a try may use.

    Args:
        number: Number of the try, from 1.
        shown_points: For each earlier keep, the whole number that its answer showed.
        error: Error of the whole sequence, such as 0.05.
        planned: Number of planned tries.
        sealed: Whether answers other than a keep say nothing about the rows. If not, reuse is not
            allowed for, and candidates must not be tuned to the answers.
    """
    level = error * share_of_try(number, planned)
    log_share = log_transcript_share(number, shown_points) if sealed else 0.0
    return TryErrorBudget(number=number, level=level, log_share=log_share)


class CandidateAnswer(StrEnum):
    """The answer of the referee about one candidate."""

    KEEP = "keep"
    DROP = "drop"
    UNDECIDED = "undecided"


class Claim(StrEnum):
    """What a candidate must show."""

    BETTER = "better"
    NOT_WORSE = "not_worse"


@dataclass(frozen=True, kw_only=True)
class CandidateCriteria:
    """What a candidate must show, and by which rules it is decided on."""

    claim: Claim  # What it must show.
    # For "not_worse", the largest loss that does not matter; for "better" without effect on a keep,
    # and the least gain worth further seeds. In the metric's unit.
    margin: float
    max_seeds: int  # Number of seeds from which a candidate is not continued.
    sealed: bool  # Whether answers other than a keep must not depend on the test rows.
    higher_is_better: bool = True  # Whether higher values of the metric are better.
    # Whether the models learned enough for a keep, see `comparison.analysis.learned_nothing`. If
    # not, the candidate is dropped.
    has_learned: bool = True


@dataclass(frozen=True, kw_only=True)
class GainEstimate:
    """The numbers of a comparison, in the metric's unit; positive is better."""

    gain: float  # Mean over the seeds.
    lower: float  # Limit that decides, at the level of the try and with allowance for reuse.
    interval: tuple[float, float]  # 95 % interval as if this were the only try.
    # Range of the number of seeds that may decide; None unless undecided and open.
    seeds_to_decide: tuple[int, int] | None = None
    # Number of cases that would show a gain of this size; None likewise.
    cases_to_show: int | None = None
    carrying_cases: int | None = None  # As in `Difference`.
    carrying_labels: int | None = None  # As in `Difference`.
    cases: int | None = None  # Number of cases, if one of these is known.


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The answer, and what may be said with it."""

    answer: CandidateAnswer  # The answer.
    estimate: GainEstimate  # Its numbers.
    # For a keep of a better candidate, the number of whole steps of the margin that the gain
    # exceeds at this level, at most `MOST_STEPS`; otherwise 0.
    shown_points: int = 0


def lower_limit(estimate: DifferenceEstimate, allowed: TryErrorBudget, *, gain: float) -> float:
    """Return the lower limit of a gain, at the level of a try and with allowance for reuse.

    Args:
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


def decide(
    estimate: DifferenceEstimate, allowed: TryErrorBudget, question: CandidateCriteria
) -> Decision:
    """Return the decision on a candidate.

    A better candidate is kept if the lower limit of its gain is above 0; one that must be not worse
    if the limit is above -margin and rare losses, which the test rows may lack, are excluded at the
    same level. In a sealed ledger the other answers depend only on the number of seeds. In an open
    one, a candidate is also dropped if its 95 % interval excludes what it must show, or if no
    number of seeds is likely to decide.

    Args:
        question: What the candidate must show, and the rules.
    """
    sign = 1.0 if question.higher_is_better else -1.0
    gain = sign * estimate.estimate
    lower = lower_limit(estimate, allowed, gain=gain)
    ends = estimate.interval(0.95)
    interval = ends if sign > 0 else (-ends[1], -ends[0])
    found = GainEstimate(
        gain=gain,
        lower=lower,
        interval=interval,
        carrying_cases=estimate.carrying,
        carrying_labels=estimate.carrying_labels,
        cases=estimate.cases if estimate.carrying or estimate.carrying_labels else None,
    )
    is_better = question.claim is Claim.BETTER
    if not question.has_learned:
        return Decision(answer=CandidateAnswer.DROP, estimate=found)
    is_kept = lower > 0 if is_better else lower > -question.margin
    if is_kept and not is_better:
        is_kept = _excludes_rare_losses(estimate, allowed, question)
    if is_kept:
        points = min(int(lower / question.margin), MOST_STEPS) if is_better else 0
        return Decision(answer=CandidateAnswer.KEEP, estimate=found, shown_points=points)
    if len(estimate.per_seed) >= question.max_seeds:
        return Decision(answer=CandidateAnswer.DROP, estimate=found)
    if question.sealed:
        return Decision(answer=CandidateAnswer.UNDECIDED, estimate=found)
    threshold = question.margin if is_better else -question.margin
    seeds = seeds_to_decide(estimate, margin=question.margin, alpha=2 * allowed.level)
    if interval[1] < threshold or seeds is None or seeds[0] > question.max_seeds:
        return Decision(answer=CandidateAnswer.DROP, estimate=found)
    distance = gain - (0.0 if is_better else -question.margin)
    # A half-width shrinks with the root of the number of cases.
    ratio = (gain - lower) / distance if distance > 0 else None
    cases = None if ratio is None else math.ceil(estimate.cases * ratio**2)
    undecided = replace(found, seeds_to_decide=seeds, cases_to_show=cases)
    return Decision(answer=CandidateAnswer.UNDECIDED, estimate=undecided)


def _excludes_rare_losses(
    estimate: DifferenceEstimate, allowed: TryErrorBudget, question: CandidateCriteria
) -> bool:
    """Return whether rare losses of the margin are excluded, for every transcript at once."""
    if estimate.case_distribution is None:
        return True
    level = max(allowed.level * math.exp(allowed.log_share), SMALLEST_P)
    test = estimate.case_distribution
    if question.higher_is_better:
        return test.p_above(-question.margin, noise=estimate.seed_noise) <= level
    return test.p_below(question.margin, noise=estimate.seed_noise) <= level
