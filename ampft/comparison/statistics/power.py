"""The effect of more seeds, the power to detect a loss, and what a comparison can show at best.

The numbers of `detection_limits`, which are known before any run, assume the most favourable
results: for equivalence, models that predict every case alike; for a difference, a model that loses
the same cases at every seed. They come from the test that will judge the results.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from ampft.comparison.settings import MIN_SEEDS
from ampft.comparison.statistics.interval import (
    DifferenceEstimate,
    FloatArray,
    estimate_of_sums,
    half_widths,
)
from ampft.errors import InputError
from ampft.metrics.sums import ACCURACY, CostliestCase, single_label_sums

MAX_SEEDS = 1000
UNLIKELY, LIKELY = 0.05, 0.97  # probabilities of a decision at the ends of the range of seeds
DRAWS = 500  # simulated outcomes of further seeds
DENSE_UP_TO, SPARSE_NUMBERS = 20, 25  # tries every number of seeds up to 20, then 25 larger ones
QUANTILES = 1000  # of s^2 in the power integral, whose error is below 0.001


def seeds_to_decide(
    estimate: DifferenceEstimate, *, margin: float, alpha: float = 0.05
) -> tuple[int, int] | None:
    """Return the range of the total number of seeds that may decide an undecided comparison.

    The probability of a decision reaches 5 % at its lower end and 97 % at its upper end. It is
    estimated from simulated seeds. Their mean and variance are drawn given the estimate and s^2,
    with a flat prior of the mean and of log s^2 (Box and Tiao, "Bayesian Inference in Statistical
    Analysis", 1973, section 2.4). C is constant, because more seeds add no cases. The generator has
    a fixed seed.

    In simulations with various true differences, at most a sixth of the comparisons were decided
    below the lower end, and at most a sixth were undecided at the upper end
    (`benchmarks/interval_calibration.py`).

    Args:
        estimate: Estimate from the S seeds so far.
        margin: Margin in the metric's unit.

    Returns:
        Two numbers above S. An upper end of `MAX_SEEDS` means at least that many, or that no number
        of seeds decides. None if a decision is unlikely even with `MAX_SEEDS`; then more test cases
        or a wider margin are needed.
    """
    forecast = _Forecast(estimate, margin=margin, alpha=alpha)
    seeds = len(estimate.per_seed)
    several = np.geomspace(DENSE_UP_TO, MAX_SEEDS, SPARSE_NUMBERS).round().astype(int)
    numbers = sorted({*range(seeds + 1, DENSE_UP_TO), *(n for n in several.tolist() if n > seeds)})
    first = None
    for number in numbers:
        probability = forecast.probability(number)
        if first is None and probability >= UNLIKELY:
            first = number
        if first is not None and probability >= LIKELY:
            return first, number
    return None if first is None else (first, MAX_SEEDS)


class _Forecast:
    """Simulated results of a comparison with more seeds."""

    tiny = float(np.finfo(np.float64).tiny)

    def __init__(self, estimate: DifferenceEstimate, *, margin: float, alpha: float) -> None:
        assert estimate.seed_variance is not None, "fixed models have no further seeds"
        self.seed_variance = estimate.seed_variance
        self.estimate, self.margin, self.alpha = estimate, margin, alpha
        self.generator = np.random.default_rng(0)
        self.seeds = len(estimate.per_seed)
        self.min_spread = max(estimate.jackknife_variance - estimate.jackknife_covariance, 0.0)
        degrees = self.seeds - 1
        spread = self.seed_variance * degrees / self.generator.chisquare(degrees, DRAWS)
        self.spread = np.maximum(spread, self.min_spread)
        moved = self.generator.standard_normal(DRAWS)
        self.centre = estimate.estimate + np.sqrt(self.spread / self.seeds) * moved
        # Distances of the limits that allow for rare losses, and their minimum if no case differs.
        self.below = self.above = self.min_reach = 0.0
        case_distribution = estimate.case_distribution
        if case_distribution is not None:
            self.below = estimate.estimate - case_distribution.lower_limit(1 - alpha)
            self.above = case_distribution.upper_limit(1 - alpha) - estimate.estimate
            unseen = rate_upper_limit(int(case_distribution.counts.sum()), probability=alpha)
            self.min_reach = unseen * case_distribution.lost_steps * case_distribution.step

    def probability(self, seeds: int) -> float:
        """Return the probability that a comparison with this total number of seeds is decided."""
        estimate = self.estimate
        mean, spread = self._drawn(seeds)
        wide, narrow = (
            half_widths(
                tail,
                seed_variances=spread,
                seeds=seeds,
                jackknife_variance=estimate.jackknife_variance,
                covariance=estimate.jackknife_covariance,
                cases=estimate.cases,
                min_variance=estimate.min_variance,
                allows_skewness=allows_skewness,
            )
            for tail, allows_skewness in ((self.alpha / 2, False), (self.alpha, True))
        )
        differs = np.abs(mean) >= wide
        within = np.abs(mean) + narrow <= self.margin
        shrunk = math.sqrt(self._variance_over_cases(seeds) / self._variance_over_cases(self.seeds))
        below, above = (max(shrunk * at, self.min_reach) for at in (self.below, self.above))
        within &= (mean - below >= -self.margin) & (mean + above <= self.margin)
        return float(np.mean(differs | within))

    def _variance_over_cases(self, seeds: int) -> float:
        """Return the part of the variance of the mean over seeds that is due to the cases."""
        covariance = self.estimate.jackknife_covariance
        variance = max(self.estimate.jackknife_variance, covariance, self.tiny)
        return (variance + (seeds - 1) * covariance) / seeds

    def _drawn(self, seeds: int) -> tuple[FloatArray, FloatArray]:
        """Return simulated means and variances over all seeds, including those so far."""
        more = seeds - self.seeds
        mean_of_more = self.generator.normal(self.centre, np.sqrt(self.spread / more))
        apart = self.estimate.estimate - mean_of_more
        squares = self.seed_variance * (self.seeds - 1) + self.seeds * more / seeds * apart**2
        if more > 1:
            squares = squares + self.spread * self.generator.chisquare(more - 1, DRAWS)
        mean = (self.seeds * self.estimate.estimate + more * mean_of_more) / seeds
        return mean, squares / (seeds - 1)


def power(
    loss: float,
    *,
    seeds: int,
    seed_variance: float,
    covariance: float,
    cases: int,
    jackknife_variance: float = 0.0,
    min_variance: float = 0.0,
    alpha: float = 0.05,
) -> float:
    """Return the probability that the interval of level 1 - alpha excludes 0 on the correct side.

    The mean difference is normal with variance s^2/S + C. The observed s^2 is independent of it and
    has a chi-square distribution with S - 1 degrees of freedom, over which the probability is
    integrated; `half_widths` computes the half-width. If C and J are 0, this is the noncentral t
    distribution that Hillis, Obuchowski and Berbaum ("Power estimation for multireader ROC
    methods", Academic Radiology 18, 2011) use.

    Args:
        loss: True difference, in the metric's unit.
        seeds: S >= 3.
        seed_variance: Expected s^2.
        covariance: Expected C, at least 0.
        jackknife_variance: Expected J.
        min_variance: Lower bound of the variance, such as the square of 1 / n for accuracy.
        alpha: Two-sided level.

    Raises:
        ValueError: There are fewer than three seeds.
    """
    from scipy.special import chdtri, ndtr

    if seeds < MIN_SEEDS:
        raise ValueError(f"an interval over seeds needs at least {MIN_SEEDS} seeds, not {seeds}")
    above = (np.arange(QUANTILES) + 0.5) / QUANTILES
    half = half_widths(
        alpha / 2,
        seed_variances=seed_variance * chdtri(seeds - 1, above) / (seeds - 1),
        seeds=seeds,
        jackknife_variance=jackknife_variance,
        covariance=covariance,
        cases=cases,
        min_variance=min_variance,
    )
    beyond = abs(loss) - half
    deviation = math.sqrt(seed_variance / seeds + covariance)
    if deviation == 0:
        return float(np.mean(beyond > 0))
    return float(np.mean(ndtr(beyond / deviation)))


MISS_PROBABILITY = 0.05  # that no draw shows the event

# Losing a share of the cases costs at least about this share of the metric. Where classes weigh
# alike, as in macro F1, a case of a frequent class costs less than in accuracy, and F1 counts half
# of a lost case.
MIN_WORTH = 0.5


def rate_upper_limit(draws: int, *, probability: float = MISS_PROBABILITY) -> float:
    """Return the largest rate of an event that does not occur in `draws` independent draws.

    At the rate 1 - probability^(1 / draws), none of the draws shows the event with this probability
    (the exact form of the rule of three, Hanley and Lippman-Hand, JAMA 249, 1983). For cases, it is
    the largest share of cases that an arm may lose at every seed without any of them being in the
    test set: 0.46 % for 648 cases. For seeds, it is the largest rate of failed trainings if none of
    these failed: 45 % for five seeds.

    Args:
        draws: Number of draws, at least 1.
        probability: Probability of seeing no event, between 0 and 1.

    Raises:
        InputError: `draws` is less than 1.
    """
    if draws < 1:
        raise InputError(f"draws {draws}: the number of cases or seeds must be at least 1")
    return -math.expm1(math.log(probability) / draws)


def draws_to_exclude(rate: float, *, probability: float = MISS_PROBABILITY) -> int:
    """Return the minimum number of draws without an event that excludes a rate: 299 for 1 %.

    Args:
        rate: Rate of the event, between 0 and 1, exclusive.
        probability: Probability of seeing no event, as in `rate_upper_limit`.
    """
    return math.ceil(math.log(probability) / math.log1p(-rate))


def min_support(costliest: CostliestCase, cases: int, *, margin: float, alpha: float) -> int:
    """Return the number of cases of the costliest kind without which equivalence is impossible.

    If L cases of this kind are together worth c of the metric, then losing the whole margin in this
    kind means losing the share q = margin L / (c n) of all cases, and (1 - q)^n <= alpha is
    required. For balanced accuracy over K classes, this is about 3 / (K margin), such as 60 cases
    per class for one point and five classes; for macro F1, about half of that. For accuracy, it is
    the number of all cases, about 3 / margin.

    Args:
        costliest: The kind of case whose loss costs the metric most.
        margin: Margin in the metric's unit.
    """
    together = costliest.effect * costliest.support
    if costliest.label is None:
        return draws_to_exclude(min(margin / together, 0.5), probability=alpha)
    return math.ceil(together * cases / margin * rate_upper_limit(cases, probability=alpha))


@dataclass(frozen=True, kw_only=True)
class DetectionLimits:
    """The smallest effects that a comparison can detect or exclude, known before any run."""

    cases: int  # Number of independent test cases.
    cases_needed: int  # Number of cases below which no number of seeds establishes equivalence.
    margin_needed: float  # Smallest margin at which equivalence is possible with these cases.
    is_equivalence_possible: bool  # Whether it is possible with these cases and seeds.
    # Smallest loss that can be found, as a share of the cases; None if even the loss of half of
    # them cannot.
    smallest_difference: float | None


def detection_limits(
    cases: int, *, seeds: int, arms: int, margin: float, alpha: float, metric: str
) -> DetectionLimits:
    """Return the smallest effects that a comparison can detect or exclude.

    Args:
        cases: Number of independent test cases, at least 1.
        seeds: Number of seeds, at least 3.
        arms: Number of arms that are compared with the baseline.
        margin: Equivalence margin, as a fraction.
        alpha: Level of the last analysis.
        metric: Name of the primary metric, whose values are shares.
    """
    worth = 1.0 if metric == ACCURACY.name else MIN_WORTH
    level, share = alpha / arms, margin / worth  # the first step of Holm's procedure
    needed = draws_to_exclude(min(share, 0.5), probability=level)
    if cases < 2:
        return DetectionLimits(
            cases=cases, cases_needed=needed, margin_needed=worth,
            is_equivalence_possible=False, smallest_difference=None,
        )  # fmt: skip
    same = _estimate(cases, 0, seeds)
    counts = range(1, cases // 2 + 1)
    lost = bisect_left(
        counts, True, key=lambda n: _estimate(cases, n, seeds).p_difference() <= level
    )
    return DetectionLimits(
        cases=cases,
        cases_needed=needed,
        margin_needed=worth * rate_upper_limit(cases, probability=level),
        is_equivalence_possible=same.p_equivalence(share) <= level,
        smallest_difference=worth * counts[lost] / cases if lost < len(counts) else None,
    )


def _estimate(cases: int, lost: int, seeds: int) -> DifferenceEstimate:
    """Return the difference of an arm that loses the same cases at every seed."""
    labels = np.zeros(cases, dtype=np.int64)
    baseline = single_label_sums(labels, labels, 2)
    arm = single_label_sums(labels, (np.arange(cases) < lost).astype(np.int64), 2)
    return estimate_of_sums([arm] * seeds, [baseline] * seeds, ACCURACY)
