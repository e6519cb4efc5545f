"""Verdicts: the rules of the intervals with one mode, Holm with several, planned analyses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from estimates import estimate_from

from ampft.comparison.statistics.interval import DifferenceEstimate
from ampft.comparison.statistics.verdict import Verdict, alpha_per_analysis, decide, holm
from ampft.errors import InputError

MARGIN = 0.01


def known(estimate: float, error: float) -> DifferenceEstimate:
    return DifferenceEstimate(
        estimate=estimate,
        per_seed=np.full(5, estimate),
        seed_variance=5 * error**2,
        jackknife_variance=5 * error**2,
        jackknife_covariance=0.0,
        cases=500,
    )


def by_intervals(each: DifferenceEstimate, alpha: float) -> Verdict:
    """The rules of the design, word for word."""
    (low, high), (narrow_low, narrow_high) = each.interval(1 - alpha), each.interval(1 - 2 * alpha)
    skewed_low, skewed_high = each.skewed_limits(1 - 2 * alpha)
    assert skewed_low <= narrow_low
    assert narrow_high <= skewed_high
    rules = {
        Verdict.EQUIVALENT: skewed_low >= -MARGIN and skewed_high <= MARGIN,
        Verdict.WORSE_BEYOND: high <= -MARGIN,
        Verdict.BETTER_BEYOND: low >= MARGIN,
        Verdict.WORSE: high <= 0,
        Verdict.BETTER: low >= 0,
        Verdict.UNDECIDED: True,
    }
    return next(verdict for verdict, holds in rules.items() if holds)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.05, 0.025])
def test_one_mode_follows_the_intervals(alpha):
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(500):
        each = known(generator.normal(0, 0.015), generator.uniform(0.001, 0.01))
        decision = decide({"bf16": each}, margin=MARGIN, alpha=alpha)["bf16"]
        assert decision.verdict is by_intervals(each, alpha)
        assert (decision.seeds_to_decide is None) or decision.verdict is Verdict.UNDECIDED
        seen.add(decision.verdict)
    assert seen == set(Verdict)


@pytest.mark.parametrize(
    ("estimate", "error", "verdict"),
    [
        (0.0, 0.0025, "equivalent"),
        (0.0, 0.004, "undecided"),  # equivalent unless effects are skewed over the seeds
        (-0.005, 0.001, "equivalent"),  # differs, and equivalence wins
        (-0.03, 0.003, "worse beyond the margin"),
        (-0.015, 0.004, "worse, size uncertain"),
        (0.03, 0.003, "better beyond the margin"),
        (0.015, 0.004, "better, size uncertain"),
        (-0.005, 0.004, "undecided"),
    ],
)
def test_each_verdict(estimate, error, verdict):
    assert decide({"m": known(estimate, error)}, margin=MARGIN)["m"].verdict == verdict


def test_several_modes_pay_for_looking_at_several():
    alone = known(-0.015, 0.0045)  # p = 0.029
    assert decide({"a": alone}, margin=MARGIN)["a"].verdict is Verdict.WORSE
    together = decide({"a": alone, "b": known(0.0, 0.0045)}, margin=MARGIN)
    assert together["a"].verdict is Verdict.UNDECIDED
    assert together["a"].p_difference_holm == pytest.approx(2 * together["a"].p_difference)
    assert list(together) == ["a", "b"]


@pytest.mark.slow
def test_with_holm_beyond_implies_different():
    generator = np.random.default_rng(1)
    for _ in range(200):
        modes = {
            name: known(generator.normal(0, 0.02), generator.uniform(0.002, 0.01))
            for name in "abcd"
        }
        for decision in decide(modes, margin=MARGIN).values():
            assert decision.p_beyond_holm >= decision.p_difference_holm
            assert decision.p_difference_holm >= decision.p_difference


def test_holm_by_hand():
    p_values = {"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}
    assert holm(p_values) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(holm(p_values)) == list(p_values)
    assert holm({}) == {}
    assert holm({"a": 0.7, "b": 0.9}) == {"a": 1.0, "b": 1.0}


def test_planned_analyses_share_alpha():
    assert alpha_per_analysis((5,)) == 0.05
    assert alpha_per_analysis((5, 10)) == 0.025
    for seed_counts in ((), (5, 5), (10, 5), (0,), (-1, 5)):
        with pytest.raises(InputError, match="they must be positive and increasing"):
            alpha_per_analysis(seed_counts)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"margin": 0.0}, "margin 0: the margin must be between 0 and 1"),
        ({"margin": 1.5}, "margin 1.5"),
        ({"margin": math.nan}, "margin nan"),
        ({"margin": 0.01, "alpha": 0.5}, "alpha 0.5: the level must be"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(InputError, match=message):
        decide({"m": known(0.0, 0.01)}, **settings)


def test_a_comparison_is_decided_the_same_twice():
    each = estimate_from(np.array([0.0, 0.01, -0.02, 0.004]), 1e-4, 3e-5)
    first, second = (decide({"m": each}, margin=MARGIN)["m"] for _ in range(2))
    assert first == second
