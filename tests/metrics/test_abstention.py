"""The promise: exact numbers, and parts of the validation split that nothing else sees."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from ampft.metrics.abstention import (
    candidate_confidences,
    exact_interval,
    least_confidence,
    least_error,
    p_value,
    rows_needed,
    split_in_halves,
)


@pytest.mark.parametrize("error", [0.001, 0.02, 0.05, 0.1, 0.3])
def test_rows_needed_are_the_fewest_without_an_error(error):
    needed = rows_needed(error)
    assert binom.cdf(0, needed, error) <= 0.05 < binom.cdf(0, needed - 1, error)
    assert least_error(needed) <= error < least_error(needed - 1)


@pytest.mark.parametrize(("count", "total"), [(0, 20), (3, 20), (20, 20), (7, 400)])
def test_the_interval_is_scipys(count, total):
    exact = binomtest(count, total).proportion_ci(0.95, method="exact")
    assert exact_interval(count, total) == pytest.approx((exact.low, exact.high))


def test_nothing_answered_says_nothing():
    assert exact_interval(0, 0) == (0.0, 1.0)
    assert p_value(0, 0, 0.1) == 1.0


@pytest.mark.parametrize(("wrong", "answered", "error"), [(0, 149, 0.02), (3, 200, 0.05)])
def test_the_p_value_is_binomial(wrong, answered, error):
    assert p_value(wrong, answered, error) == pytest.approx(binom.cdf(wrong, answered, error))


@pytest.mark.parametrize("groups", [None, np.arange(100) // 3, np.zeros(100, dtype=np.int64)])
def test_the_parts_share_no_group(groups):
    halves = split_in_halves(100, groups)
    ids = np.arange(100) if groups is None else groups
    assert not set(ids[halves.fit]) & set(ids[halves.promise])
    assert len(set(ids[halves.promise])) == len(halves.promise), "at most one row of each group"
    assert len(halves.promise) <= math.ceil((ids.max() + 1) / 2)
    if groups is None:
        assert len(halves.promise) == 50
    again = split_in_halves(100, groups)
    assert (again.fit.tolist(), again.promise.tolist()) == (
        halves.fit.tolist(),
        halves.promise.tolist(),
    )


def test_rows_that_prove_are_drawn_like_all_rows():
    sizes = np.repeat([10, 1], [300, 2700])
    groups = np.repeat(np.arange(3000), sizes)
    proof = split_in_halves(len(groups), groups).promise
    of_large = np.isin(groups[proof], np.arange(300)).mean()
    assert of_large == pytest.approx(3000 / 5700, abs=0.09), "0.1 with one row of each group"
    equal = split_in_halves(300, np.arange(300) // 3).promise
    assert len(equal) == 50, "all groups of one size take part"


def broken(seed: int) -> bool:
    """Return whether a promise of 0.1 is given to a model with an error of 0.124 among rows."""
    rng = np.random.default_rng(seed)
    sizes = np.where(rng.random(1000) < 0.2, 5, 1)
    groups = np.repeat(np.arange(1000), sizes)
    correct = rng.random(len(groups)) >= np.where(sizes > 1, 0.2, 0.03)[groups]
    confidence = rng.beta(5, 1.5, len(groups)).astype(np.float32)
    halves = split_in_halves(len(groups), groups)
    candidates = candidate_confidences(confidence[halves.fit], correct[halves.fit], 0.1)
    proof = halves.promise
    return least_confidence(candidates, confidence[proof], correct[proof], 0.1) is not None


def test_the_error_of_rows_is_promised_where_large_groups_are_worse():
    assert sum(map(broken, range(100))) <= 5, "with one row of each group, about 20"


def proven(n: int, seed: int, error: float) -> tuple[float | None, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.5, 1, 2 * n).astype(np.float32)
    correct = rng.random(2 * n) < confidence
    candidates = candidate_confidences(confidence[:n], correct[:n], error)
    return (
        least_confidence(candidates, confidence[n:], correct[n:], error),
        confidence[n:],
        correct[n:],
    )


@pytest.mark.parametrize("seed", range(5))
def test_what_is_promised_is_proven_by_the_second_part(seed):
    least, confidence, correct = proven(2000, seed, 0.1)
    answered = confidence >= np.float32(least)
    wrong = int((~correct[answered]).sum())
    assert binomtest(wrong, int(answered.sum()), 0.1, alternative="less").pvalue <= 0.05
    assert 0.1 < answered.mean() < 0.7, "calibrated answers above 0.8 are right in 90 %"


def test_a_model_that_is_good_enough_answers_everything():
    correct = np.ones(300, dtype=bool)
    confidence = np.linspace(0.5, 1, 300)
    candidates = candidate_confidences(confidence, correct, 0.02)
    assert candidates == [0.0]
    assert least_confidence(candidates, confidence, correct, 0.02) == 0.0


def test_too_few_rows_prove_nothing():
    correct = np.ones(rows_needed(0.02) - 1, dtype=bool)
    confidence = np.linspace(0.5, 1, len(correct))
    assert least_confidence([0.0], confidence, correct, 0.02) is None
    assert candidate_confidences(confidence[:0], correct[:0], 0.02) == [0.0]


def test_the_sequence_stops_at_the_first_failure():
    correct = np.concatenate([np.ones(200), np.zeros(60), np.ones(4000)]).astype(bool)
    confidence = np.linspace(1, 0.5, len(correct))
    after = [float(confidence[199]), float(confidence[259]), 0.0]
    assert least_confidence(after, confidence, correct, 0.02) == after[0]
    assert p_value(60, len(correct), 0.02) <= 0.05, "answering all would pass alone"


def test_rounding_decides_about_no_row_that_chose_the_confidence():
    """A batch of another size moves a probability by some units in its last place."""
    rng = np.random.default_rng(0)
    confidence = np.repeat(rng.uniform(0.5, 1, 20).astype(np.float32), 10)  # many are equal
    correct = rng.random(200) < confidence
    candidates = candidate_confidences(confidence, correct, 0.3)
    assert len(candidates) > 3
    moved = np.nextafter(confidence, np.float32(0))
    for least in candidates:
        assert ((moved >= np.float32(least)) == (confidence >= np.float32(least))).all()
