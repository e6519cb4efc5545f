"""Folds: a stratified partition that keeps groups together, the same for every fold of a seed."""

from __future__ import annotations

import numpy as np
import pytest

from ampft.data.request import DataRequest
from ampft.data.splits import fold_splits
from ampft.errors import InputError

N = 203
GROUPS = np.random.default_rng(1).integers(0, 150, N).astype(np.uint64)
LABELS = np.random.default_rng(0).choice(3, 150, p=[0.6, 0.3, 0.1])[GROUPS]


def fold(number, *, folds=5, seed=7, existing=("train",), share=0.0):
    request = DataRequest(folds=folds, fold=number, validation_fraction=share, data_seed=seed)
    return fold_splits(LABELS, GROUPS, frozenset(existing), request)


@pytest.mark.parametrize("folds", [2, 5, 10])
def test_every_row_is_tested_once_and_never_trained_on_beside_its_group(folds):
    parts = [fold(number, folds=folds, share=0.1)[0] for number in range(1, folds + 1)]
    tested = np.concatenate([part["test"] for part in parts])
    assert sorted(tested) == list(range(N))
    for part in parts:
        assert sum(map(len, part.values())) == N
        assert not set(GROUPS[part["test"]]) & set(GROUPS[part["train"]])
        assert not set(GROUPS[part["validation"]]) & set(GROUPS[part["train"]])


def test_folds_have_about_the_same_size_and_classes():
    parts = [fold(number)[0]["test"] for number in range(1, 6)]
    firsts = [np.unique(GROUPS[part], return_index=True)[1] for part in parts]
    counts = [
        np.bincount(LABELS[part[first]], minlength=3)
        for part, first in zip(parts, firsts, strict=True)
    ]
    assert np.ptp(counts, axis=0).max() <= 2  # groups of each class


def test_another_seed_divides_anew():
    assert fold(2)[0]["test"].tolist() == fold(2)[0]["test"].tolist()
    assert fold(2)[0]["test"].tolist() != fold(2, seed=8)[0]["test"].tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"number": 1, "existing": ("train", "test")}, "the data have a test split"),
        ({"number": 6}, "a fold is one of 1 to 5"),
        ({"number": 1, "folds": 400}, "400"),
    ],
)
def test_impossible_folds_are_refused(settings, message):
    with pytest.raises(InputError, match=message):
        fold(**settings)


def test_a_validation_split_of_the_source_is_kept():
    assert set(fold(1, existing=("train", "validation"), share=0.1)[0]) == {"train", "test"}
