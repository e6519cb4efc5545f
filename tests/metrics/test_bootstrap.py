"""Intervals of sums: exact shares, scores at the limit, groups, pairs, and no bias."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import f1_score

from ampft.metrics.bootstrap import (
    RESAMPLES,
    Statistic,
    difference_interval,
    interval,
    resampled_sums,
)
from ampft.metrics.calibration import calibration_statistic, expected_calibration_error


def mean_of(values, **limits):
    vectors = np.stack([values, np.ones(len(values))], axis=1)
    return Statistic(vectors, lambda sums: sums[..., 0] / sums[..., 1], **limits)


def test_the_interval_of_a_mean_is_as_wide_as_by_t():
    values = np.random.default_rng(0).normal(3, 2, 400)
    statistic = mean_of(values)
    (sums,) = resampled_sums([statistic], None)
    assert sums.sums.shape == (RESAMPLES, 2)
    low, high = interval(statistic, sums)
    assert high - low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)
    assert low < values.mean() < high


def test_rows_of_a_group_count_once():
    values = np.random.default_rng(0).normal(0, 1, 100)
    alone, fourfold = mean_of(values), mean_of(np.repeat(values, 4))
    (sums,), (grouped,) = (
        resampled_sums([alone], None),
        resampled_sums([fourfold], np.repeat(np.arange(100), 4)),
    )
    assert interval(fourfold, grouped) == pytest.approx(interval(alone, sums))


def test_differences_are_paired():
    values = np.random.default_rng(1).normal(0, 1, 50)
    one, other = mean_of(values), mean_of(values + 1)
    sums = resampled_sums([one, other], None)
    low, high = difference_interval(one, sums[0], other, sums[1])
    assert low > 0.8, "a case that falls by 1 was not seen, but may be one in 50"
    assert high == pytest.approx(1)
    assert difference_interval(one, sums[0], one, sums[0]) is None


def test_differences_of_calibration_errors_are_paired():
    rng = np.random.default_rng(3)
    confidence = rng.uniform(0.5, 1, (300, 1)).astype(np.float32)
    correct = rng.random((300, 1)) < 0.7
    changed = correct.copy()
    changed[:3] = ~changed[:3]
    one, other = (calibration_statistic(confidence, each, None) for each in (correct, changed))
    sums = resampled_sums([one, other], None)
    low, high = difference_interval(one, sums[0], other, sums[1])
    assert low < other.observed() - one.observed() < high
    assert high - low < 0.06, "of two samples of their own, 0.14"


@pytest.mark.parametrize(("count", "total"), [(0, 20), (1, 100), (50, 100), (97, 100), (300, 300)])
def test_the_interval_of_a_share_is_exact(count, total):
    statistic = mean_of(np.arange(total) < count, limits=(0.0, 1.0))
    exact = binomtest(count, total).proportion_ci(0.95, method="exact")
    found = interval(statistic, resampled_sums([statistic], None)[0])
    assert found == pytest.approx((exact.low, exact.high), abs=1e-5)


def f1_of(right, missed, false_alarms, rest):
    """Return F1 as a function of sums of right predictions, labels and predictions."""
    kinds = np.array([[1, 1, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=np.float64)
    vectors = np.repeat(kinds, [right, missed, false_alarms, rest], axis=0)
    return Statistic(vectors, lambda s: 2 * s[..., 0] / (s[..., 1] + s[..., 2]), limits=(0.0, 1.0))


@pytest.mark.parametrize("counts", [(0, 8, 3, 289), (20, 6, 4, 270), (30, 1, 0, 269)])
def test_the_interval_of_f1_contains_the_exact_one_of_the_rows_that_count(counts):
    right, missed, false_alarms, _ = counts
    share = binomtest(right, right + missed + false_alarms).proportion_ci(0.95, method="exact")
    exact = [2 * end / (1 + end) for end in (share.low, share.high)]
    statistic = f1_of(*counts)
    low, high = interval(statistic, resampled_sums([statistic], None)[0])
    assert low <= exact[0] + 0.01
    assert high >= exact[1] - 0.01
    assert high - low < 1.6 * (exact[1] - exact[0])


@pytest.mark.parametrize("alarms", [0, 3])
def test_f1_of_0_in_groups_leaves_room_for_right_answers(alarms):
    sizes = np.tile([1, 3, 5], 20)
    groups = np.repeat(np.arange(60), sizes)
    vectors = np.zeros((len(groups), 3))
    vectors[::8, 1] = 1  # has the label, in up to one row of a group
    vectors[groups < alarms, 2] = 1  # predicted wrongly, in all rows of some groups
    vectors[vectors[:, 1] > 0, 2] = 0
    statistic = Statistic(vectors, f1_of(1, 1, 1, 1).value, limits=(0.0, 1.0))
    low, high = interval(statistic, resampled_sums([statistic], groups)[0])
    assert low == 0
    assert high > 0.15, "a right answer in 1 of 20 groups may have been missed"
    assert high < 1


def test_equal_rows_leave_room_for_others():
    for values, limits in ((np.zeros(100), (0.0, 10.0)), (np.full(100, 0.5), (0.0, 2.0))):
        statistic = mean_of(values, limits=limits)
        low, high = interval(statistic, resampled_sums([statistic], None)[0])
        share = 1 - 0.025 ** (1 / 100)
        value = values[0]
        assert high == pytest.approx(value + share * (limits[1] - value), rel=1e-3)
        assert low == pytest.approx(value - share * value, rel=1e-3, abs=1e-9)


def test_groups_count_by_their_sizes():
    sizes = np.repeat([10, 1], [20, 180])
    groups = np.repeat(np.arange(200), sizes)
    wrong = np.isin(groups, np.arange(5))  # large ones
    statistic = mean_of(wrong.astype(np.float64), limits=(0.0, 1.0))
    low, high = interval(statistic, resampled_sums([statistic], groups)[0])
    assert low < 0.07
    assert high > 0.25, "as if of 200 rows: 0.09 to 0.18"


def true_value_is_inside(rng) -> bool:
    rows = rng.random(100) < 0.99
    statistic = mean_of(rows.astype(np.float64), limits=(0.0, 1.0))
    low, high = interval(statistic, resampled_sums([statistic], None)[0])
    return low <= 0.99 <= high


@pytest.mark.slow
def test_a_share_near_one_is_covered():
    rng = np.random.default_rng(0)
    inside = sum(true_value_is_inside(rng) for _ in range(100))
    assert inside >= 92, "by the percentiles of resamples, about 62"


def test_a_calibration_error_of_zero_leaves_room_for_rows_that_were_not_seen():
    statistic = calibration_statistic(np.ones((100, 1)), np.ones((100, 1), dtype=bool), None)
    low, high = interval(statistic, resampled_sums([statistic], None)[0])
    assert (low, high) == (0.0, pytest.approx(1 - 0.025 ** (1 / 100)))


def test_the_calibration_error_is_a_function_of_sums():
    rng = np.random.default_rng(2)
    confidence, correct = rng.random((60, 3)).astype(np.float32), rng.random((60, 3)) < 0.6
    statistic = calibration_statistic(confidence, correct, None)
    plain = expected_calibration_error(confidence.ravel(), correct.ravel())
    assert statistic.observed() == pytest.approx(plain)
    grouped = calibration_statistic(confidence, correct, np.arange(60) // 5)
    assert grouped.observed() == pytest.approx(plain)


def test_the_interval_of_the_calibration_error_begins_at_zero_for_calibrated_probabilities():
    contained = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        confidence = rng.uniform(0.5, 1, (200, 1))
        correct = rng.random((200, 1)) < confidence
        statistic = calibration_statistic(confidence, correct, None)
        (sums,) = resampled_sums([statistic], None)
        low, high = interval(statistic, sums)
        assert low < statistic.observed() < high
        contained += low == 0
    assert contained >= 36, "by the basic bootstrap, about 26"


@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("sign", [-1, 1, None])
def test_no_case_is_outside_of_the_bounds_of_a_case(columns, sign):
    random = np.random.default_rng(columns)
    for _ in range(50):
        vectors = random.normal(size=(6, columns))
        vectors = vectors if sign is None else sign * np.abs(vectors)
        least, most = Statistic(vectors, lambda sums: sums[..., 0]).bounds(vectors)
        assert (least <= np.minimum(vectors, 0.0)).all() or columns == 2
        assert (least <= vectors).all()
        assert (vectors <= most).all()


def test_a_macro_f1_over_many_rare_labels_can_be_higher_than_it_is():
    """A label of one row that was missed may be one that is found: F1 is from 0 to 1 there."""
    rng = np.random.default_rng(0)
    labels, rows = 28, 500
    shares = np.r_[np.full(12, 0.05), np.full(12, 0.02), np.full(4, 1 / rows)]
    has = rng.random((rows, labels)) < shares
    for rare in range(24, labels):
        has[:, rare] = False
        has[rare, rare] = True
    predicted = rng.random((rows, labels)) < np.r_[np.full(24, 0.4), np.zeros(4)]
    counts = np.concatenate([has & predicted, has, predicted], axis=1).astype(float)

    def macro_f1(sums):
        right, labelled, found = np.split(sums, 3, axis=-1)
        return (2 * right / np.maximum(labelled + found, 1)).mean(axis=-1)

    statistic = Statistic(counts, macro_f1, limits=(0.0, 1.0))
    (sums,) = resampled_sums([statistic], None)
    low, high = interval(statistic, sums)
    spread = macro_f1(sums.sums).std()
    observed = statistic.observed()
    assert observed == pytest.approx(f1_score(has, predicted, average="macro", zero_division=0))
    assert low < observed - spread
    assert high > observed + spread
    assert high < observed + 0.2
