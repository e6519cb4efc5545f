"""The bootstrap of sums: against the t interval, with groups, paired, and without bias."""

from __future__ import annotations

import numpy as np
import pytest

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
    assert sums.shape == (RESAMPLES, 2)
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
    assert difference_interval(one, sums[0], other, sums[1]) == pytest.approx((1, 1))
    assert difference_interval(one, sums[0], one, sums[0]) is None


def test_limits_are_kept_and_a_bias_is_mirrored():
    statistic = mean_of(np.full(4, 0.1), limits=(0.0, 1.0))
    sums = np.stack([np.linspace(0.1, 0.3, 101), np.ones(101)], axis=1)
    assert interval(statistic, sums) == (0.0, pytest.approx(0.095))


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
