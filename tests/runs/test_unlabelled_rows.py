"""Which test file without labels an evaluation leaves to the predictions."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampft.arguments import ClassifyArguments
from ampft.runs.unlabelled_rows import find_unlabelled_rows, rows_left_out


def arguments(tmp_path, **settings):
    values = {"evaluate_only": "test", "test_file": tmp_path / "test.csv", **settings}
    return ClassifyArguments(model_name_or_path=str(tmp_path / "model"), **values)


@pytest.mark.parametrize(
    ("settings", "splits", "is_left_out"),
    [
        ({}, ["validation"], True),
        ({}, [], True),
        ({"evaluate_only": "validation,test"}, ["validation"], True),
        ({}, ["validation", "test"], False),
        ({"test_file": None}, ["validation"], False),
        ({"evaluate_only": "validation"}, ["validation"], False),
        ({"evaluate_only": None}, [], False),
    ],
)
def test_the_test_file_is_left_out_if_a_report_was_asked_for_and_none_has_it(
    settings, splits, is_left_out, tmp_path
):
    (tmp_path / "test.csv").write_text("text\na\n")
    found = rows_left_out(arguments(tmp_path, **settings), splits)
    assert (found is not None) == is_left_out
    if found is not None:
        assert Path(found.file) == tmp_path / "test.csv"
        assert found.number is None, "no row has a label"


def test_several_files_are_not_predicted_into_one(tmp_path):
    for name in ("one.csv", "two.csv"):
        (tmp_path / name).write_text("text\na\n")
    files = Path(f"{tmp_path / 'one.csv'},{tmp_path / 'two.csv'}")
    assert rows_left_out(arguments(tmp_path, test_file=files), ["validation"]) is None
    assert find_unlabelled_rows(arguments(tmp_path, test_file=files)) is None
