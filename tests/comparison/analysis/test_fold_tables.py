"""Tables with a column `fold`: intervals that do not take folds for independent."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ampft.comparison.remarks import remark_texts
from ampft.errors import InputError
from ampft.integrations.foreign_predictions import compare_tables

N, FOLDS = 200, 5


def write(folder, *, with_folds=True, change=None):
    """Write the tables of two arms with three repeats, in which folds have luck of their own."""
    sources = []
    for seed in (1, 2, 3):
        fold = np.random.default_rng(seed).permutation(np.arange(N) % FOLDS)
        for arm, base in (("base", 10), ("new", 20)):
            generator = np.random.default_rng(base + seed)
            wrong = generator.random(N) < 0.3 + generator.normal(0, 0.2, FOLDS)[fold]
            frame = pd.DataFrame({"id": range(N), "label": np.arange(N) % 2})
            frame["prediction"] = np.where(wrong, 1 - frame["label"], frame["label"])
            if with_folds:
                frame["fold"] = fold
            if change is not None:
                change(frame, arm)
            sources.append(str(folder / f"{arm}-seed{seed}.csv"))
            frame.to_csv(sources[-1], index=False)
    return sources


@pytest.mark.slow
def test_folds_widen_the_interval_and_are_stated(tmp_path):
    with_folds = compare_tables(write(tmp_path))
    without = compare_tables(write(tmp_path, with_folds=False))
    widths = [np.diff(found.arms[1].difference.interval95)[0] for found in (with_folds, without)]
    assert with_folds.arms[1].difference.estimate == without.arms[1].difference.estimate
    assert widths[0] > 1.1 * widths[1]
    (stated,) = [text for text in remark_texts(with_folds.stamps) if "cross-validation" in text]
    assert "5 folds, 3 repeats" in stated
    assert not [text for text in remark_texts(without.stamps) if "cross-validation" in text]


@pytest.mark.slow
def test_classes_and_subgroups_are_not_surer_than_the_whole(tmp_path):
    def lengths(frame, _):
        frame["text"] = [" ".join(["w"] * (i % 40 + 1) + [str(i)]) for i in range(N)]

    arms = [
        compare_tables(write(tmp_path, with_folds=folds, change=lengths)).arms[1]
        for folds in (True, False)
    ]
    for cautious, other in zip(*([c.difference for c in arm.classes] for arm in arms), strict=True):
        assert np.diff(cautious.interval)[0] > 1.05 * np.diff(other.interval)[0]
    losses = [arm.subgroups.losses for arm in arms]
    assert losses[0]
    for cautious, other in zip(*losses, strict=True):
        assert np.diff(cautious.interval)[0] >= np.diff(other.interval)[0]
    assert losses[0] != losses[1]


def one_fold(frame, _):
    frame["fold"] = 3


def other_folds(frame, arm):
    if arm == "new":
        frame["fold"] = frame["fold"].to_numpy()[::-1]


def lacking(frame, arm):
    if arm == "new":
        del frame["fold"]


def fewer_at_one_seed(frame, _):
    if frame["fold"][0] == 2:  # at seed 3
        frame["fold"] = np.arange(N) % 4


def spread_groups(frame, _):
    frame["group"] = np.arange(N) // 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (one_fold, "column fold has one value"),
        (other_folds, "the arms have different folds"),
        (lacking, "some tables lack the column fold"),
        (fewer_at_one_seed, "the tables have 4 and 5 folds"),
        (spread_groups, "in several folds"),
    ],
)
def test_folds_that_cannot_be_compared_are_refused(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        compare_tables(write(tmp_path, change=change))
