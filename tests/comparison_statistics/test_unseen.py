"""What a comparison cannot see: by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ampft.comparison.statistics.interval import estimate_difference
from ampft.comparison.statistics.jackknife import jackknife_differences
from ampft.comparison.statistics.unseen import (
    draws_to_exclude,
    largest_hidden_loss,
    rate_not_excluded,
    support_needed,
)
from ampft.comparison.statistics.verdict import BlindSpot, Verdict, decide
from ampft.errors import InputError
from ampft.metrics.sums import ACCURACY, BALANCED_ACCURACY, CostliestCase, single_label_sums

MARGIN = 0.01


def test_five_clean_seeds_exclude_only_high_failure_rates():
    assert rate_not_excluded(5) == pytest.approx(1 - 0.05 ** (1 / 5))
    assert rate_not_excluded(5) == pytest.approx(0.451, abs=5e-4)
    assert rate_not_excluded(1) == pytest.approx(0.95)


def test_cases_follow_the_rule_of_three():
    assert rate_not_excluded(648) == pytest.approx(0.00461, abs=5e-6)
    assert (1 - rate_not_excluded(648)) ** 648 == pytest.approx(0.05)
    assert rate_not_excluded(10**9) == pytest.approx(-np.log(0.05) * 1e-9, rel=1e-6)
    assert draws_to_exclude(0.01) == 299
    assert rate_not_excluded(299) <= 0.01 < rate_not_excluded(298)


def test_nothing_drawn_is_refused():
    with pytest.raises(InputError, match="clean 0: give the number of cases or seeds"):
        rate_not_excluded(0)


@pytest.mark.parametrize(("n", "passing"), [(299, 0), (472, 0), (473, 1), (648, 2), (10_000, 83)])
def test_a_hidden_loss_passes_with_the_stated_probability(n, passing):
    assert stats.binom.cdf(passing, n, MARGIN) <= 0.05 < stats.binom.cdf(passing + 1, n, MARGIN)
    for probability in (0.05, 0.5):
        share = largest_hidden_loss(n, margin=MARGIN, probability=probability)
        assert stats.binom.cdf(passing, n, share) == pytest.approx(probability)
        assert share <= MARGIN


def test_nothing_passes_where_nothing_can_be_established():
    assert largest_hidden_loss(298, margin=MARGIN) == 0


def test_support_needed_by_hand():
    whole = CostliestCase(1 / 200, None, 200)
    assert support_needed(whole, 200, margin=MARGIN, alpha=0.05) == 299
    rare = CostliestCase(1 / (5 * 3), 2, 3)
    assert support_needed(rare, 5000, margin=MARGIN, alpha=0.05) == 60


def agreeing(supports: tuple[int, ...], metric, seeds: int = 5):
    """Arms that agree in everything."""
    labels = np.repeat(np.arange(len(supports)), supports)
    rows = [single_label_sums(labels, labels, len(supports)) for _ in range(seeds)]
    return estimate_difference(jackknife_differences(rows, rows, metric))


def test_a_rare_class_is_not_called_equivalent_and_the_reason_is_given():
    decision = decide({"m": agreeing((2000, 1900, 20), BALANCED_ACCURACY)}, margin=MARGIN)["m"]
    assert decision.verdict is Verdict.UNDECIDED
    assert decision.blind.costliest == CostliestCase(pytest.approx(1 / 60), 2, 20)
    needed = decision.blind.needed
    assert needed == 100
    enough = decide({"m": agreeing((2000, 1900, needed), BALANCED_ACCURACY)}, margin=MARGIN)["m"]
    assert enough.verdict is Verdict.EQUIVALENT
    assert enough.blind.needed is None


@pytest.mark.parametrize(("n", "verdict"), [(250, Verdict.UNDECIDED), (300, Verdict.EQUIVALENT)])
def test_too_few_cases_are_not_called_equivalent(n, verdict):
    decision = decide({"m": agreeing((n // 2, n // 2), ACCURACY)}, margin=MARGIN)["m"]
    assert decision.verdict is verdict
    assert decision.blind == BlindSpot(
        share_of_cases=pytest.approx(3 / n, rel=0.01),
        failure_rate=pytest.approx(0.451, abs=5e-4),
        needed=299 if verdict is Verdict.UNDECIDED else None,
        costliest=CostliestCase(pytest.approx(1 / n), None, n),
    )
