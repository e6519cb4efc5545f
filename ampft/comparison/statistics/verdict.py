"""The difference of an arm to the baseline, its p-values, and the verdict on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Self, TypeVar

from ampft.comparison.settings import MIN_SEEDS
from ampft.comparison.statistics.interval import DifferenceEstimate
from ampft.comparison.statistics.power import min_support, rate_upper_limit, seeds_to_decide
from ampft.errors import InputError
from ampft.text.json_io import one_of

K = TypeVar("K")


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


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference in a metric, arm minus baseline, with its intervals and its verdict.

    `of` returns one without a verdict, as for a placebo; `decide` adds the verdict.
    """

    estimate: float  # Mean over the seeds.
    per_seed: tuple[float, ...]  # Differences in the order of the seeds.
    # Lower and upper end of the confidence interval of level `level95`.
    interval95: tuple[float, float]
    # Lower and upper end of the interval of level `level90`, which decides equivalence.
    interval90: tuple[float, float]
    level95: float  # 0.95, or more with several planned analyses.
    level90: float  # 0.90, or more with several planned analyses.
    cases: int  # Number of independent test cases, n.
    one_case: float  # Effect of one changed case, the least standard error.
    # Limits of level `level95` that allow for rare losses and gains; see `metrics.rare_losses`.
    # None if no case can change the metric.
    rare95: tuple[float, float] | None
    rare90: tuple[float, float] | None  # The same of level `level90`.
    # Limits of level `level90` if effects are skewed over the seeds, which equivalence must allow
    # for; see `statistics.skewed_seeds`. None if the models are fixed.
    skewed90: tuple[float, float] | None = None
    # Variance of the differences over seeds; None if the models are fixed.
    seed_variance: float | None
    jackknife_variance: float  # Mean over seeds of the jackknife variance over examples.
    jackknife_covariance: float  # Mean jackknife covariance over pairs of seeds, floored at 0.
    p_difference: float | None = None  # Two-sided p-value, before Holm; None for a placebo.
    # p-value of two one-sided tests, before Holm; None for a placebo.
    p_equivalence: float | None = None
    # `p_difference` after Holm over the modes; None for a placebo.
    p_difference_holm: float | None = None
    # `p_equivalence` after Holm over the modes; None for a placebo.
    p_equivalence_holm: float | None = None
    # Verdict; see `decide`. None for a placebo.
    verdict: Annotated[str, one_of(tuple(Verdict))] | None = None
    # Number of seeds below which a decision is unlikely, and number from which it is likely, see
    # `power.seeds_to_decide`; with several modes at alpha / (number of modes), the first step of
    # Holm's procedure. None when decided, or when more seeds are unlikely to be enough.
    seeds_to_decide: tuple[int, int] | None = None
    # p-value of a difference beyond the margin, before Holm; None for a placebo.
    p_beyond: float | None = None
    p_beyond_holm: float | None = None  # `p_beyond` after Holm over the modes; None for a placebo.
    # Largest share of cases that could fail at every seed although the test set contains none of
    # them (probability 5 %); None without a verdict.
    unseen_share: float | None = None
    # Largest share of training runs that could fail although none of these seeds did (probability 5
    # %); None without a verdict, or with fewer seeds than an interval over seeds needs.
    failure_rate: float | None = None
    # Minimum number of cases for equivalence, of the class `rarest_class` if that is not None, if
    # the t tests establish equivalence and only the test that allows for rare losses does not;
    # otherwise None.
    cases_needed: int | None = None
    # Index of the label whose cases weigh most in the metric; None if all cases weigh about the
    # same.
    rarest_class: int | None = None
    # Number of cases of `rarest_class`, otherwise of all cases. A case is an example, or a group of
    # examples.
    rarest_cases: int | None = None
    # Number of cases with half of the variance over cases, if it is so small that a few large
    # errors carry a metric without a largest error; otherwise None.
    carrying_cases: int | None = None
    # Otherwise, the number of cases with half of the variance of what a model costs that predicts
    # the mean of the labels, if it is small: a few extreme labels; otherwise None.
    carrying_labels: int | None = None

    @classmethod
    def of(cls, each: DifferenceEstimate, *, alpha: float) -> Self:
        """Return an exploratory difference, with intervals but no verdict."""
        return cls(
            estimate=each.estimate,
            per_seed=tuple(each.per_seed.tolist()),
            interval95=each.interval(1 - alpha),
            interval90=each.interval(1 - 2 * alpha),
            level95=1 - alpha,
            level90=1 - 2 * alpha,
            cases=each.cases,
            one_case=math.sqrt(each.min_variance),
            rare95=each.rare_limits(1 - alpha),
            rare90=each.rare_limits(1 - 2 * alpha),
            skewed90=each.skewed_limits(1 - 2 * alpha),
            seed_variance=each.seed_variance,
            jackknife_variance=each.jackknife_variance,
            jackknife_covariance=each.jackknife_covariance,
            carrying_cases=each.carrying,
            carrying_labels=each.carrying_labels,
        )


def decide(
    estimates: Mapping[str, DifferenceEstimate],
    *,
    margin: float,
    alpha: float = 0.05,
    higher_is_better: bool = True,
) -> dict[str, Difference]:
    """Return the difference of every mode with its verdict, in the given order.

    The first rule that applies decides:

    1. "equivalent": the p-value of equivalence is at most alpha. The interval of level 1 - 2 alpha
       and its limits for skewed effects then lie within +-margin, although it may exclude 0.
    2. "worse" or "better beyond the margin": the interval of level 1 - alpha lies beyond it.
    3. "worse" or "better, size uncertain": that interval excludes 0.
    4. "undecided".

    With several modes, the rules apply to p-values after Holm's correction, separately for
    difference, difference beyond the margin, and equivalence. A mode that differs beyond the margin
    then always differs.

    Args:
        estimates: Estimates by mode, without the baseline.
        margin: Largest difference that does not matter, in the metric's unit, above 0.
        alpha: Level of this analysis (`alpha_per_analysis`).
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
    decisions: dict[str, Difference] = {}
    for name, each in estimates.items():
        p_difference, p_equivalence, p_beyond = (family[name] for family in adjusted)
        verdict = _verdict(
            each.estimate if higher_is_better else -each.estimate,
            is_different=p_difference <= alpha,
            is_equivalent=p_equivalence <= alpha,
            is_beyond=p_beyond <= alpha,
        )
        seeds = needed = None
        if verdict is Verdict.UNDECIDED and each.seed_variance is not None:
            seeds = seeds_to_decide(each, margin=margin, alpha=alpha / len(estimates))
        # Holm's procedure stops at this level for every mode that is not equivalent.
        last = alpha / max(not_equivalent, 1)
        only_rare_losses = p_equivalence > alpha and each.p_equivalence_by_t(margin) <= last
        if only_rare_losses and each.costliest is not None:
            needed = min_support(each.costliest, each.cases, margin=margin, alpha=last)
        decisions[name] = replace(
            Difference.of(each, alpha=alpha),
            p_difference=difference[name],
            p_equivalence=equivalence[name],
            p_beyond=beyond[name],
            p_difference_holm=p_difference,
            p_equivalence_holm=p_equivalence,
            p_beyond_holm=p_beyond,
            verdict=verdict,
            seeds_to_decide=seeds,
            unseen_share=rate_upper_limit(each.cases),
            failure_rate=rate_upper_limit(count)
            if (count := len(each.per_seed)) >= MIN_SEEDS
            else None,
            cases_needed=needed,
            rarest_class=each.costliest.label if each.costliest else None,
            rarest_cases=each.costliest.support if each.costliest else None,
        )
    return decisions


def _verdict(gain: float, *, is_different: bool, is_equivalent: bool, is_beyond: bool) -> Verdict:
    if is_equivalent:
        return Verdict.EQUIVALENT
    if is_beyond:
        return Verdict.WORSE_BEYOND if gain < 0 else Verdict.BETTER_BEYOND
    if is_different:
        return Verdict.WORSE if gain < 0 else Verdict.BETTER
    return Verdict.UNDECIDED


def mcnemar_mid_p(gained: int, lost: int) -> float:
    """Return the two-sided mid-p value of McNemar's exact conditional test.

    It compares two checkpoints of one seed. Counts pooled over seeds do not keep its level, because
    the seeds share their cases. With m = b + c discordant cases and X binomial (m, 1/2),
    p = 2 P(X <= min(b, c)) - P(X = min(b, c)), and 1 - P(X = b) / 2 if b = c; 1 if m = 0.

    Source: Fagerland, Lydersen, Laake, "The McNemar test for binary matched-pairs data: mid-p and
    asymptotic are better than exact conditional", BMC Medical Research Methodology 13:91, 2013.

    Args:
        gained: b, the number of cases that only the arm predicts correctly.
        lost: c, the number of cases that only the baseline predicts correctly.

    Raises:
        ValueError: A count is negative.
    """
    from scipy.stats import binom

    if gained < 0 or lost < 0:
        raise ValueError(f"counts must not be negative, received {gained} and {lost}")
    fewer, discordant = min(gained, lost), gained + lost
    if discordant == 0:
        return 1.0
    point = float(binom.pmf(fewer, discordant, 0.5))
    if gained == lost:
        return 1 - point / 2
    return 2 * float(binom.cdf(fewer, discordant, 0.5)) - point


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """Return the adjusted p-values, in the given order.

    With p_(1) <= ... <= p_(m), the adjusted p_(k) is the maximum over j <= k of
    min(1, (m - j + 1) p_(j)). All claims with an adjusted value of at most alpha hold together with
    a probability of at least 1 - alpha, for any dependence between the modes.

    Source: Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal
    of Statistics 6, 1979.
    """
    adjusted: dict[K, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def alpha_per_analysis(numbers: tuple[int, ...], alpha: float = 0.05) -> float:
    """Return the level of each analysis, so that all of them together have the level `alpha`.

    Bonferroni's correction, alpha / (number of analyses), holds for any dependence between them.

    Args:
        numbers: Increasing numbers of seeds at which the results are analysed, such as (5, 10).
        alpha: Level of the whole comparison.

    Raises:
        InputError: `numbers` is empty, or the numbers are not positive and increasing.
    """
    if not numbers or numbers[0] < 1 or any(b <= a for a, b in pairwise(numbers)):
        raise InputError(
            f"numbers of seeds: received {','.join(map(str, numbers)) or 'none'}, but they must be "
            "positive and increasing, such as 5,10"
        )
    return alpha / len(numbers)
