"""Labels that a user corrected are read back, by text and former label."""

from __future__ import annotations

import csv

import pandas as pd
import pytest

from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.errors import InputError

ROWS = [("good", "pos"), ("bad", "neg"), ("fine", "neg"), ("fine", "neg"), ("poor", "pos")] * 3


def table(path, rows, header=("row", "label", "suggested", "corrected", "text")):
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return str(path)


def loaded(tmp_path, corrections, rows=ROWS):
    table(tmp_path / "train.csv", rows, ("text", "label"))
    return load_data(
        DataRequest(
            train_file=str(tmp_path / "train.csv"),
            label_corrections=corrections,
            validation_fraction=0.0,
            test_fraction=0.2,
        )
    )


def all_labels_of(data):
    return [
        (text, data.label_names[label])
        for part in data.splits.values()
        for text, label in zip(part["text"][:], part["label"][:], strict=True)
    ]


def labels_of(data):
    return set(all_labels_of(data))


def test_rows_of_all_splits_get_the_corrected_labels(tmp_path):
    path = table(
        tmp_path / "errors.csv",
        [
            (2, "neg", "pos", "pos", "fine"),
            (1, "neg", "pos", "", "bad"),
            (4, "pos", "neg", "neg", "poor"),
        ],
    )
    data = loaded(tmp_path, path)
    assert labels_of(data) == {("good", "pos"), ("bad", "neg"), ("fine", "pos"), ("poor", "neg")}
    assert any("the labels of 9 training rows were corrected" in note for note in data.notes)


def test_a_table_whose_corrections_are_made_already_changes_nothing(tmp_path):
    path = table(tmp_path / "errors.csv", [(2, "neg", "pos", "pos", "fine")])
    rows = [(text, "pos" if text == "fine" else label) for text, label in ROWS]
    assert ("fine", "pos") in labels_of(loaded(tmp_path, path, rows))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((0, "pos", "neg", "none", "good"), "line 2: no training row has the label 'none'; the"),
        ((0, "neg", "pos", "pos", "good food"), "line 2: no training row has this text and this"),
        ((0, "neg", "pos", "neg", "gone"), None),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path, row, message):
    path = table(tmp_path / "errors.csv", [row])
    if message is None:  # the label was left as it is
        assert len(labels_of(loaded(tmp_path, path))) == 4
    else:
        with pytest.raises(InputError, match=message):
            loaded(tmp_path, path)


def test_another_file_is_refused(tmp_path):
    path = table(tmp_path / "errors.csv", [("x", "y")], ("text", "label"))
    with pytest.raises(InputError, match="the columns 'corrected' are missing"):
        loaded(tmp_path, path)
    with pytest.raises(InputError, match=r"gone\.csv does not exist"):
        loaded(tmp_path, "gone.csv")


def test_labels_of_one_text_are_exchanged_and_not_merged(tmp_path):
    rows = [("fine", "neg"), ("fine", "pos"), ("good", "pos"), ("bad", "neg")] * 3
    path = table(
        tmp_path / "errors.csv",
        [(0, "neg", "pos", "pos", "fine"), (1, "pos", "neg", "neg", "fine")],
    )
    data = loaded(tmp_path, path, rows)
    fine = [label for text, label in all_labels_of(data) if text == "fine"]
    assert sorted(fine) == ["neg"] * 3 + ["pos"] * 3
    assert any("the labels of 6 training rows were corrected" in note for note in data.notes)


def test_two_right_labels_of_one_row_are_refused(tmp_path):
    rows = [*ROWS, ("good", "mixed"), ("bad", "mixed")]
    path = table(
        tmp_path / "errors.csv",
        [(2, "neg", "pos", "pos", "fine"), (3, "neg", "pos", "mixed", "fine")],
    )
    message = (
        "lines 2 and 3: the same text with the same label is corrected to 'pos' and to 'mixed'"
    )
    with pytest.raises(InputError, match=message):
        loaded(tmp_path, path, rows)


@pytest.mark.parametrize("name", ["errors.csv", "errors.xlsx"])
def test_a_spreadsheet_may_save_the_table_in_its_own_way(tmp_path, name):
    frame = pd.DataFrame(
        [(2, "neg", "pos", "pos", "fine"), (1, "neg", "pos", None, "bad")],
        columns=["row", "label", "suggested", "corrected", "text"],
    )
    if name.endswith(".xlsx"):
        frame.to_excel(tmp_path / name, index=False)
    else:
        frame.to_csv(tmp_path / name, index=False, sep=";", encoding="utf-8-sig")
    labels = labels_of(loaded(tmp_path, str(tmp_path / name)))
    assert labels >= {("fine", "pos"), ("bad", "neg")}
