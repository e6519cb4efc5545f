"""Folds: a stratified partition that keeps groups together, the same for every fold of a seed."""

from __future__ import annotations

import numpy as np
import pytest

from ampft.data.load import load_data
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


def texts_by_split(folder, **settings):
    """The texts of each split of a file with 90 rows."""
    rows = [f"text number {number},{'ab'[number % 2]}" for number in range(90)]
    (folder / "train.csv").write_text("\n".join(["text,label", *rows]))
    data = load_data(DataRequest(train_file=str(folder / "train.csv"), data_seed=3, **settings))
    return {split: set(part["text"]) for split, part in data.splits.items()}, data


def test_the_test_rows_that_are_left_out_are_those_that_a_run_reports_on(tmp_path):
    whole, _ = texts_by_split(tmp_path)
    searched, data = texts_by_split(tmp_path, leave_out_test=True)
    assert searched == {name: whole[name] for name in ("train", "validation")}
    assert data.fingerprints.keys() == {"train", "validation"}
    tested = set()
    for number in range(1, 6):
        fold, _ = texts_by_split(tmp_path, leave_out_test=True, folds=5, fold=number)
        assert not whole["test"] & set.union(*fold.values())
        assert not tested & fold["test"]
        tested |= fold["test"]
    assert tested == whole["train"] | whole["validation"]
    control, _ = texts_by_split(tmp_path, folds=5, fold=1)  # without it, they are in the folds
    assert whole["test"] & set.union(*control.values())


def test_folds_leave_out_a_test_file(tmp_path):
    (tmp_path / "test.csv").write_text("text,label\none more,a\nanother,b\n")
    fold, _ = texts_by_split(
        tmp_path, test_file=str(tmp_path / "test.csv"), leave_out_test=True, folds=3
    )
    assert sum(map(len, fold.values())) == 90
    assert not {"one more", "another"} & set.union(*fold.values())


@pytest.mark.parametrize("settings", [{"test_fraction": 0.0}, {"test_fraction": 0.0, "folds": 3}])
def test_there_must_be_test_rows_to_leave_out(tmp_path, settings):
    with pytest.raises(InputError, match="--leave_out_test"):
        texts_by_split(tmp_path, leave_out_test=True, **settings)
