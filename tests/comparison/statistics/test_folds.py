"""The variance of folds: by hand, a lower bound, and a negative control."""

from __future__ import annotations

import numpy as np
import pytest

from ampft.comparison.statistics.folds import (
    corrected_for_folds,
    corrected_variance,
    estimate_over_folds,
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
    found = fold_differences(arm, base, folds, ACCURACY, FOLDS)
    expected = [
        accuracies(a, f) - accuracies(b, f) for a, b, f in zip(arm, base, folds, strict=True)
    ]
    assert found == pytest.approx(np.array(expected))
    f1 = fold_differences(arm, base, folds, MACRO_F1, FOLDS)
    wholes = [MACRO_F1.value(a) - MACRO_F1.value(b) for a, b in zip(arm, base, strict=True)]
    assert f1.mean(axis=1) == pytest.approx(wholes, abs=0.01)


def test_the_variance_is_that_of_nadeau_and_bengio():
    values = np.random.default_rng(1).normal(size=(REPEATS, FOLDS))
    mean = values.sum() / 15
    square = sum((v - mean) ** 2 for v in values.ravel()) / 14
    cases = np.full_like(values, 24, dtype=np.int64)
    assert corrected_variance(values, cases) == pytest.approx((1 / 15 + 24 / 96) * square)


@pytest.mark.parametrize("shift", [0.0, 0.2])
def test_an_interval_is_never_narrower_than_without_folds_or_than_the_correction(shift):
    arm, base, folds = repeats(3, shift=shift)
    pooled = estimate_of_sums(arm, base, ACCURACY)
    found = corrected_for_folds(pooled, arm, base, folds, ACCURACY)
    differences = fold_differences(arm, base, folds, ACCURACY, FOLDS)
    variance = corrected_variance(differences, np.full(differences.shape, N // FOLDS))
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


def few_cases(seed=0):
    """Return sums of both sides for 24 cases that are in the folds 0 and 1 only."""
    generator = np.random.default_rng(seed)
    labels = np.zeros(24, dtype=np.int64)
    arm, base = (
        [single_label_sums(labels, generator.binomial(1, rate, 24), 2) for _ in range(REPEATS)]
        for rate in (0.4, 0.1)
    )
    return arm, base, [generator.permutation(labels + np.arange(24) % 2) for _ in range(REPEATS)]


def test_the_numbers_of_the_folds_that_a_subgroup_lacks_do_not_matter():
    arm, base, folds = few_cases()
    widths = [
        estimate_over_folds(arm, base, moved, ACCURACY, 10).half_width(0.025)
        for moved in (folds, [9 * fold for fold in folds], [8 + fold for fold in folds])
    ]
    assert widths == pytest.approx([widths[0]] * 3)
    two_folds = estimate_over_folds(arm, base, folds, ACCURACY, 2).half_width(0.025)
    assert widths[0] < 0.8 * two_folds, "models of ten folds share nine tenths of their rows"


def test_a_fold_with_few_cases_of_a_subgroup_does_not_widen_its_interval():
    generator = np.random.default_rng(2)
    values, spread = [], []
    for sizes in ([8, 8, 8, 8], [1, 1, 1, 29]):
        cases = np.tile(sizes, (2000, 1))
        means = generator.normal(0, 1 / np.sqrt(cases))  # independent cases of variance 1
        found = [corrected_variance(row[None], np.array([sizes])) for row in means]
        values.append(np.mean(found))
        spread.append(np.std(found) / np.sqrt(2000))
    assert values == pytest.approx([(1 / 4 + 1 / 3) * 4 / 32] * 2, abs=4 * max(spread))
