"""The jackknife against leaving out every example by hand, with scikit-learn's metrics."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from ampft.comparison.statistics.jackknife import (
    METRICS,
    JackknifeDifferences,
    jackknife_differences,
    one_example,
)
from ampft.errors import InputError
from ampft.metrics.scores import scalar_scores

SAME = 1e-12  # float64 sums of at most 60 values near 1


def measured(labels, predicted, metric: str, classes: int) -> float:
    if metric == "accuracy":
        return accuracy_score(labels, predicted)
    return f1_score(labels, predicted, labels=np.arange(classes), average="macro", zero_division=0)


def by_hand(labels, predicted, baseline, metric: str, classes: int) -> JackknifeDifferences:
    n, seeds = len(labels), len(predicted)

    def difference(seed: int, kept) -> float:
        mode, base = (
            measured(labels[kept], rows[seed, kept], metric, classes)
            for rows in (predicted, baseline)
        )
        return mode - base

    everything = np.arange(n)
    left_out = np.array(
        [[difference(seed, np.delete(everything, i)) for i in everything] for seed in range(seeds)]
    )
    centred = left_out - left_out.mean(axis=1, keepdims=True)
    covariances = (n - 1) / n * centred @ centred.T
    off = covariances[~np.eye(seeds, dtype=bool)]
    return JackknifeDifferences(
        per_seed=np.array([difference(seed, everything) for seed in range(seeds)]),
        variance=float(np.trace(covariances) / seeds),
        covariance=float(off.mean()) if off.size else 0.0,
        examples=n,
        one_example=0.0,
    )


def assert_same(found: JackknifeDifferences, wanted: JackknifeDifferences) -> None:
    np.testing.assert_allclose(found.per_seed, wanted.per_seed, rtol=0, atol=SAME)
    assert found.variance == pytest.approx(wanted.variance, rel=1e-9, abs=SAME)
    assert found.covariance == pytest.approx(wanted.covariance, rel=1e-9, abs=SAME)
    assert found.examples == wanted.examples


@pytest.mark.parametrize("metric", list(METRICS))
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    seeds=st.integers(1, 3),
    n=st.integers(2, 12),
    # Three classes in twelve examples: absent classes and classes never predicted occur often.
    classes=st.integers(1, 4),
    agreement=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_it_equals_leaving_out_by_hand(metric, seed, seeds, n, classes, agreement):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, n)
    baseline, other = generator.integers(0, classes, (2, seeds, n))
    predicted = np.where(generator.random((seeds, n)) < agreement, baseline, other)
    found = jackknife_differences(labels, predicted, baseline, metric=metric, classes=classes)
    assert_same(found, by_hand(labels, predicted, baseline, metric, classes))


@pytest.mark.parametrize("metric", list(METRICS))
def test_the_difference_is_that_of_the_report(metric):
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 3, 40)  # class 3 of the label map is absent
    predicted, baseline = generator.integers(0, 4, (2, 3, 40))
    found = jackknife_differences(labels, predicted, baseline, metric=metric, classes=4)
    wanted = [
        scalar_scores(labels, mode, 4)[metric] - scalar_scores(labels, base, 4)[metric]
        for mode, base in zip(predicted, baseline, strict=True)
    ]
    np.testing.assert_allclose(found.per_seed, wanted, rtol=0, atol=SAME)


def test_a_wrong_pairing_is_seen():
    """Negative control: with one side's examples reversed, J grows and no difference moves."""
    generator = np.random.default_rng(2)
    labels = np.zeros(60, dtype=int)
    baseline = (generator.random((3, 60)) < 0.2).astype(int)
    right, wrong = (
        jackknife_differences(labels, rows, baseline, metric="accuracy", classes=2)
        for rows in (baseline, baseline[:, ::-1])
    )
    np.testing.assert_array_equal(wrong.per_seed, right.per_seed)
    assert right.variance == 0
    assert wrong.variance > 1e-3


def test_chunks_make_no_difference(monkeypatch):
    generator = np.random.default_rng(3)
    labels = generator.integers(0, 5, 1000)
    predicted, baseline = generator.integers(0, 5, (2, 4, 1000))
    whole, parts = (
        (
            monkeypatch.setattr("ampft.comparison.statistics.jackknife.CHUNK", chunk),
            jackknife_differences(labels, predicted, baseline, metric="macro_f1", classes=5),
        )[1]
        for chunk in (1 << 16, 7)
    )
    assert_same(parts, whole)


def test_one_example_of_accuracy_and_of_balanced_macro_f1_is_one_in_n():
    assert one_example(np.array([3, 1]), "accuracy") == 1 / 4
    assert one_example(np.array([5, 5, 5]), "macro_f1") == pytest.approx(1 / 15)
    assert one_example(np.array([98, 1, 1]), "macro_f1") > 4 / 100


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"metric": "macro_f2"}, InputError, "allowed are accuracy, macro_f1. Did you mean 'mac"),
        ({"classes": 1}, ValueError, "labels holds classes 0 to 1, outside 0..0"),
        ({"predicted": np.zeros((2, 3), int)}, ValueError, r"are not \(n,\), \(S, n\)"),
        ({"labels": np.zeros((2, 2), int)}, ValueError, r"must be \(n,\)"),
        (
            {"labels": np.zeros(1, int), "predicted": np.zeros((2, 1), int),
             "baseline": np.zeros((2, 1), int)},
            InputError, "at least 2 test examples, got 1",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_named(change, error, message):
    given = {
        "labels": np.array([0, 1]), "predicted": np.zeros((2, 2), int),
        "baseline": np.zeros((2, 2), int), "metric": "accuracy", "classes": 2,
    } | change  # fmt: skip
    with pytest.raises(error, match=message):
        jackknife_differences(**given)


@pytest.mark.slow
def test_twenty_seeds_of_a_million_examples_fit_in_memory_and_seconds():
    script = """
import resource, time
import numpy as np
from ampft.comparison.statistics.jackknife import jackknife_differences
generator = np.random.default_rng(0)
n, seeds, classes = 1_000_000, 20, 20
labels = generator.integers(0, classes, n, dtype=np.int32)
def side():
    rows = np.empty((seeds, n), np.int32)
    for row in rows:
        row[:] = np.where(generator.random(n) < 0.9, labels, generator.integers(0, classes, n))
    return rows
predicted, baseline = side(), side()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
jackknife_differences(labels, predicted, baseline, metric="macro_f1", classes=classes)
print(time.process_time() - start)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    seconds, extra_kib = map(float, done.stdout.split())
    assert seconds < 30
    assert extra_kib < 300 * 1024
