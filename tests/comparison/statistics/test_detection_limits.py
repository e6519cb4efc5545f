"""What a comparison cannot see: by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ampft.comparison.statistics.interval import estimate_difference, jackknife_differences
from ampft.comparison.statistics.power import (
    detection_limits,
    draws_to_exclude,
    min_support,
    rate_upper_limit,
)
from ampft.comparison.statistics.verdict import Verdict, decide
from ampft.errors import InputError
from ampft.metrics.sums import ACCURACY, BALANCED_ACCURACY, CostliestCase, single_label_sums

MARGIN = 0.01


def test_five_clean_seeds_exclude_only_high_failure_rates():
    assert rate_upper_limit(5) == pytest.approx(1 - 0.05 ** (1 / 5))
    assert rate_upper_limit(5) == pytest.approx(0.451, abs=5e-4)
    assert rate_upper_limit(1) == pytest.approx(0.95)


def test_cases_follow_the_rule_of_three():
    assert rate_upper_limit(648) == pytest.approx(0.00461, abs=5e-6)
    assert (1 - rate_upper_limit(648)) ** 648 == pytest.approx(0.05)
    assert rate_upper_limit(10**9) == pytest.approx(-np.log(0.05) * 1e-9, rel=1e-6)
    assert draws_to_exclude(0.01) == 299
    assert rate_upper_limit(299) <= 0.01 < rate_upper_limit(298)


def test_nothing_drawn_is_refused():
    with pytest.raises(InputError, match="draws 0: the number of cases or seeds must be"):
        rate_upper_limit(0)


def test_min_support_by_hand():
    whole = CostliestCase(1 / 200, None, 200)
    assert min_support(whole, 200, margin=MARGIN, alpha=0.05) == 299
    rare = CostliestCase(1 / (5 * 3), 2, 3)
    assert min_support(rare, 5000, margin=MARGIN, alpha=0.05) == 60


def agreeing(supports: tuple[int, ...], metric, seeds: int = 5):
    """Arms that agree in everything."""
    labels = np.repeat(np.arange(len(supports)), supports)
    rows = [single_label_sums(labels, labels, len(supports)) for _ in range(seeds)]
    return estimate_difference(jackknife_differences(rows, rows, metric))


def test_a_rare_class_is_not_called_equivalent_and_the_reason_is_given():
    decision = decide({"m": agreeing((2000, 1900, 20), BALANCED_ACCURACY)}, margin=MARGIN)["m"]
    assert decision.verdict is Verdict.UNDECIDED
    assert (decision.rarest_class, decision.rarest_cases) == (2, 20)
    needed = decision.cases_needed
    assert needed == 100
    enough = decide({"m": agreeing((2000, 1900, needed), BALANCED_ACCURACY)}, margin=MARGIN)["m"]
    assert enough.verdict is Verdict.EQUIVALENT
    assert enough.cases_needed is None


@pytest.mark.parametrize(("n", "verdict"), [(250, Verdict.UNDECIDED), (300, Verdict.EQUIVALENT)])
def test_too_few_cases_are_not_called_equivalent(n, verdict):
    decision = decide({"m": agreeing((n // 2, n // 2), ACCURACY)}, margin=MARGIN)["m"]
    assert decision.verdict is verdict
    assert decision.unseen_share == pytest.approx(3 / n, rel=0.01)
    assert decision.failure_rate == pytest.approx(0.451, abs=5e-4)
    assert decision.cases_needed == (299 if verdict is Verdict.UNDECIDED else None)
    assert (decision.rarest_class, decision.rarest_cases) == (None, n)


def test_with_several_modes_the_reason_is_given_at_the_level_of_holm():
    """320 cases exclude a loss of one point at 5 %, which one mode needs, but not at 2.5 %."""
    clean = agreeing((160, 160), ACCURACY)
    assert decide({"a": clean}, margin=MARGIN)["a"].verdict is Verdict.EQUIVALENT
    for decision in decide({"a": clean, "b": clean}, margin=MARGIN).values():
        assert decision.verdict is Verdict.UNDECIDED
        assert decision.p_equivalence <= 0.05 < decision.p_equivalence_holm
        assert decision.cases_needed == 368
        assert 0.99**368 <= 0.025 < 0.99**367


def test_after_an_equivalent_mode_the_others_are_tested_at_a_higher_level():
    modes = {"a": agreeing((300, 300), ACCURACY), "b": agreeing((140, 140), ACCURACY)}
    decisions = decide(modes, margin=MARGIN)
    assert decisions["a"].verdict is Verdict.EQUIVALENT
    assert decisions["a"].cases_needed is None
    assert decisions["b"].cases_needed == 299


@pytest.mark.parametrize(
    ("metric", "margin", "arms", "share"),
    [
        ("accuracy", 0.4, 1, 0.4),
        ("accuracy", 0.4, 4, 0.4),
        ("accuracy", 0.5, 1, 0.5),
        ("accuracy", 0.8, 1, 0.5),  # a model that loses more cases than it keeps is not asked for
        ("macro_f1", 0.15, 1, 0.3),  # a case may be worth half of its share
        ("macro_f1", 0.4, 1, 0.5),
    ],
)
def test_the_cases_that_equivalence_needs_before_any_run(metric, margin, arms, share):
    settings = {"seeds": 3, "arms": arms, "margin": margin, "alpha": 0.05, "metric": metric}
    # The fewest cases of which all are kept with at most this probability if a share is lost.
    needed = next(n for n in range(1, 999) if (1 - share) ** n <= 0.05 / arms)
    for cases in (1, 2, needed, 40):
        limits = detection_limits(cases, **settings)
        assert limits.cases_needed == needed
        worth = 1.0 if metric == "accuracy" else 0.5
        excluded = 1 - (0.05 / arms) ** (1 / cases) if cases > 1 else 1.0
        assert limits.margin_needed == pytest.approx(worth * excluded)
