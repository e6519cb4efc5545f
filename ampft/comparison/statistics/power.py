"""What more seeds would do, and how likely a planted loss is found."""

from __future__ import annotations

import math

import numpy as np

from ampft.comparison.statistics.interval import (
    FEWEST_SEEDS,
    DifferenceEstimate,
    errors_of_mean,
)
from ampft.comparison.statistics.jackknife import FloatArray
from ampft.comparison.statistics.unseen import rate_not_excluded
from ampft.errors import InputError

MOST_SEEDS = 1000
UNLIKELY, LIKELY = 0.05, 0.97  # chances of a decision at the ends of the range of seeds
FORECASTS = 500  # draws of what the next seeds bring
EACH_UP_TO, NUMBERS_ABOVE = 20, 25  # numbers of seeds that are tried: each of them, then a few
QUANTILES = 1000  # of s^2 in an integral: errs by less than 0.001


def seeds_to_decide(
    estimate: DifferenceEstimate, *, margin: float, alpha: float = 0.05
) -> tuple[int, int] | None:
    """Return how many seeds in all may decide an undecided comparison, from and to.

    With fewer seeds than the first number a decision is unlikely, and with the second it is likely:
    the chances of a decision pass 5 and 97 % there. They are forecast from draws of the variance
    between seeds and of the mean over all seeds, given s^2 and the estimate under a flat prior (of
    the mean and of log s^2; Box and Tiao, "Bayesian Inference in Statistical Analysis", 1973,
    section 2.4), and then of the seeds to come. C stays, because more seeds bring no new cases. The
    draws are always the same.

    In simulation, whatever the true difference, at most a sixth of the comparisons were decided
    with fewer seeds than the first number, and at most a sixth were not decided with the second
    (`benchmarks/interval_calibration.py`).

    Args:
        estimate: Of the S seeds that are there.
        margin: In the metric's unit.
        alpha: Level of the look.

    Returns:
        Numbers above S; an upper end of `MOST_SEEDS` means that many, more, or that no number
        decides. None where a decision stays unlikely at `MOST_SEEDS`: then more test cases help, or
        a wider margin.
    """
    forecast = _Forecast(estimate, margin=margin, alpha=alpha)
    seeds = len(estimate.per_seed)
    several = np.geomspace(EACH_UP_TO, MOST_SEEDS, NUMBERS_ABOVE).round().astype(int)
    numbers = sorted({*range(seeds + 1, EACH_UP_TO), *(n for n in several.tolist() if n > seeds)})
    first = None
    for number in numbers:
        chance = forecast.chance(number)
        if first is None and chance >= UNLIKELY:
            first = number
        if first is not None and chance >= LIKELY:
            return first, number
    return None if first is None else (first, MOST_SEEDS)


class _Forecast:
    """Draws of what more seeds would bring to a comparison."""

    tiny = float(np.finfo(np.float64).tiny)

    def __init__(self, estimate: DifferenceEstimate, *, margin: float, alpha: float) -> None:
        self.estimate, self.margin, self.alpha = estimate, margin, alpha
        self.generator = np.random.default_rng(0)
        self.seeds = len(estimate.per_seed)
        self.least = max(estimate.jackknife_variance - estimate.jackknife_covariance, 0.0)
        degrees = self.seeds - 1
        spread = estimate.seed_variance * degrees / self.generator.chisquare(degrees, FORECASTS)
        self.spread = np.maximum(spread, self.least)
        moved = self.generator.standard_normal(FORECASTS)
        self.centre = estimate.estimate + np.sqrt(self.spread / self.seeds) * moved
        # How far the limits that allow for rare losses reach, and reach where no case differs.
        self.below = self.above = self.least_reach = 0.0
        by_case = estimate.by_case
        if by_case is not None:
            self.below = estimate.estimate - by_case.lowest(1 - alpha)
            self.above = by_case.highest(1 - alpha) - estimate.estimate
            unseen = rate_not_excluded(int(by_case.counts.sum()), probability=alpha)
            self.least_reach = unseen * by_case.lost_steps * by_case.step

    def chance(self, seeds: int) -> float:
        """Return the share of draws in which that many seeds in all decide."""
        from scipy.special import stdtr

        estimate = self.estimate
        mean, spread = self._drawn(seeds)
        errors, degrees = errors_of_mean(
            spread,
            estimate.jackknife_covariance,
            seeds,
            smallest_variance=estimate.smallest_variance,
            cases=estimate.cases,
        )
        errors = np.maximum(errors, self.tiny)
        differs = 2 * stdtr(degrees, -np.abs(mean) / errors) <= self.alpha
        within = stdtr(degrees, (np.abs(mean) - self.margin) / errors) <= self.alpha
        shrunk = math.sqrt(self._variance_over_cases(seeds) / self._variance_over_cases(self.seeds))
        below, above = (max(shrunk * at, self.least_reach) for at in (self.below, self.above))
        within &= (mean - below >= -self.margin) & (mean + above <= self.margin)
        return float(np.mean(differs | within))

    def _variance_over_cases(self, seeds: int) -> float:
        """Return the variance of the mean over seeds that the cases explain."""
        covariance = self.estimate.jackknife_covariance
        variance = max(self.estimate.jackknife_variance, covariance, self.tiny)
        return (variance + (seeds - 1) * covariance) / seeds

    def _drawn(self, seeds: int) -> tuple[FloatArray, FloatArray]:
        """Return means and variances over that many seeds, of which some are there already."""
        more = seeds - self.seeds
        mean_of_more = self.generator.normal(self.centre, np.sqrt(self.spread / more))
        apart = self.estimate.estimate - mean_of_more
        squares = self.estimate.seed_variance * (self.seeds - 1) + self.seeds * more / seeds * (
            apart**2
        )
        if more > 1:
            squares = squares + self.spread * self.generator.chisquare(more - 1, FORECASTS)
        mean = (self.seeds * self.estimate.estimate + more * mean_of_more) / seeds
        return mean, np.maximum(squares / (seeds - 1), self.least)


def power(
    loss: float,
    *,
    seeds: int,
    seed_variance: float,
    covariance: float,
    jackknife_variance: float = 0.0,
    smallest_variance: float = 0.0,
    cases: int | None = None,
    alpha: float = 0.05,
) -> float:
    """Return the probability that the interval of level 1 - alpha excludes 0, on the loss's side.

    The mean difference is normal with variance s^2/S + C; the observed s^2 is independent of it,
    chi-square with S - 1 degrees of freedom, floored as in `obuchowski_rockette`, and so is V. The
    probability is integrated over it. Without covariance and floors this is the noncentral t
    distribution, which Hillis, Obuchowski and Berbaum ("Power estimation for multireader ROC
    methods", Academic Radiology 18, 2011) use throughout; at three seeds the floor takes much of
    that power away.

    Args:
        loss: True difference, in the metric's unit.
        seeds: S >= 3.
        seed_variance: s^2 that is expected, without a floor.
        covariance: C that is expected, >= 0.
        jackknife_variance: J that is expected; J - C is the floor of s^2.
        smallest_variance: Floor of V, such as the square of 1 / n for accuracy.
        cases: As in `obuchowski_rockette`.
        alpha: Two-sided level.

    Raises:
        InputError: There are fewer than three seeds.
    """
    from scipy.special import chdtri, ndtr, stdtrit

    if seeds < FEWEST_SEEDS:
        raise InputError(
            f"seeds {seeds}: an interval needs at least {FEWEST_SEEDS} seeds per mode; "
            "5 is the default"
        )
    above = (np.arange(QUANTILES) + 0.5) / QUANTILES
    observed = seed_variance * chdtri(seeds - 1, above) / (seeds - 1)
    observed = np.maximum(observed, jackknife_variance - covariance)
    errors, degrees = errors_of_mean(
        observed, covariance, seeds, smallest_variance=smallest_variance, cases=cases
    )
    beyond = abs(loss) - stdtrit(degrees, 1 - alpha / 2) * errors
    deviation = math.sqrt(seed_variance / seeds + covariance)
    if deviation == 0:
        return float(np.mean(beyond > 0))
    return float(np.mean(ndtr(beyond / deviation)))
