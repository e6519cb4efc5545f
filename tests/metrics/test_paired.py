"""The interval of a difference between two models on the same cases."""

from __future__ import annotations

import numpy as np

from ampft.metrics.paired import paired_interval
from ampft.metrics.sums import ACCURACY, LOG_LOSS, mean_sums, single_label_sums


def test_no_difference_is_beyond_what_a_metric_can_have():
    truth = np.arange(12) % 2
    wrong, right = (single_label_sums(truth, each, 2) for each in (1 - truth, truth))
    low = paired_interval(ACCURACY, wrong, right)
    high = paired_interval(ACCURACY, right, wrong)
    assert low is not None
    assert high is not None
    assert (low.value, low.low) == (-1, -1)
    assert (high.value, high.high) == (1, 1)
    assert low.high > -1
    assert high.low < 1


def test_a_loss_has_no_such_limit():
    cases = mean_sums(np.full(12, 3.0)), mean_sums(np.linspace(0, 1, 12))
    found = paired_interval(LOG_LOSS, *cases)
    assert found is not None
    assert found.high > found.value > 1
