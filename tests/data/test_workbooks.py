"""Excel workbooks are read like CSV files; the message names the row of the sheet."""

import datetime
import sys
import zipfile

import openpyxl
import pytest
from openpyxl import Workbook
from tiny_files import GOOD, NO_SPLITS, ROWS, load, rows_of

from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.data.sources.readers import open_table
from ampft.errors import InputError


def workbook(path, **sheets):
    book = Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


def load_workbook(path, **options):
    return load_data(DataRequest(train_file=path, **{**NO_SPLITS, **options}))


def test_the_first_sheet_is_read_like_a_csv_file(tmp_path):
    path = workbook(tmp_path / "train.xlsx", Data=[("text", "label"), *ROWS], Notes=[("x",)])
    data = load_workbook(path)
    assert rows_of(data) == ROWS
    assert data.splits["train"]["ampft_row"][:2] == [2, 3]
    assert data.fingerprints == load(tmp_path, GOOD).fingerprints
    assert f"{path}: read from sheet 'Data', the first of 2 (--sheet_name)." in data.notes


def test_merged_cells_have_the_value_of_their_first_row(tmp_path):
    rows = sorted(ROWS, key=lambda row: row[1])
    path = workbook(tmp_path / "merged.xlsx", Data=[("text", "label"), *rows])
    book = openpyxl.load_workbook(path)
    count = sum(label == rows[0][1] for _, label in rows)
    book["Data"].merge_cells(start_row=2, end_row=1 + count, start_column=2, end_column=2)
    book.save(path)
    assert book["Data"]["B3"].value is None
    data = load_workbook(path)
    assert rows_of(data) == rows
    assert f"{path}: 1 merged area of cells: each row has the value of the first." in data.notes


def test_empty_cells_that_are_not_merged_stay_empty(tmp_path):
    rows = [("text", "label"), ("one", "a"), ("two", None), ("three", "b"), ("four", "b")]
    path = workbook(tmp_path / "train.xlsx", Data=rows)
    with pytest.raises(InputError, match="row 3: no label"):
        load_workbook(path)


def test_a_sheet_can_be_named(tmp_path):
    sheets = {"Notes": [("x",)], "Data": [(None,), ("text", "label", None), *ROWS]}
    data = load_workbook(workbook(tmp_path / "train.xlsx", **sheets), sheet_name="Data")
    assert rows_of(data) == ROWS


def test_numbers_booleans_and_dates_are_labels_and_texts(tmp_path):
    day = datetime.date(2026, 1, 31)
    rows = [("text", "label"), (day, 1), (2.5, 0), (True, 1), ("None", 0)]
    table = open_table(workbook(tmp_path / "t.xlsx", S=rows), flag="--train_file", encoding="utf-8")
    assert [values for _, values in table.read(["label", "text"])] == [
        [1, "2026-01-31"],
        [0, 2.5],
        [1, True],
        [0, "None"],
    ]


BOMB = "<!DOCTYPE l [<!ENTITY a0 'lol'>{}]>".format(
    "".join(f"<!ENTITY a{n} '{f'&a{n - 1};' * 10}'>" for n in range(1, 12))
)
DAMAGE = {
    "entity bomb": lambda content: content.replace("?>", f"?>{BOMB}").replace("</", "&a11;</", 1),
    "cut": lambda content: content[: len(content) // 2],
    "other tags": lambda content: content.replace("<", "<x", 1),
    "empty": lambda content: "",
    "references": lambda content: content.replace('r="A2"', 'r="@@"').replace("Id", "Ix"),
    "numbers": lambda content: content.replace('="1"', '="x"').replace('="0"', '=""'),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_parts_give_one_message(tmp_path, damage):
    path = workbook(tmp_path / "t.xlsx", S=[("text", "label"), *ROWS])
    refused = []
    with zipfile.ZipFile(path) as book:
        parts = {name: book.read(name).decode() for name in book.namelist()}
    for damaged, original in parts.items():
        content = original if original.startswith("<?xml") else f"<?xml version='1.0'?>{original}"
        with zipfile.ZipFile(path, "w") as book:
            for name, unchanged in parts.items():
                book.writestr(name, DAMAGE[damage](content) if name == damaged else unchanged)
        try:  # a part that is not needed can be damaged
            assert rows_of(load_workbook(path)) == ROWS
        except InputError as error:
            refused.append(str(error))
    assert len(refused) >= 2
    assert all(message.startswith(str(path)) for message in refused)
    workbook(path, S=[("text", "label"), *ROWS])
    assert rows_of(load_workbook(path)) == ROWS  # negative control


def test_columns_without_a_name_are_not_read_and_said(tmp_path):
    rows = [(i, *row[:1], None, row[1], "?") for i, row in enumerate(ROWS)]
    path = workbook(tmp_path / "t.xlsx", S=[(None, "text", None, "label"), *rows])
    data = load_workbook(path)
    assert rows_of(data) == ROWS
    note = f"{path}: columns without a name are not read, though they have values: 5 (40 rows)."
    assert note in data.notes
    path = workbook(tmp_path / "t.xlsx", S=[("text", None, "label"), *(r[1:4] for r in rows)])
    assert not any("without a name" in note for note in load_workbook(path).notes)


BAD = {
    "missing label": ([("text", "label"), ("a", 1), (), ("b", None)], r"t\.xlsx, row 4: no label"),
    "no name": ([(None, " "), ("a", 1)], "no column has a name"),
    "failed formula": ([("text", "label"), ("a", "#N/A")], r"row 2: a cell holds the error #N/A"),
    "column twice": ([("text", "text"), ("a", "b")], r"more than one column is called 'text'"),
    "empty sheet": ([], r"sheet 'S' is empty"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_sheet_is_refused_with_its_row(tmp_path, case):
    rows, message = BAD[case]
    with pytest.raises(InputError, match=message):
        load_workbook(workbook(tmp_path / "t.xlsx", S=rows))


def test_a_missing_sheet_or_a_damaged_file_is_named(tmp_path):
    path = workbook(tmp_path / "t.xlsx", Data=[("text", "label"), *ROWS])
    with pytest.raises(InputError, match=r"--sheet_name: .* no sheet 'data'; its sheets: 'Data'"):
        load_workbook(path, sheet_name="data")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"t\.xlsx: not a readable Excel workbook .* as CSV"):
        load_workbook(path)


def test_a_sheet_of_another_source_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"--sheet_name: .*train\.csv is not an Excel workbook"):
        load(tmp_path, GOOD, sheet_name="Data")
    with pytest.raises(InputError, match="--sheet_name has no effect on the built-in stdlib"):
        load_data(DataRequest(sheet_name="Data"))


def test_without_openpyxl_the_remedy_is_one_sentence(tmp_path, monkeypatch):
    path = workbook(tmp_path / "t.xlsx", Data=[("text", "label"), *ROWS])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(InputError, match=r"t\.xlsx is an Excel workbook.* pip install openpyxl"):
        load_workbook(path)


def test_control_characters_are_read_as_excel_writes_them(tmp_path):
    # A text in which somebody typed _x000D_ has _x005F_ instead of its first sign.
    written = ["one_x000D_\ntwo", "typed _x005F_x0041_", "bell_x0007_"]
    rows = [(text, "ab"[i % 2]) for i, text in enumerate(written)]
    path = workbook(tmp_path / "train.xlsx", Data=[("text", "label"), *rows])
    texts = [text for text, _ in rows_of(load_workbook(path))]
    assert texts[0] == "one\r\ntwo"
    assert texts[1].endswith("_x0041_")
    assert texts[2] == "bell\a"
