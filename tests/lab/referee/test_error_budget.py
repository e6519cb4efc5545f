"""The error of a sequence is spent once, and transcripts share it."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import norm, t

from ampft.comparison.statistics.interval import DifferenceEstimate
from ampft.lab.referee.keep_or_drop import (
    CandidateAnswer,
    CandidateCriteria,
    Claim,
    TryErrorBudget,
    decide,
    level_of_try,
    log_transcript_share,
    lower_limit,
    share_of_try,
)

BUDGET = {"error": 0.05, "planned": 20}


@pytest.mark.parametrize("planned", [1, 20, 100])
def test_all_tries_together_use_at_most_the_error(planned):
    total = sum(share_of_try(number, planned) for number in range(1, 20_000))
    assert 0.999 < total <= 1


@pytest.mark.parametrize("number", [1, 2, 5, 9])
def test_the_transcripts_before_a_try_share_at_most_one(number):
    # Each earlier try was kept or not. The codes of the points that a keep shows sum to 1.
    codes = sum(2.0 ** -(points + 1) for points in range(60))
    total = 0.0
    for kept in product((False, True), repeat=number - 1):
        keeps = sum(kept)
        total += math.exp(log_transcript_share(number, [0] * keeps)) * (2 * codes) ** keeps
    assert total <= 1 + 1e-9
    assert total > 0.4


def test_a_keep_that_shows_more_points_has_a_smaller_share():
    shares = [log_transcript_share(5, [points]) for points in range(4)]
    assert np.diff(shares) == pytest.approx([-math.log(2)] * 3)


def limit_of(allowed, rows=1.0, seeds=1.0):
    return allowed.reuse_limit(rows, seeds, seeds=10, cases=10**6)


def test_before_the_first_keep_the_error_over_rows_counts_as_an_absolute_value():
    allowed = level_of_try(7, [], **BUDGET, sealed=True)
    assert limit_of(allowed, seeds=0.0) == pytest.approx(norm.isf(allowed.level / 2), rel=0.01)
    assert limit_of(allowed, rows=0.0) == pytest.approx(t.isf(allowed.level, 9), rel=0.01)


def test_each_keep_and_each_point_shown_cost_more():
    limits = [
        limit_of(level_of_try(10, shown, **BUDGET, sealed=True))
        for shown in ([], [0], [3], [3, 0], [3, 0, 0])
    ]
    assert limits == sorted(limits)
    assert len(set(limits)) == len(limits)


@pytest.mark.parametrize("over_seeds", [0.0, 0.3, 2.0])
def test_the_best_of_all_transcripts_is_within_its_bound(over_seeds):
    # An adversary who picks the luckiest of m functions on the rows, by the bound of its share.
    random, m, level = np.random.default_rng(0), 200, 0.02
    allowed = TryErrorBudget(number=2, level=level, log_share=-math.log(m))
    luckiest = random.standard_normal((20_000, m)).max(axis=1)
    found = luckiest + over_seeds * random.standard_t(9, 20_000)
    above = (found > limit_of(allowed, seeds=over_seeds)).mean()
    assert level / 2 < above <= level * 1.1  # the bound is close
    usual = math.hypot(norm.isf(level), over_seeds * t.isf(level, 9))
    assert (found > usual).mean() > 2 * level  # what a test without the bound would do


def estimate(gain: float, *, seeds: int = 5, spread: float = 0.002) -> DifferenceEstimate:
    per_seed = gain + spread * np.linspace(-1, 1, seeds)
    return DifferenceEstimate(
        estimate=float(per_seed.mean()),
        per_seed=per_seed,
        seed_variance=float(per_seed.var(ddof=1)),
        jackknife_variance=2e-5,
        jackknife_covariance=1e-5,
        cases=1000,
        min_variance=1e-6,
    )


def question(**changes) -> CandidateCriteria:
    values = {"claim": Claim.BETTER, "margin": 0.01, "max_seeds": 10, "sealed": True}
    return CandidateCriteria(**values | changes)


def test_a_keep_needs_a_limit_above_zero_and_shows_whole_steps():
    allowed = level_of_try(1, [], **BUDGET, sealed=True)
    for gain in (0.005, 0.02, 0.05):
        found = decide(estimate(gain), allowed, question())
        limit = lower_limit(estimate(gain), allowed, gain=gain)
        assert found.estimate.lower == pytest.approx(limit)
        assert (found.answer is CandidateAnswer.KEEP) == (limit > 0)
        assert found.shown_points == (max(int(limit / 0.01), 0))
    assert found.shown_points >= 1


def test_lower_values_can_be_better():
    allowed = level_of_try(1, [], **BUDGET, sealed=True)
    better, worse = question(higher_is_better=False), question()
    assert decide(estimate(-0.05), allowed, better).answer is CandidateAnswer.KEEP
    assert decide(estimate(-0.05), allowed, worse).answer is not CandidateAnswer.KEEP


def test_other_answers_of_a_sealed_ledger_depend_on_the_number_of_seeds_only():
    allowed = level_of_try(1, [], **BUDGET, sealed=True)
    for gain in (-0.3, 0.0, 0.004):
        assert decide(estimate(gain), allowed, question()).answer is CandidateAnswer.UNDECIDED
        found = decide(estimate(gain, seeds=10), allowed, question())
        assert found.answer is CandidateAnswer.DROP


def test_an_open_ledger_drops_what_no_seeds_can_decide():
    allowed = level_of_try(1, [], **BUDGET, sealed=False)
    opened = question(sealed=False)
    assert decide(estimate(-0.1), allowed, opened).answer is CandidateAnswer.DROP
    close = decide(estimate(0.012, spread=0.012), allowed, question(sealed=False, max_seeds=100))
    assert close.answer is CandidateAnswer.UNDECIDED
    assert close.estimate.seeds_to_decide is not None
    assert close.estimate.cases_to_show is not None


def test_not_worse_is_kept_within_the_margin_only():
    allowed = level_of_try(1, [], **BUDGET, sealed=True)
    asked = question(claim=Claim.NOT_WORSE, margin=0.03)
    assert decide(estimate(0.0), allowed, asked).answer is CandidateAnswer.KEEP
    assert decide(estimate(-0.029), allowed, asked).answer is not CandidateAnswer.KEEP
