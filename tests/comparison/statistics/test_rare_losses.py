"""Rare losses: against exact binomial tests, by hand, and by enumeration of all outcomes."""

from __future__ import annotations

import numpy as np
import pytest
from estimates import estimate_from
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from ampft.comparison.statistics.case_distribution import CaseDistribution
from ampft.comparison.statistics.interval import DifferenceEstimate
from ampft.metrics.rare_losses import tail_of_sum

MARGIN = 0.01
ROUNDING = 1e-12  # of a sum of probabilities by Fourier transform


def systematic(losses: int, n: int, seeds: int = 5) -> CaseDistribution:
    """That many of n cases are lost at every seed, and nothing else differs."""
    values = np.zeros(n)
    values[:losses] = -1
    return CaseDistribution.from_differences(values, 1.0, seeds)


def estimate_of(losses: int, n: int, seeds: int) -> DifferenceEstimate:
    """The estimate of accuracy in that situation: J and C are the same."""
    case_distribution = systematic(losses, n, seeds)
    variance = losses * (n - losses) / n**2 / (n - 1)
    return estimate_from(
        np.full(seeds, case_distribution.mean),
        variance,
        variance,
        min_variance=1 / n**2,
        cases=n,
        case_distribution=case_distribution,
    )


@pytest.mark.parametrize("n", [50, 299, 648, 5000])
@pytest.mark.parametrize("losses", [0, 1, 2, 7])
@pytest.mark.parametrize("margin", [0.005, 0.01, 0.04])
def test_systematic_losses_are_tested_exactly(n, losses, margin):
    wanted = stats.binom.cdf(losses, n, margin) if losses < n * margin else 1.0
    assert systematic(losses, n).p_above(-margin) == pytest.approx(wanted, abs=1e-9)


def test_clopper_pearson_limits():
    for losses, n in ((0, 300), (3, 648), (20, 1000)):
        low = systematic(losses, n).lower_limit(0.975)
        assert -low == pytest.approx(stats.beta.ppf(0.975, losses + 1, n - losses), rel=1e-4)


@pytest.mark.parametrize("level", [0.9, 0.95, 0.975])
@pytest.mark.parametrize(("losses", "n"), [(0, 300), (2, 648)])
def test_an_interval_has_half_of_its_error_on_each_side(losses, n, level):
    """Clopper and Pearson's two-sided limit, which is 1.23 times the one-sided one for 0 losses."""
    each = estimate_of(losses, n, 5)
    tail = (1 - level) / 2
    limit = stats.beta.ppf(1 - tail, losses + 1, n - losses)
    assert -each.interval(level)[0] == pytest.approx(limit, rel=1e-4)
    assert -each.rare_limits(level)[0] == pytest.approx(limit, rel=1e-4)
    assert limit > 1.05 * stats.beta.ppf(level, losses + 1, n - losses)


def test_the_noise_of_seeds_widens_the_limits_by_what_cases_do_not_explain():
    """Flips of each seed explain s^2: the limits are those of the cases only, and not wider."""
    rows = np.zeros((3, 600))
    for seed, row in enumerate(rows):
        row[10 * seed : 10 * seed + 5], row[100 + seed] = -1, 1
    values = rows.mean(axis=0)
    each = estimate_from(
        rows.mean(axis=1) + np.array([-1, 0, 1]) * 1e-3,
        float(rows.var(axis=1, ddof=1).mean()) / 600,
        0.0,
        cases=600,
        case_distribution=CaseDistribution.from_differences(values, 1.0, 3),
    )
    assert each.seed_noise == 0
    wanted = each.case_distribution.lower_limit(0.975), each.case_distribution.upper_limit(0.975)
    assert each.rare_limits(0.95) == wanted
    wider = each.case_distribution.lower_limit(0.975, noise=each.seed_variance / 3)
    assert wider < wanted[0]


def test_gains_are_losses_of_the_other_side():
    generator = np.random.default_rng(0)
    values = generator.integers(-5, 6, 200) / 5 * (generator.random(200) < 0.1)
    lost, gained = (
        CaseDistribution.from_differences(values, 1.0, 5),
        CaseDistribution.from_differences(-values, 1.0, 5),
    )
    for limit in (0.005, 0.02, 0.05):
        assert lost.p_above(-limit) == gained.p_below(limit)
    assert lost.lower_limit(0.95) == -gained.upper_limit(0.95)


def test_many_differences_have_the_normal_limit():
    generator = np.random.default_rng(1)
    values = generator.choice([-1.0, 0.0, 1.0], 20_000, p=[0.2, 0.6, 0.2])
    found = CaseDistribution.from_differences(values, 1.0, 5)
    error = values.std() / np.sqrt(len(values))
    for distance in (1.0, 1.645, 2.5):
        p_value = found.p_above(float(values.mean()) - distance * error)
        assert p_value == pytest.approx(stats.norm.sf(distance), rel=0.05)


@pytest.mark.parametrize(
    "values",
    [
        [0.0, 0.0, 0.0, 0.2, -0.2],  # a lost case is needed
        [0.0, -1.0, 0.0, 0.2, 0.4],  # a lost case is there
        [-0.8, 0.6, 0.6, 0.6, -0.8],  # tilting is enough
    ],
)
@pytest.mark.parametrize("distance", [0.05, 0.3])
def test_the_distribution_is_the_likeliest(values, distance):
    """By a general optimizer over the probabilities of each value, and of a lost case."""
    values = np.array(values)
    found = CaseDistribution.from_differences(values, 1.0, 5)
    limit = found.mean - distance
    steps, shares = found._likeliest(limit)
    assert shares.sum() == pytest.approx(1)
    assert shares @ steps * found.step == pytest.approx(limit)
    counts = dict(zip(found.steps.tolist(), found.counts.tolist(), strict=True))
    chance = sum(count * np.log(shares[steps == step].sum()) for step, count in counts.items())
    support = np.append(values, -1.0)
    best = optimize.minimize(
        lambda p: -np.log(np.maximum(p[:-1], 1e-12)).sum(),
        np.append(np.full(len(values), 0.19), 0.05),
        constraints=[
            {"type": "eq", "fun": lambda p: p.sum() - 1},
            {"type": "eq", "fun": lambda p: p @ support - limit},
        ],
        bounds=[(0, 1)] * len(support),
        options={"maxiter": 1000, "ftol": 1e-12},
    )
    merged = np.array([best.x[support == value].sum() for value in np.unique(values)])
    numbers = np.array([(values == value).sum() for value in np.unique(values)])
    assert chance == pytest.approx(float(numbers @ np.log(merged)), abs=1e-4)


def test_the_tail_is_that_of_all_outcomes():
    steps, shares = np.array([-3, 0, 1, 4]), np.array([0.1, 0.6, 0.2, 0.1])
    density = np.array([1.0])
    single = np.zeros(8)
    single[steps + 3] = shares
    for _ in range(6):
        density = np.convolve(density, single)
    for total in (-18, -4, 0, 3, 24):
        wanted = density[total + 18 :].sum()
        found = tail_of_sum(steps, shares, cases=6, total=total, noise=0.0)
        assert found == pytest.approx(wanted, abs=1e-12)


def test_noise_is_added():
    """Normal noise of the sum beside normal cases: variances add."""
    values = np.random.default_rng(2).choice([-1.0, 1.0], 4000)
    found = CaseDistribution.from_differences(values, 1.0, 5)
    cases = values.var() / len(values)
    for noise in (cases, 3 * cases):
        distance = 2 * np.sqrt(cases + noise)
        p_value = found.p_above(found.mean - distance, noise=noise)
        assert p_value == pytest.approx(stats.norm.sf(2), rel=0.05)
        assert p_value > found.p_above(found.mean - distance)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(10, 300), share=st.sampled_from([0.01, 0.3]))
def test_p_values_fall_with_the_distance_and_limits_are_where_they_pass(seed, n, share):
    generator = np.random.default_rng(seed)
    values = generator.integers(-5, 6, n) / 5 * (generator.random(n) < share)
    found = CaseDistribution.from_differences(values, 1.0, 5)
    p_values = [found.p_above(found.mean - distance) for distance in (0, 0.01, 0.05, 0.2, 0.5)]
    assert all(np.diff(p_values) < ROUNDING)
    low = found.lower_limit(0.95)
    assert found.p_above(low) <= 0.05 < found.p_above(low + 1e-4 * (found.mean - low))


def test_not_even_the_loss_of_every_case_explains_too_much():
    assert systematic(0, 300).p_above(-1.5) == 0
    assert CaseDistribution.from_differences(np.full(50, 0.5), 0.1, 5).p_above(-0.2) == 0


def test_the_grid_is_fine_enough_for_small_differences_beside_a_costly_case():
    """A rare class makes a lost case worth 40, the differences that are there 0.1 to 1."""
    values = np.random.default_rng(3).uniform(-1, 1, 2000)
    found = CaseDistribution.from_differences(values, 40.0, 5)
    rounded = found.steps * found.step
    assert found.counts @ rounded**2 == pytest.approx(values @ values, rel=0.02)
    assert found.step * found.lost_steps == pytest.approx(40)
    finer = CaseDistribution.from_differences(values, 40.0, 5 * 1000)
    assert finer.step < found.step / 2
    for distance in (0.01, 0.03, 0.1):
        p_value = found.p_above(found.mean - distance)
        assert p_value == pytest.approx(finer.p_above(finer.mean - distance), rel=0.02)


def test_differences_below_the_grid_are_noise():
    """A case can be lost by 36 nats, and differs by 0.005: a step of 0.03 shows none of that."""
    values = np.random.default_rng(4).normal(0, 0.005, 5000)
    found = CaseDistribution.from_differences(values, 36.0, 5)
    error = values.std() / np.sqrt(5000)
    none_lost = (1 - 2 * error / 36) ** 5000
    p_value = found.p_above(found.mean - 2 * error)
    assert p_value == pytest.approx(none_lost / 2, rel=0.05)


# The verdicts that follow


def false_equivalence(n: int, seeds: int, margin: float, *, by_t: bool) -> float:
    """The probability of "equivalent" where a subgroup of the margin's size is always lost."""
    most = int(stats.binom.ppf(0.9999, n, margin))
    total = 0.0
    for losses in range(most + 1):
        each = estimate_of(losses, n, seeds)
        p_value = each.p_equivalence_by_t(margin) if by_t else each.p_equivalence(margin)
        total += stats.binom.pmf(losses, n, margin) * (p_value <= 0.05)
    return total


SIZES = [50, 100, 135, 200, 213, 267, 293, 299, 300, 392, 473, 500, 648, 1000, 2000]


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("margin", [0.005, 0.01, 0.02, 0.04])
def test_a_subgroup_that_is_always_lost_passes_in_at_most_five_percent(seeds, margin):
    worst = max(false_equivalence(n, seeds, margin, by_t=False) for n in SIZES)
    assert 0.02 < worst <= 0.05


def test_by_t_it_passes_in_a_quarter():
    """Negative control: why the t tests are not enough, and more seeds do not help."""
    assert false_equivalence(267, 5, 0.01, by_t=True) > 0.06
    assert false_equivalence(648, 10, 0.01, by_t=True) > 0.1
    worst = max(false_equivalence(n, 10, 0.01, by_t=True) for n in SIZES)
    assert worst > 0.15


def test_two_hundred_and_ninety_nine_cases_establish_one_point():
    assert estimate_of(0, 298, 5).p_equivalence(MARGIN) > 0.05
    assert estimate_of(0, 299, 5).p_equivalence(MARGIN) <= 0.05


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from([100, 300, 1000]),
    share=st.sampled_from([0.0, 0.01, 0.1]),
    shift=st.sampled_from([0.0, -0.02, 0.05]),
)
def test_verdicts_and_intervals_agree(seed, n, share, shift):
    generator = np.random.default_rng(seed)
    rows = generator.choice([-1.0, 0.0, 1.0], (5, n), p=[share / 2, 1 - share, share / 2])
    rows[:, : int(abs(shift) * n)] = np.sign(shift)
    per_seed = rows.mean(axis=1)
    covariances = np.cov(rows) / n
    each = estimate_from(
        per_seed,
        float(np.trace(covariances)) / 5,
        float((covariances.sum() - np.trace(covariances)) / 20),
        min_variance=1 / n**2,
        cases=n,
        case_distribution=CaseDistribution.from_differences(rows.mean(axis=0), 1.0, 5),
    )
    (low, high), (inner_low, inner_high) = each.interval(0.95), each.interval(0.90)
    assert (each.p_difference() <= 0.05) == (low >= 0 or high <= 0)
    if each.p_equivalence(0.03) <= 0.05:
        assert inner_low >= -0.03
        assert inner_high <= 0.03
    elif inner_low < 0 < inner_high:
        skewed = each.skewed_limits(0.90)
        assert skewed is not None
        assert min(inner_low, skewed[0]) < -0.03 or max(inner_high, skewed[1]) > 0.03
    limits = each.estimate - high, each.estimate - low
    assert limits[0] <= 0 <= limits[1]
    for margin in (0.005, 0.015):
        beyond = low >= margin or high <= -margin
        assert (each.p_beyond(margin) <= 0.05) == beyond
        assert each.p_beyond(margin) >= each.p_difference()
