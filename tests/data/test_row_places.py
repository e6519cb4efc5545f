"""The place of a row, in messages and beside predictions, leads back to the row in its source."""

import csv
import json
import re
from dataclasses import replace

import openpyxl
import pandas as pd
import pytest
from datasets import Dataset

from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.errors import InputError
from ampft.integrations.data_in_memory import splits_in_memory

COLUMNS = ("text", "label")
ROWS = [(f"text {number}", "ab"[number % 2]) for number in range(12)]
WRONG = (3, 7)  # rows without a label
INDEX = [f"key{number}" for number in range(len(ROWS))]


def table(rows):
    return pd.DataFrame(rows, columns=list(COLUMNS))


def from_csv(path, rows):
    with (path / "x.csv").open("w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    lines = (path / "x.csv").read_text().splitlines()
    return path / "x.csv", lambda number: lines[number - 1].split(",")[0]


def from_jsonl(path, rows):
    objects = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    (path / "x.jsonl").write_text("\n".join(map(json.dumps, objects)))
    lines = (path / "x.jsonl").read_text().splitlines()
    return path / "x.jsonl", lambda number: json.loads(lines[number - 1])["text"]


def from_parquet(path, rows):
    table(rows).to_parquet(path / "x.parquet")
    return path / "x.parquet", lambda number: table(rows).text[number - 1]


def from_workbook(path, rows):
    book = openpyxl.Workbook()
    for row in (COLUMNS, *rows):
        book.active.append(row)
    book.save(path / "x.xlsx")
    return path / "x.xlsx", lambda number: book.active.cell(number, 1).value


def from_frame(path, rows):
    del path
    return table(rows), lambda number: table(rows).iloc[number].text


def from_indexed_frame(path, rows):
    frame, find = from_frame(path, rows)
    return frame.set_index(pd.Index(INDEX)), find


def from_data_set(path, rows):
    del path
    data = Dataset.from_pandas(table(rows))
    return data, lambda number: data[number]["text"]


def from_pairs(path, rows):
    del path
    return rows, lambda number: rows[number][0]


def from_dictionaries(path, rows):
    del path
    objects = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
    return objects, lambda number: objects[number]["text"]


SOURCES = [
    from_csv, from_jsonl, from_parquet, from_workbook, from_frame, from_indexed_frame,
    from_data_set, from_pairs, from_dictionaries,
]  # fmt: skip


def load(source):
    fractions = {"validation_fraction": 0.25, "test_fraction": 0.25}
    if hasattr(source, "suffix"):
        return load_data(DataRequest(train_file=source, **fractions))
    return load_data(DataRequest(**fractions), splits_in_memory({"train": source}))


@pytest.mark.parametrize("write", SOURCES, ids=lambda write: write.__name__)
def test_numbers_lead_back_to_the_rows(tmp_path, write):
    wrong = [(text, None if row in WRONG else label) for row, (text, label) in enumerate(ROWS)]
    source, find = write(tmp_path, wrong)
    with pytest.raises(InputError, match="no label in column 'label'") as error:
        load(source)
    numbers = re.search(r"(lines|rows|positions) (\d+), (\d+)", str(error.value)).groups()[1:]
    assert [find(int(number)) for number in numbers] == [ROWS[row][0] for row in WRONG]
    assert ("index key3, key7" in str(error.value)) == (write is from_indexed_frame)
    source, find = write(tmp_path, ROWS)
    for part in load(source).splits.values():
        (column,) = {"ampft_line", "ampft_row", "ampft_position"} & set(part.column_names)
        found = [find(number) for number in part[column][:]]
        assert found == part["text"][:]
        assert [find(number + 1) for number in part[column][:-1] if number < 11] != found  # control
        if write is from_indexed_frame:
            assert part["ampft_id"][:] == [INDEX[number] for number in part[column][:]]


@pytest.mark.add_ons
def test_words_of_a_frame(tmp_path):
    words = [[f"w{number}", "is"] for number in range(6)]
    tags = [["B-X", "O"]] * 6
    frame = pd.DataFrame({"tokens": words, "tags": tags}, index=list("uvwxyz"))
    data = load_data(DataRequest(test_fraction=0.3), splits_in_memory({"train": frame}))
    for part in data.splits.values():
        positions = part["ampft_position"][:]
        assert part["tokens"][:] == [words[position] for position in positions]
        assert part["ampft_id"][:] == [frame.index[position] for position in positions]
    frame["tags"] = [["B-X", "O"]] * 4 + [["B-X"]] + [["B-X", "O"]]
    with pytest.raises(InputError, match=r"position 4 \(from 0; index y\): 2 words but 1 tag"):
        load_data(DataRequest(), splits_in_memory({"train": frame}))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (table(ROWS).assign(ampft_index="mine").set_index("text", drop=False), "'ampft_index' has"),
        (table(ROWS).assign(label=2**70), "cannot be read as columns"),
        (
            table(ROWS).set_index(pd.Index([f"\ud800{n}" for n in range(12)], dtype=object)),
            "half a character",
        ),
    ],
)
def test_frames_that_cannot_be_converted_are_refused(frame, message):
    with pytest.raises(InputError, match=message):
        splits_in_memory({"train": frame})


def test_a_column_of_the_index_name_is_read_where_the_index_is_the_position():
    splits = splits_in_memory({"train": table(ROWS).assign(ampft_index="mine")})
    assert splits["train"]["ampft_index"][:] == ["mine"] * len(ROWS)


def test_a_column_of_the_index_name_in_a_file_is_a_column_like_others(tmp_path):
    frame = table(ROWS).rename(columns={"text": "ampft_index"})
    frame.to_csv(tmp_path / "x.csv", index=False)
    request = DataRequest(train_file=str(tmp_path / "x.csv"), test_fraction=0)
    for names in (None, "ampft_index"):
        data = load_data(replace(request, text_column_names=names))
        assert data.input_columns == ("ampft_index",)
