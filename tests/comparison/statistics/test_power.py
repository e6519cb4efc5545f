"""Seeds that would decide, the power of a planted loss, and McNemar's mid-p."""

from __future__ import annotations

import math

import numpy as np
import pytest
from estimates import MANY, estimate_from
from scipy import stats

from ampft.comparison.statistics.interval import half_widths
from ampft.comparison.statistics.power import MAX_SEEDS, power, seeds_to_decide
from ampft.comparison.statistics.verdict import mcnemar_mid_p

MARGIN = 0.01
SEEDS = np.array([-0.012, 0.008, 0.004, -0.006, 0.010])  # mean 0.0008, sd 0.0094


def test_more_seeds_decide_where_seeds_are_the_noise():
    found = seeds_to_decide(estimate_from(SEEDS, 1e-5, 1e-6), margin=MARGIN)
    assert found is not None
    low, high = found
    assert 5 < low < high < 100


def test_no_seeds_decide_where_the_examples_are_the_noise():
    """sqrt(C) is a margin, and the difference is next to none."""
    noisy = estimate_from(SEEDS / 10, 2e-4, 1e-4)
    assert seeds_to_decide(noisy, margin=MARGIN) is None
    assert seeds_to_decide(noisy, margin=5 * MARGIN) is not None


def test_an_end_that_is_out_of_reach_is_said():
    """The difference is the margin: nobody knows on which side of it more seeds would be."""
    each = estimate_from(SEEDS - SEEDS.mean() + MARGIN, 2e-5, 1e-5)
    found = seeds_to_decide(each, margin=MARGIN)
    assert found is not None
    assert 5 < found[0] < found[1] == MAX_SEEDS


def test_a_forecast_is_the_same_twice():
    each = estimate_from(SEEDS, 1e-5, 1e-6)
    assert seeds_to_decide(each, margin=MARGIN) == seeds_to_decide(each, margin=MARGIN)


@pytest.mark.slow
@pytest.mark.parametrize(("truth", "deviation"), [(0.0, 0.02), (0.005, 0.02), (0.015, 0.02)])
def test_the_range_of_seeds_is_rarely_wrong(truth, deviation):
    """Seeds are normal and the cases are known: a fifth of the ranges may be wrong at each end."""
    generator = np.random.default_rng(0)
    sooner, later, stated = [], [], 0
    for _ in range(100):
        seeds = generator.normal(truth, deviation, MAX_SEEDS)

        def at(number: int, seeds=seeds):
            return estimate_from(seeds[:number], 1e-5, 1e-6, cases=1000)

        if not is_decided(at(5)):
            found = seeds_to_decide(at(5), margin=MARGIN)
            low, high = found or (MAX_SEEDS, MAX_SEEDS)
            sooner.append(low > 6 and is_decided(at(low - 1)))
            later.append(high < MAX_SEEDS and not is_decided(at(high)))
            stated += high < MAX_SEEDS
    assert len(sooner) > 30
    assert stated > 20  # a range that never ends would always be right
    assert np.mean(sooner) <= 0.2
    assert np.mean(later) <= 0.2


def is_decided(each) -> bool:
    return min(each.p_difference(), each.p_equivalence(MARGIN)) <= 0.05


def test_power_is_the_level_without_a_loss_and_grows():
    level = power(0.0, seeds=5, seed_variance=1e-4, covariance=1e-5, cases=MANY)
    assert 0.019 < level < 0.03  # on the side of the loss alone
    powers = [
        power(0.02, seeds=seeds, seed_variance=2e-4, covariance=2e-5, cases=MANY)
        for seeds in (3, 5, 10, 20)
    ]
    assert powers == sorted(powers)
    assert power(-0.02, seeds=5, seed_variance=2e-4, covariance=2e-5, cases=MANY) == powers[1]
    assert power(0.02, seeds=5, seed_variance=0.0, covariance=0.0, cases=MANY) == 1
    assert 0.99 < power(0.02, seeds=5, seed_variance=0.0, covariance=2e-5, cases=MANY) < 1


def test_power_is_that_of_the_paired_t_test_without_covariance():
    degrees, noncentrality = 4, 0.02 / math.sqrt(2e-4 / 5)
    wanted = stats.nct.sf(stats.t.ppf(0.975, degrees), degrees, noncentrality)
    assert power(0.02, seeds=5, seed_variance=2e-4, covariance=0.0, cases=MANY) == pytest.approx(
        wanted, abs=1e-3
    )


def error_of(rule, seeds: int, share: float, tail: float) -> float:
    """The two-sided error for normal data, where `share` of V is s^2/S and J - C is 0."""
    above = (np.arange(2000) + 0.5) / 2000
    variances = share * seeds * stats.chi2.ppf(above, seeds - 1) / (seeds - 1)
    return float(np.mean(2 * stats.norm.sf(rule(tail, variances, seeds, 1 - share))))


def weighted(tail, variances, seeds, covariance):
    return half_widths(
        tail, seed_variances=variances, seeds=seeds, jackknife_variance=0.0, covariance=covariance,
        cases=MANY,
    )  # fmt: skip


def of_hillis(tail, variances, seeds, covariance):
    total = variances / seeds + covariance
    return stats.t.isf(tail, (seeds - 1) * (total / (variances / seeds)) ** 2) * np.sqrt(total)


def first_order(tail, variances, seeds, covariance):
    total = variances / seeds + covariance
    share = variances / seeds / total
    return stats.t.isf(tail, 1 / (share / (seeds - 1) + (1 - share) / MANY)) * np.sqrt(total)


SHARES = [0.05, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98, 1.0]
# The largest errors at S = 3, 5 and 10. Two modes or planned analyses need 2.5 %, four 1.25 %.
WORST = {
    0.1: (0.101, 0.101, 0.101),
    0.05: (0.0508, 0.0503, 0.0503),
    0.025: (0.0267, 0.0252, 0.0252),
}


@pytest.mark.parametrize("alpha", WORST)
def test_the_level_holds_whatever_the_covariance(alpha):
    """Without J - C, which real data have and which can only lower it."""
    for seeds, most in zip((3, 5, 10), WORST[alpha], strict=True):
        errors = [error_of(weighted, seeds, share, alpha / 2) for share in SHARES]
        assert alpha * 0.95 < max(errors) < most


def test_other_rules_do_not_hold_it():
    """Negative controls, and the reason for a weighted critical value."""
    for rule, most in ((of_hillis, (0.075, 0.05)), (first_order, (0.057, 0.034))):
        for alpha, error in zip((0.05, 0.025), most, strict=True):
            assert max(error_of(rule, 3, share, alpha / 2) for share in SHARES) > error
    assert max(error_of(of_hillis, 5, share, 0.025) for share in SHARES) > 0.057


def test_power_uses_the_floor_of_the_interval():
    """By hand: at the floor the half-width is t(0.975; S - 1) cases, whatever the losses vary."""
    case_effect = 1 / 300
    reach = stats.t.ppf(0.975, 4) * case_effect
    arguments = {"seeds": 5, "seed_variance": 0.0, "covariance": 1e-12, "cases": 300}
    for loss, wanted in ((0.9 * reach, 0.0), (1.1 * reach, 1.0)):
        found = power(loss, **arguments, min_variance=case_effect**2)
        assert found == pytest.approx(wanted, abs=1e-6)
    assert power(0.9 * reach, **arguments) == pytest.approx(1)
    nothing = arguments | {"covariance": 0.0}
    assert power(0.9 * reach, **nothing, min_variance=case_effect**2) == 0
    assert power(1.1 * reach, **nothing, min_variance=case_effect**2) == 1


@pytest.mark.parametrize("seeds", [0, 1, 2])
def test_power_of_too_few_seeds_is_refused(seeds):
    with pytest.raises(ValueError, match=f"needs at least 3 seeds, not {seeds}"):
        power(0.02, seeds=seeds, seed_variance=1e-4, covariance=0.0, cases=MANY)


def test_the_bound_of_fixed_seeds_takes_little_power_at_three_seeds():
    free, bounded = (
        power(
            0.02, seeds=3, seed_variance=1e-4, covariance=0.0, jackknife_variance=each, cases=MANY
        )
        for each in (0.0, 1e-4)
    )
    assert 0.9 * free < bounded < free


@pytest.mark.parametrize(
    ("mode", "baseline", "wanted"),
    [
        # Fagerland, Lydersen, Laake 2013, table 1 (Bentur et al.): 1 and 7 discordant, 0.039.
        (1, 7, 0.0390625),
        (7, 1, 0.0390625),
        (0, 0, 1.0),
        (0, 1, 0.5),
        (1, 1, 0.75),
        (2, 2, 1 - 6 / 32),
    ],
)
def test_mid_p_by_hand(mode, baseline, wanted):
    assert mcnemar_mid_p(mode, baseline) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(("mode", "baseline"), [(0, 12), (3, 9), (10, 10), (41, 17)])
def test_mid_p_by_enumeration(mode, baseline):
    """All outcomes that are less likely, and half of those that are as likely."""
    m = mode + baseline
    chances = {x: math.comb(m, x) for x in range(m + 1)}
    seen = chances[mode]
    wanted = sum(c for c in chances.values() if c < seen)
    wanted += sum(c for c in chances.values() if c == seen) / 2
    assert mcnemar_mid_p(mode, baseline) == pytest.approx(wanted / 2**m, rel=1e-9)
    assert mcnemar_mid_p(mode, baseline) < stats.binomtest(mode, m).pvalue


def test_mid_p_of_a_million():
    b, c = 1_000_000, 1_003_000
    normal = 2 * stats.norm.sf(abs(b - c) / math.sqrt(b + c))
    assert mcnemar_mid_p(b, c) == pytest.approx(normal, rel=1e-4)
    assert mcnemar_mid_p(10**6, 10**6) == pytest.approx(1, abs=1e-3)
    assert mcnemar_mid_p(0, 10**6) == 0


def test_negative_counts_are_refused():
    with pytest.raises(ValueError, match="counts must not be negative, received -1 and 3"):
        mcnemar_mid_p(-1, 3)
