"""Intervals and verdicts for models that are given, over test cases only."""

import math

import numpy as np
import pytest
from scipy import stats

from ampft.comparison.statistics.interval import estimate_over_cases, jackknife_differences
from ampft.comparison.statistics.verdict import decide
from ampft.metrics.sums import ACCURACY, single_label_sums

MARGIN = 0.02


def estimate(arm_wrong, base_wrong):
    """Return the estimate for (S, n) booleans of wrong predictions."""
    sides = []
    for wrong in (arm_wrong, base_wrong):
        labels = np.zeros(wrong.shape[1], dtype=np.int64)
        sides.append([single_label_sums(labels, row.astype(np.int64), 2) for row in wrong])
    return estimate_over_cases(jackknife_differences(*sides, ACCURACY))


def test_the_variance_of_one_model_is_that_of_a_mean_of_paired_differences():
    rng = np.random.default_rng(0)
    base, arm = rng.random((2, 1, 400)) < 0.2
    received = estimate(arm, base)
    differences = base.astype(float)[0] - arm[0]
    assert received.estimate == pytest.approx(differences.mean())
    error = differences.std(ddof=1) / math.sqrt(400)
    assert received.half_width(0.05) == pytest.approx(stats.t.ppf(0.95, 399) * error)


def test_models_that_share_their_flips_do_not_count_as_more_cases():
    rng = np.random.default_rng(1)
    base, arm = rng.random((2, 1, 300)) < 0.2
    one, two = estimate(arm, base), estimate(np.repeat(arm, 2, 0), np.repeat(base, 2, 0))
    assert two.half_width(0.05) == pytest.approx(one.half_width(0.05))


def test_equal_predictions_do_not_prove_equality():
    wrong = np.zeros((1, 200), dtype=bool)
    received = estimate(wrong, wrong)
    low, high = received.interval(0.95)
    assert low < 0 < high
    decision = decide({"int8": received}, margin=0.005)["int8"]
    assert decision.verdict == "undecided"
    assert decision.seeds_to_decide is None
    assert decision.failure_rate is None


@pytest.mark.full
@pytest.mark.parametrize("flips", [0.0, 0.03])
def test_a_loss_as_large_as_the_margin_is_rarely_called_equivalent(flips):
    rng = np.random.default_rng(2)
    comparisons, cases = 150, 500
    claims = 0
    for _ in range(comparisons):
        base = rng.random((1, cases)) < 0.15
        arm = base ^ (rng.random((1, cases)) < flips)
        lost = rng.random((1, cases)) < MARGIN / 0.85
        received = estimate(arm | lost, base)
        claims += decide({"int8": received}, margin=MARGIN)["int8"].verdict == "equivalent"
    nominal = 0.05
    assert claims / comparisons <= nominal + 3 * math.sqrt(nominal * 0.95 / comparisons)
