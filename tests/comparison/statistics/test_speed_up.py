"""Speed verdicts: error rates, power that rises with the seeds, and intervals by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import wilcoxon
from speed_verdicts import ratios

from ampft.comparison.statistics.speed_up import AS_FAST, FASTER, NOT_DECIDED, SLOWER, speed_up

THROTTLED = (0.1, 1.25, 1.0)  # a tenth of the runs, by a quarter
DRIFT = (0.0, 1.0, 1.2)
COMPARISONS = 300


def shares(seeds: int, true: float, condition: tuple[float, float, float]) -> tuple[float, float]:
    """The shares of decided comparisons, of arms in turns and one after the other."""
    rng = np.random.default_rng(seeds)
    decided = [
        [speed_up(each, in_turns=True).verdict in (FASTER, SLOWER) for each in both]
        for both in (ratios(rng, seeds, true, condition) for _ in range(COMPARISONS))
    ]
    in_turns, one_by_one = np.mean(decided, axis=0)
    return float(in_turns), float(one_by_one)


def test_a_faster_arm_is_found_more_often_with_more_seeds():
    found = [shares(seeds, 1.2, THROTTLED)[0] for seeds in (3, 5, 10)]
    assert found == sorted(found)
    assert found[0] > 0.45
    assert found[2] > 0.95


@pytest.mark.parametrize("condition", [(0.0, 1.0, 1.0), THROTTLED, DRIFT])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_equal_arms_in_turns_rarely_differ(seeds, condition):
    in_turns, one_by_one = shares(seeds, 1.0, condition)
    assert in_turns < 0.08
    if condition == DRIFT:  # the negative control
        assert one_by_one > 0.5


def test_arms_that_did_not_take_turns_have_no_verdict():
    found = speed_up([2.0] * 9, in_turns=False)
    assert (found.ratio, found.verdict, found.interval95) == (pytest.approx(2), None, None)


def test_few_pairs_have_students_interval_of_the_logarithms():
    found = speed_up([2.3, 2.4, 2.51], in_turns=True)
    logs = np.log([2.3, 2.4, 2.51])
    half = 4.302652729911275 * logs.std(ddof=1) / math.sqrt(3)
    ends = (math.exp(logs.mean() - half), math.exp(logs.mean() + half))
    assert found.interval95 == pytest.approx(ends)
    assert found.verdict == FASTER


def test_many_pairs_have_the_interval_of_the_signed_rank_test():
    logs = np.random.default_rng(0).normal(0.2, 0.5, 30)
    found = speed_up(np.exp(logs).tolist(), in_turns=True)
    for end in found.interval95:  # values just inside are not rejected, values outside are
        inside, outside = (
            wilcoxon(logs - math.log(end) * scale).pvalue
            for scale in ((0.99, 1.01) if end > 1 else (1.01, 0.99))
        )
        assert inside > 0.04
        assert outside < 0.06
    interrupted = speed_up([*np.exp(logs[:28]).tolist(), 1e4, 1e4], in_turns=True)
    assert interrupted.interval95[1] < 2


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0.99, 1.0, 1.01), AS_FAST),
        ((1.01, 1.02, 1.03), AS_FAST),
        ((0.5, 0.51, 0.49), SLOWER),
        ((0.98, 1.45, 1.6), NOT_DECIDED),
        ((0.9, 1.0, 1.1), NOT_DECIDED),
        ((1.5,), NOT_DECIDED),
        ((1.0, 900.0), NOT_DECIDED),
    ],
)
def test_verdicts(values, verdict):
    assert speed_up(values, in_turns=True).verdict == verdict


def test_nothing_was_measured():
    assert speed_up((), in_turns=True) is None
