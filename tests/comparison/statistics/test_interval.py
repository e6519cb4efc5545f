"""The interval over seeds and examples, against published analyses and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from estimates import by_hand, estimate_from, published
from scipy import stats

from ampft.comparison.statistics.interval import (
    DifferenceEstimate,
    JackknifeDifferences,
    estimate_difference,
    estimate_over_cases,
    jackknife_differences,
)
from ampft.labels.regression import R2
from ampft.metrics.sums import ACCURACY, MATTHEWS, CostliestCase, single_label_sums
from ampft.tasks.single_label import METRICS

# Van Dyke et al., spin-echo against cine MRI, 5 readers, 114 cases, trapezoidal AUC, jackknife: the
# output of OR-DBM MRMC 2.5 (Schartz, Hillis, Pesce, Berbaum; University of Iowa), as published in
# RJafroc (github.com/dpc10ster/RJafroc, inst/obumrm2/VanDyke-traparea-jackknife-obuch-anova.txt).
VAN_DYKE = {
    "first": [0.91964573, 0.85877617, 0.90386473, 0.97310789, 0.82979066],
    "second": [0.94782609, 0.90531401, 0.92173913, 0.99935588, 0.92995169],
    "error": 0.00080229, "cov1": 0.00034661, "cov2": 0.00034407, "cov3": 0.00023903,
}  # fmt: skip
# Franken et al., 4 readers, 100 cases: the same program's output in RJafroc,
# tests/testthat/goodValues361/Iowa/Franken1.txt.
FRANKEN = {
    "first": [0.85345997, 0.86499322, 0.85730439, 0.81524197],
    "second": [0.84961556, 0.84350972, 0.84011759, 0.81433740],
    "error": 0.00152578, "cov1": 0.00079168, "cov2": 0.00048364, "cov3": 0.00051251,
}  # fmt: skip


def from_predictions(labels, arm, baseline, metric=ACCURACY, classes=2) -> DifferenceEstimate:
    sides = ([single_label_sums(labels, row, classes) for row in rows] for rows in (arm, baseline))
    return estimate_difference(jackknife_differences(*sides, metric))


def of_study(study: dict, cases: int) -> DifferenceEstimate:
    return estimate_from(
        np.subtract(study["first"], study["second"]),
        2 * (study["error"] - study["cov1"]),
        2 * (study["cov2"] - study["cov3"]),
        cases=cases,
    )


def test_van_dyke_is_reproduced():
    """Random readers and random cases: 15.26 df, F = 4.46, p = 0.0517, as Hillis has it."""
    found = of_study(VAN_DYKE, 114)
    error, degrees = published(found)
    assert found.estimate == pytest.approx(-0.04380032, abs=1e-8)
    assert found.seed_variance / 2 == pytest.approx(0.00055103, abs=1e-8)  # MS(T*R)
    assert error == pytest.approx(0.02075, abs=5e-6)
    assert degrees == pytest.approx(15.26, abs=0.005)
    assert (found.estimate / error) ** 2 == pytest.approx(4.46, abs=0.005)
    p_value = 2 * stats.t.sf(abs(found.estimate) / error, degrees)
    assert p_value == pytest.approx(0.0517, abs=5e-5)
    half = stats.t.ppf(0.975, degrees) * error
    assert found.estimate + half == pytest.approx(0.00036, abs=5e-6)
    # A weighted critical value is larger: t(4) has the weight 0.51.
    assert found.half_width(0.025) == pytest.approx(by_hand(found, 0.95))
    assert 1.05 < found.half_width(0.025) / half < 1.15


def test_a_wrong_formula_would_not_reproduce_it():
    """Negative controls: the paired t test over readers, and cases only, are published apart."""
    differences = np.subtract(VAN_DYKE["first"], VAN_DYKE["second"])
    paired = stats.ttest_1samp(differences, 0.0).pvalue
    assert abs(paired - 0.0517) > 0.005
    assert estimate_from(differences, 9.1e-4, 0.0).p_difference() == pytest.approx(paired)


def test_where_readers_agree_by_luck_the_interval_is_that_of_fixed_readers():
    """Franken: MS(T*R) is a fifteenth of what cases alone give it, and Cov2 - Cov3 is negative.

    The published analysis of random readers then has a standard error of 0.00501, less than the
    0.01916 of its own analysis of these very readers, which bounds the half-width here.
    """
    found = of_study(FRANKEN, 100)
    assert found.estimate == pytest.approx(0.01085482, abs=1e-8)
    assert found.jackknife_covariance == 0
    assert published(found)[0] == pytest.approx(0.00501, abs=5e-6)
    assert found.half_width(0.025) == pytest.approx(stats.t.ppf(0.975, 99) * 0.01916, rel=5e-4)
    assert stats.t.ppf(0.975, 3) * 0.00501 < found.half_width(0.025)


@pytest.mark.slow
def test_p_values_and_intervals_agree():
    generator = np.random.default_rng(0)
    for _ in range(200):
        variance = generator.uniform(0.2, 4) * 1e-4
        each = estimate_from(
            generator.normal(0.005, 0.01, 5), variance, generator.uniform(-0.2, 0.9) * variance
        )
        (low95, high95), (low90, high90) = each.interval(0.95), each.interval(0.90)
        assert (each.p_difference() <= 0.05) == (low95 >= 0 or high95 <= 0)
        skewed = each.skewed_limits(0.90)
        assert skewed is not None
        assert skewed[0] <= low90 <= high90 <= skewed[1]
        assert (each.p_equivalence(0.02) <= 0.05) == (skewed[0] >= -0.02 and skewed[1] <= 0.02)
        assert (each.p_beyond(0.003) <= 0.05) == (low95 >= 0.003 or high95 <= -0.003)
        assert each.p_beyond(0.003) >= each.p_difference()
        level = 1 - each.p_difference()
        nearest = min(each.interval(level), key=abs)
        assert nearest == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("covariance", [0.0, 2e-5, 4e-4])
def test_the_half_width_is_the_larger_of_two(seeds, covariance):
    generator = np.random.default_rng(seeds)
    larger = set()
    for scale in (0.1, 1.0, 3.0):
        for _ in range(5):
            each = estimate_from(
                generator.normal(0.0, 0.01 * scale, seeds), 1e-4 + covariance, covariance, cases=648
            )
            for level in (0.9, 0.95, 0.975):
                half = each.half_width((1 - level) / 2)
                assert half == pytest.approx(by_hand(each, level))
            larger.add(each.seed_variance > 1e-4)
    assert larger == {True, False}


def test_seed_noise_is_what_the_cases_do_not_explain():
    """Without `- (J - C)`, the noise of the cases would count twice in the test of rare losses."""
    per_seed = np.array([0.0, 0.01, 0.03])
    variance = float(per_seed.var(ddof=1))
    for explained in (0.0, 0.4 * variance, variance, 2 * variance):
        each = estimate_from(per_seed, explained + 2e-5, 2e-5)
        assert each.seed_noise == pytest.approx(max(variance - explained, 0.0) / 3, abs=1e-18)


def test_without_any_variance_the_interval_is_the_point():
    same = estimate_from(np.zeros(3), 0.0, 0.0)
    assert same.interval(0.95) == (0, 0)
    assert (same.p_difference(), same.p_equivalence(0.01), same.p_beyond(0.01)) == (1, 0, 1)
    shifted = estimate_from(np.full(3, 0.5), 0.0, 0.0)
    assert shifted.interval(0.95) == (0.5, 0.5)
    assert (shifted.p_difference(), shifted.p_equivalence(0.01)) == (0, 1)
    assert shifted.p_beyond(0.01) == 0


@pytest.mark.parametrize("metric", ["accuracy", "macro_f1"])
@pytest.mark.parametrize(("n", "equivalent"), [(50, False), (1000, True)])
def test_predictions_that_agree_on_few_examples_do_not_show_equivalence(metric, n, equivalent):
    labels = np.arange(n) % 2
    rows = np.tile(labels, (5, 1))
    rows[:, : n // 10] = 0
    each = from_predictions(labels, rows, rows, METRICS[metric])
    assert each.half_width(0.05) == pytest.approx(stats.t.ppf(0.95, 4) / n)
    assert (each.p_equivalence(0.01) <= 0.05) == equivalent


def test_one_side_always_right_and_the_other_never_is_finite():
    labels = np.zeros(10, dtype=int)
    each = from_predictions(labels, np.zeros((3, 10), int), np.ones((3, 10), int))
    assert each.estimate == 1
    low, high = each.interval(0.95)
    assert 0.3 < low < high < 1.5
    assert each.p_difference() < 0.05


def test_t_has_never_more_degrees_of_freedom_than_the_examples():
    """The same flips at every seed: s^2 is rounding, and Hillis' df have no bound."""
    labels = np.zeros(40, dtype=int)
    mode = np.zeros((3, 40), int)
    mode[:, :6] = 1
    each = from_predictions(labels, mode, np.zeros((3, 40), int))
    error = math.sqrt(each.jackknife_covariance)
    assert each.half_width(0.025) == pytest.approx(stats.t.ppf(0.975, 39) * error)
    assert all(map(math.isfinite, each.interval(0.95)))


@pytest.mark.parametrize("seeds", [1, 2])
def test_two_seeds_are_refused(seeds):
    rows = np.zeros((seeds, 10), int)
    with pytest.raises(ValueError, match=f"needs at least 3 seeds, not {seeds}"):
        from_predictions(rows[0], rows, rows)


@pytest.mark.parametrize("n", [300, 500, 648, 1000])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_one_example_flipped_at_every_seed_is_the_floor(n, seeds):
    """V is then 1/n^2 exactly, which rounding puts above or below the least V."""
    labels = np.zeros(n, dtype=int)
    mode = np.zeros((seeds, n), int)
    mode[:, 0] = 1
    each = from_predictions(labels, mode, np.zeros((seeds, n), int))
    assert each.half_width(0.025) == pytest.approx(stats.t.ppf(0.975, seeds - 1) / n)


@pytest.mark.parametrize(("metric", "largest"), [(ACCURACY, 1.0), (MATTHEWS, 2.0), (R2, np.inf)])
def test_no_interval_has_impossible_differences(metric, largest):
    assert metric.largest_difference == largest
    given = JackknifeDifferences(
        per_seed=np.array([0.9]), variance=4.0, covariance=0.0, cases=6, case_effect=0.1,
        pseudovalues=np.full(6, 0.9), costliest=CostliestCase(0.2, None, 1), largest=largest,
    )  # fmt: skip
    found = estimate_over_cases(given)
    low, high = found.interval(0.95)
    assert -largest <= low <= 0.9 <= high <= largest
    assert (high == largest) == (largest < np.inf)
    assert found.p_difference() > 0.05
