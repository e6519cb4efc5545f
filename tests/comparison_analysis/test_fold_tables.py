"""Tables with a column `fold`: intervals that do not take folds for independent."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from ampft.comparison.analysis.foreign_predictions import compare_tables
from ampft.comparison.remarks import remark_texts
from ampft.errors import InputError

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


def test_folds_widen_the_interval_and_are_stated(tmp_path):
    with_folds = compare_tables(write(tmp_path))
    without = compare_tables(write(tmp_path, with_folds=False))
    widths = [np.diff(found.arms[1].difference.interval95)[0] for found in (with_folds, without)]
    assert with_folds.arms[1].difference.estimate == without.arms[1].difference.estimate
    assert widths[0] > 1.1 * widths[1]
    (stated,) = [text for text in remark_texts(with_folds.stamps) if "cross-validation" in text]
    assert "5 folds, 3 repeats" in stated
    assert not [text for text in remark_texts(without.stamps) if "cross-validation" in text]


def one_fold(frame, _):
    frame["fold"] = 3


def other_folds(frame, arm):
    if arm == "new":
        frame["fold"] = frame["fold"].to_numpy()[::-1]


def lacking(frame, arm):
    if arm == "new":
        del frame["fold"]


def spread_groups(frame, _):
    frame["group"] = np.arange(N) // 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (one_fold, "column fold has one value"),
        (other_folds, "the arms have different folds"),
        (lacking, "some tables lack the column fold"),
        (spread_groups, "in several folds"),
    ],
)
def test_folds_that_cannot_be_compared_are_refused(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        compare_tables(write(tmp_path, change=change))
