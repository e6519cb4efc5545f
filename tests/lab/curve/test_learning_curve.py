"""What twice the labels would add: exact without noise, and covered with it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from ampft.data.splits import stratified_choice
from ampft.lab.curve.learning_curve import ScoresBySize, extrapolate, scores_by_size
from ampft.metrics.sums import ACCURACY, single_label_sums

SIZES = np.array([50.0, 100, 200, 400, 800, 1600])


def scores(means, deviation, seeds=5, sizes=SIZES):
    count = len(sizes)
    return ScoresBySize(
        sizes=sizes,
        means=np.asarray(means),
        seed_variances=np.full(count, seeds * deviation**2),
        case_covariance=np.zeros((count, count)),
        seeds=seeds,
    )


@pytest.mark.parametrize("exponent", [0.25, 0.5, 1.0, 2.0])
def test_a_power_law_without_noise_is_continued_exactly(exponent):
    found = extrapolate(scores(0.9 - 2 * SIZES**-exponent, 1e-6))
    truth = 2 * (1600**-exponent - 3200**-exponent)
    assert found.gain == pytest.approx(truth, abs=1e-5)
    assert found.interval[0] <= truth + 1e-5
    assert found.interval[1] >= truth - 1e-5
    assert found.sizes_used == 6


def test_the_same_gain_at_each_doubling_is_continued():
    found = extrapolate(scores(0.5 + 0.03 * np.log2(SIZES), 1e-5))
    assert found.gain == pytest.approx(0.03, abs=1e-3)


def test_a_plateau_adds_nothing_although_its_exponent_is_unknown():
    found = extrapolate(scores(np.full(6, 0.8), 0.002))
    assert found.gain == pytest.approx(0, abs=1e-9)
    assert -0.02 < found.interval[0] < 0 < found.interval[1] < 0.02


@pytest.mark.slow
def test_intervals_cover_and_those_of_too_little_noise_do_not():
    def covered(stated):
        hits = []
        for seed in range(100):
            noise = np.random.default_rng(seed).normal(0, 0.01, 6)
            found = extrapolate(scores(0.92 - 2.5 * SIZES**-0.5 + noise, stated))
            if found is not None:
                low, high = found.interval
                hits.append(low <= 2.5 * (1600**-0.5 - 3200**-0.5) <= high)
        assert len(hits) > 30
        return np.mean(hits)

    assert covered(0.01) >= 0.93
    assert covered(0.004) < 0.9


@pytest.mark.parametrize("labels", [300, 600, 1500])
def test_an_exponential_is_continued_and_not_taken_for_a_power_law(labels):
    found = extrapolate(scores(0.9 - 0.3 * np.exp(-SIZES / labels), 0.005))
    truth = 0.3 * (np.exp(-1600 / labels) - np.exp(-3200 / labels))
    assert found.interval[0] <= truth <= found.interval[1]
    if labels == 300:  # flat by now, so that the next doubling adds less than the last
        assert found.interval[1] < 0.04


@pytest.mark.parametrize("begin", [400, 800])
def test_a_plateau_that_has_begun_may_go_on(begin):
    means = 0.6 + 0.03 * np.log2(np.minimum(SIZES, begin) / 50)
    found = extrapolate(scores(means, 0.006))
    assert found.interval[0] <= 0 <= found.interval[1]


def test_steady_gains_do_not_stop():
    found = extrapolate(scores(0.5 + 0.03 * np.log2(SIZES), 0.001))
    assert found.interval[0] > 0.01


def test_a_first_size_that_does_not_fit_is_left_out_and_a_wild_curve_is_not_continued():
    means = 0.9 - 2 * SIZES**-0.5
    lucky = means.copy()
    lucky[0] += 0.2
    found = extrapolate(scores(lucky, 0.002))
    assert found.sizes_used == 5
    assert found.gain == pytest.approx(2 * (1600**-0.5 - 3200**-0.5), abs=0.005)
    assert extrapolate(scores([0.5, 0.8, 0.5, 0.8, 0.5, 0.8], 0.002)) is None
    assert extrapolate(scores([0.5, 0.6, 0.7], 0.002, sizes=SIZES[:3])) is None


def test_more_than_twice_the_labels_is_refused():
    with pytest.raises(ValueError, match="more than twice"):
        extrapolate(scores(SIZES / 2000, 0.01), factor=4)


def test_the_covariance_over_cases_is_that_of_a_bootstrap():
    """Twin: resampled test rows. Models of two sizes share which rows are hard."""
    generator = np.random.default_rng(0)
    rows, seeds = 400, 4
    hard = generator.normal(size=rows)
    wrong = np.stack(
        [[hard + generator.normal(size=rows) > limit for _ in range(seeds)] for limit in (0.5, 1.0)]
    )
    labels = np.zeros(rows, dtype=np.int64)
    sums = [[single_label_sums(labels, one.astype(np.int64), 2) for one in each] for each in wrong]
    found = scores_by_size(np.array([100.0, 200.0]), sums, ACCURACY)
    drawn = generator.integers(0, rows, (4000, rows))
    right = 1 - wrong[:, :, drawn].mean(axis=-1)  # (2, seeds, draws)
    between = np.cov(right.reshape(2 * seeds, -1)).reshape(2, seeds, 2, seeds)
    for one in range(2):
        for other in range(2):
            pairs = [
                between[one, s, other, t] for s in range(seeds) for t in range(seeds) if s != t
            ]
            expected = float(np.mean(pairs))
            assert found.case_covariance[one, other] == pytest.approx(expected, rel=0.15)
    assert np.allclose(found.means, 1 - wrong.mean(axis=(1, 2)))


@pytest.mark.parametrize("seed", range(5))
def test_the_subsets_of_one_draw_are_nested_and_those_of_another_differ(seed):
    labels = np.random.default_rng(seed).choice(7, 900, p=[0.4, 0.3, 0.1, 0.1, 0.06, 0.03, 0.01])

    def choice(count, draw):
        return set(stratified_choice(labels, count, seed=draw, take_one=True).tolist())

    chosen = [choice(900 >> halving, seed) for halving in range(5)]
    assert all(small < large for large, small in pairwise(chosen))
    assert choice(450, seed) != choice(450, seed + 1)
