"""Groups of examples are the cases of a comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from run_folders import SEEDS, N, labels, predicted, write_run

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.remarks import remark_texts
from ampft.comparison.statistics.interval import estimate_difference, jackknife_differences
from ampft.comparison.statistics.verdict import mcnemar_mid_p
from ampft.comparison.verdict_text import verdict_texts
from ampft.data.splits import Groups
from ampft.errors import InputError
from ampft.metrics.sums import ACCURACY, single_label_sums

FEW = SEEDS[:3]
WRONG = {"fp32": ([1], [2], [3]), "bf16": ([0, 1, 40, 41], [0, 1, 42, 43], [0, 1, 2, 3])}
IN_FOURS = np.arange(N) // 4


def written(folder: Path, ids: np.ndarray | None, column: str | None = None) -> list[Path]:
    groups = None if ids is None else Groups(ids, column)
    return [
        write_run(folder, arm, seed, predicted(wrong), groups=groups)
        for arm, per_seed in WRONG.items()
        for seed, wrong in zip(FEW, per_seed, strict=True)
    ]


@pytest.mark.slow
def test_the_difference_is_that_of_the_groups(tmp_path):
    comparison = compare_folders(written(tmp_path, IN_FOURS, "user"))
    sides = (
        [single_label_sums(labels(), predicted(wrong), 3).grouped(IN_FOURS) for wrong in WRONG[arm]]
        for arm in ("bf16", "fp32")
    )
    expected = estimate_difference(jackknife_differences(*sides, ACCURACY))
    difference = comparison.arm("bf16").difference
    assert difference is not None
    assert difference.interval95 == pytest.approx(expected.interval(0.95))
    assert difference.rarest_cases == N // 4
    assert difference.unseen_share == pytest.approx(1 - 0.05 ** (4 / N))
    alone = compare_folders(written(tmp_path / "alone", None)).arm("bf16").difference
    assert alone is not None
    assert alone.estimate == difference.estimate
    assert alone.jackknife_covariance < difference.jackknife_covariance


@pytest.mark.slow
def test_a_group_counts_once_in_mcnemar(tmp_path):
    """Seed 1 loses 0, 40 and 41, in two groups; seed 2 loses 0, 1, 42 and 43, and gains 2."""
    grouped = compare_folders(written(tmp_path / "grouped", IN_FOURS)).arm("bf16").flips
    alone = compare_folders(written(tmp_path / "alone", None)).arm("bf16").flips
    assert grouped is not None
    assert alone is not None
    assert alone.mcnemar_mid_p[:2] == (mcnemar_mid_p(0, 3), mcnemar_mid_p(1, 4))
    assert grouped.mcnemar_mid_p[:2] == (mcnemar_mid_p(0, 2), mcnemar_mid_p(0, 2))
    assert grouped.per_seed == alone.per_seed
    assert grouped.lost == alone.lost


@pytest.mark.slow
def test_groups_are_stamped(tmp_path):
    comparison = compare_folders(written(tmp_path, IN_FOURS, "user"))
    assert comparison.groups == 50
    assert (
        "grouped: the 200 examples belong to 50 groups (--group_column user, joined where "
        "inputs are equal), which are the cases of the error bars"
    ) in remark_texts(comparison.stamps)
    assert "50 groups of examples" in verdict_texts(comparison)[0]


@pytest.mark.slow
def test_duplicates_are_stamped(tmp_path):
    ids = np.minimum(np.arange(N), N - 4)
    comparison = compare_folders(written(tmp_path, ids))
    assert comparison.groups == N - 3
    assert (
        "duplicates: 3 of 200 examples repeat another one (apart from case, punctuation and white "
        "space), so the 197 distinct ones are the cases of the error bars"
    ) in remark_texts(comparison.stamps)


@pytest.mark.slow
def test_independent_examples_get_no_stamp(tmp_path):
    comparison = compare_folders(written(tmp_path, None))
    assert comparison.groups is None
    assert not [
        stamp
        for stamp in remark_texts(comparison.stamps)
        if "error bars" in stamp and "200" in stamp
    ]


@pytest.mark.parametrize(
    "other", [Groups(np.arange(N) // 2, "user"), Groups(IN_FOURS, "doc"), None]
)
def test_runs_with_other_groups_are_refused(tmp_path, other):
    folders = written(tmp_path, IN_FOURS, "user")
    folders[-1] = write_run(
        tmp_path / "other", "bf16", FEW[-1], predicted(WRONG["bf16"][-1]), groups=other
    )
    with pytest.raises(InputError, match="have different groups of examples"):
        compare_folders(folders)
