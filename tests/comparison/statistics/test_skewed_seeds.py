"""Equivalence allows for effects that are skewed over the seeds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ampft.comparison.statistics.interval import DifferenceEstimate, half_widths
from ampft.comparison.statistics.skewed_seeds import seed_critical, skewed_part

MARGIN = 0.01


def estimate(per_seed: np.ndarray, over_cases: float = 0.0) -> DifferenceEstimate:
    return DifferenceEstimate(
        estimate=float(per_seed.mean()),
        per_seed=per_seed,
        seed_variance=float(per_seed.var(ddof=1)),
        jackknife_variance=over_cases,
        jackknife_covariance=0.0,
        cases=2000,
    )


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("tail", [0.1, 0.05, 0.025])
def test_the_critical_value_is_a_quantile_of_t_for_exponential_values(seeds, tail):
    values = np.random.default_rng(1).exponential(size=(200_000, seeds)) - 1
    t = values.mean(axis=1) / (values.std(axis=1, ddof=1) / np.sqrt(seeds))
    critical = seed_critical(tail, seeds)
    assert (t < -critical).mean() == pytest.approx(tail, rel=0.05)
    assert (t < stats.t.ppf(tail, seeds - 1)).mean() > 1.8 * tail  # Student's fails


@pytest.mark.parametrize("seeds", [2, 3, 5, 30, 1000])
def test_the_critical_value_rises_with_confidence_and_is_at_least_students(seeds):
    tails = np.geomspace(0.5, 1e-15, 60)
    criticals = np.array([seed_critical(tail, seeds) for tail in tails])
    assert (np.diff(criticals) > 0).all()
    assert (criticals >= -stats.t.ppf(tails, seeds - 1)).all()
    assert np.isfinite(criticals).all()


def test_noise_that_the_cases_explain_is_not_skewed():
    for seeds in (3, 5, 20):
        drawn = np.random.default_rng(0).chisquare(seeds - 1, 20_000) / (seeds - 1)
        assert (skewed_part(drawn, 1.0, seeds) == 0).mean() == pytest.approx(0.25, abs=0.01)
        np.testing.assert_array_equal(skewed_part(drawn, 0.0, seeds), drawn)


def test_few_seeds_that_agree_by_luck_are_no_longer_equivalent():
    # Most trainings lose little and some lose much: these five lose 0.2 to 0.5 points.
    lucky = estimate(-np.array([0.002, 0.0035, 0.0025, 0.005, 0.003]))
    assert lucky.interval(0.9)[0] > -MARGIN / 2
    assert lucky.p_equivalence(MARGIN) <= 0.05  # far enough from the margin even so
    near = estimate(-np.array([0.002, 0.007, 0.0025, 0.008, 0.003]))
    assert near.interval(0.9)[0] > -MARGIN
    assert near.p_equivalence(MARGIN) > 0.05
    assert near.skewed_limits(0.9)[0] < -MARGIN
    assert near.p_difference() == estimate(-near.per_seed).p_difference()


def test_equivalence_follows_the_limits():
    generator = np.random.default_rng(2)
    for _ in range(60):
        over_cases = generator.choice([0.0, 4e-6])
        each = estimate(generator.normal(0.0, 0.004, int(generator.choice([3, 5, 9]))), over_cases)
        for level in (0.9, 0.95):
            low, high = each.skewed_limits(level)
            is_within = low >= -MARGIN and high <= MARGIN
            assert (each.p_equivalence(MARGIN) <= (1 - level) / 2) == is_within


def test_a_margin_beside_the_estimate_has_a_p_value():
    each = estimate(np.array([0.0098, 0.0102, 0.00999]))
    assert each.p_equivalence(MARGIN) == pytest.approx(0.5)


def test_the_level_holds_for_exponential_losses():
    generator = np.random.default_rng(3)
    seeds, number = 5, 20_000
    rates = []
    for over_cases in (0.0, 0.3, 1.0):  # standard deviation, beside 1 of the seeds
        losses = -generator.exponential(size=(number, seeds))
        losses += over_cases * generator.standard_normal(losses.shape)
        halves = {
            allows: half_widths(
                0.05,
                seed_variances=losses.var(axis=1, ddof=1),
                seeds=seeds,
                jackknife_variance=over_cases**2,
                covariance=0.0,
                cases=2000,
                allows_skewness=allows,
            )
            for allows in (False, True)
        }
        rates.append([(losses.mean(axis=1) - half >= -1).mean() for half in halves.values()])
    assert max(with_allowance for _, with_allowance in rates) < 0.058
    assert rates[0][0] > 0.14
