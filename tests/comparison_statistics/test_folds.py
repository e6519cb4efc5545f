"""The variance of folds: by hand, a lower bound, and a negative control."""

from __future__ import annotations

import numpy as np
import pytest

from ampft.comparison.statistics.folds import (
    corrected_for_folds,
    corrected_variance,
    fold_differences,
)
from ampft.comparison.statistics.interval import estimate_of_sums
from ampft.metrics.sums import ACCURACY, MACRO_F1, single_label_sums

N, FOLDS, REPEATS = 120, 5, 3


def repeats(seed=0, *, shift=0.0):
    """Return sums of both sides and folds. The luck of a fold is shared by its rows."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, N)
    sides, folds = ([], []), []
    for _ in range(REPEATS):
        fold = generator.permutation(np.arange(N) % FOLDS)
        folds.append(fold)
        for side in sides:
            luck = generator.normal(0, shift, FOLDS)[fold]
            wrong = generator.random(N) < 0.3 + luck
            side.append(single_label_sums(labels, np.where(wrong, (labels + 1) % 3, labels), 3))
    return *sides, folds


def accuracies(sums, fold):
    right = np.asarray(sums.patterns.todense())[:, :3].sum(axis=1)[sums.pattern_of]
    return np.array([right[fold == number].mean() for number in range(FOLDS)])


def test_differences_of_folds_are_those_of_their_accuracies():
    arm, base, folds = repeats()
    found = fold_differences(arm, base, folds, ACCURACY)
    expected = [
        accuracies(a, f) - accuracies(b, f) for a, b, f in zip(arm, base, folds, strict=True)
    ]
    assert found == pytest.approx(np.array(expected))
    f1 = fold_differences(arm, base, folds, MACRO_F1)
    wholes = [MACRO_F1.value(a) - MACRO_F1.value(b) for a, b in zip(arm, base, strict=True)]
    assert f1.mean(axis=1) == pytest.approx(wholes, abs=0.01)


def test_the_variance_is_that_of_nadeau_and_bengio():
    values = np.random.default_rng(1).normal(size=(REPEATS, FOLDS))
    mean = values.sum() / 15
    square = sum((v - mean) ** 2 for v in values.ravel()) / 14
    assert corrected_variance(values) == pytest.approx((1 / 15 + 24 / 96) * square)


@pytest.mark.parametrize("shift", [0.0, 0.2])
def test_an_interval_is_never_narrower_than_without_folds_or_than_the_correction(shift):
    arm, base, folds = repeats(3, shift=shift)
    pooled = estimate_of_sums(arm, base, ACCURACY)
    found = corrected_for_folds(pooled, arm, base, folds, ACCURACY)
    variance = corrected_variance(fold_differences(arm, base, folds, ACCURACY))
    assert found.estimate == pooled.estimate
    assert found.half_width(0.025) >= pooled.half_width(0.025)
    assert found.half_width(0.025) >= 2.14 * np.sqrt(variance)  # t with 14 degrees of freedom
    assert found.half_width(0.025) < 4 * np.sqrt(variance)


def test_the_luck_of_folds_widens_an_interval_and_other_folds_do_not():
    arm, base, folds = repeats(4, shift=0.3)
    pooled = estimate_of_sums(arm, base, ACCURACY)
    generator = np.random.default_rng(0)
    others = [generator.permutation(fold) for fold in folds]
    width = corrected_for_folds(pooled, arm, base, folds, ACCURACY).half_width(0.025)
    assert width > 1.3 * corrected_for_folds(pooled, arm, base, others, ACCURACY).half_width(0.025)
