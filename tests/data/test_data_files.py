"""Bad data is named before training: one fixture per row of the table in the project's promises."""

import json
import os
import subprocess
import sys
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_files import GOOD, ROWS, WHOLE, csv_of, load, rows_of

import ampft.data.sources.files as sources_files
from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.errors import InputError

# (file name, content, what the message must name: place, value or remedy)
REFUSED = {
    "missing label among integers": (
        "train.csv",
        "text,label\na,0\nb,1\nc,\nd,1\n",
        r"train\.csv, line 4: no label in column 'label' \(1 of 4 rows\)",
    ),
    "missing label in JSON Lines": (
        "train.jsonl",
        '{"text":"a","label":0}\n{"text":"b"}\n{"text":"c","label":null}\n',
        r"train\.jsonl, lines 2, 3: no label",
    ),
    "missing text": (
        "train.csv",
        "text,label\na,0\n,1\n  ,1\nd,1\n",
        r"train\.csv, lines 3, 4: nothing in column 'text' .*--drop_missing_text",
    ),
    "label -1": (
        "train.csv",
        "text,label\na,0\nb,-1\nc,1\n",
        r"line 3: the label .*--ignore_label",
    ),
    "label -100": (
        "train.csv",
        "text,label\na,0\nb,-100\nc,1\n",
        r"line 3: the label .* is -1 or -100",
    ),
    "one class only": ("train.csv", "text,label\na,x\nb,x\n", r"all 2 rows have the label 'x'"),
    "empty file": ("train.csv", "", r"train\.csv: the file is empty"),
    "header only": ("train.csv", "text,label\n", r"train\.csv: no rows for the train split"),
    "no header, comma": ("train.csv", "good film,1\nbad film,0\n", r"lacks a header"),
    "no header, tabs": ("train.tsv", "good film\t1\nbad film\t0\n", r"'good film' \(1 different\)"),
    "columns of one name": (
        "train.csv",
        "text,label,text\na,0,b\n",
        r"train\.csv: more than one column is called 'text'",
    ),
    "a key twice": (
        "train.jsonl",
        '{"text":"a","label":0}\n{"text":"b","label":0,"label":1}\n',
        r"line 2: a key stands twice: 'label'",
    ),
    "several text columns": (
        "train.csv",
        "text,title,label\na,b,0\n",
        r"several columns .*'title'",
    ),
    "latin-1": (
        "train.csv",
        "text,label\na,0\ncaf\xe9,1\n".encode("latin-1"),
        r"train\.csv, line 3: byte 0xe9 is not utf-8.*--encoding latin-1",
    ),
    "UTF-16": ("train.csv", GOOD.encode("utf-16"), r"line 1: byte 0xff is not utf-8.*utf-16"),
    "ragged row, short": (
        "train.csv",
        "text,label\na,0\nb\n",
        r"train\.csv, line 3: 1 fields .* 2",
    ),
    "ragged row, long": (
        "train.csv",
        "text,label\na,0\nb,c,1\n",
        r"line 3: 3 fields .*double quotes",
    ),
    "ragged row after a line break in quotes": (
        "train.csv",
        'text,label\n"a\nb",0\nc\n',
        r"train\.csv, line 4: 1 fields",
    ),
    "open quote": (
        "train.csv",
        'text,label\na,0\n"b,1\nc,0\n',
        r"train\.csv, line 3: .*quote left open",
    ),
    "quote not doubled": ("train.csv", 'text,label\n"a "b" c",0\n', r"train\.csv, line 2: .*quote"),
    "ragged TSV": ("train.tsv", "text\tlabel\na\tb\t0\n", r"train\.tsv, line 2: 3 fields .*plain"),
    "NUL": ("train.csv", "text,label\na,0\nb\0,1\n", r"train\.csv, line 3: a NUL character"),
    "semicolons": ("train.csv", "text;label\na;0\n", r"separated by semicolons"),
    "broken JSON Lines": ("train.jsonl", '{"text":"a","label":0}\n{"text"\n', r"line 2: not JSON"),
    "broken JSON array": ("train.json", '[{"text":"a","label":0},{"text":]', r"line 1: not JSON"),
    "no object": ("train.jsonl", '{"text":"a","label":0}\n[1]\n', r"line 2: found list"),
    "several labels": (
        "train.jsonl",
        '{"text":"a","label":[0,1]}\n',
        r"line 1: .*More than one label",
    ),
    "half a surrogate": (
        "train.jsonl",
        '{"text":"\\ud800","label":0}\n',
        r"line 1: '\\ud800' is half",
    ),
    "no Parquet": ("train.parquet", "text,label\n", r"train\.parquet: not a Parquet file"),
    "unknown ending": (
        "train.xlsx",
        "",
        r"--train_file: got .*train\.xlsx; files that end in \.csv",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_data_is_refused_with_its_place(tmp_path, case):
    name, content, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        load(tmp_path, content, name)


def test_every_refused_file_is_read_once_it_is_mended(tmp_path):
    assert len(REFUSED) > 25  # a table that lost its rows would test nothing
    assert rows_of(load(tmp_path, GOOD)) == ROWS


# What must be read, and as what
READ = {
    "the class None": ("train.csv", "text,label\na,None\nb,NA\nc,null\nd,nan\n", "label"),
    "the text None": ("train.csv", "text,label\nNone,0\nNA,1\nnull,0\nnan,1\n", "text"),
    "byte-order mark": ("train.csv", b"\xef\xbb\xbf" + GOOD.encode(), None),
    "CRLF": ("train.csv", GOOD.replace("\n", "\r\n"), None),
    "blank lines": ("train.csv", GOOD.replace("\n", "\n\n"), None),
    "no line break at the end": ("train.csv", GOOD.rstrip("\n"), None),
    "TSV": ("train.tsv", GOOD.replace(",", "\t"), None),
    "quoted": ("train.csv", csv_of([(f'"{t}"', f'"{y}"') for t, y in ROWS]), None),
    "JSON Lines": (
        "t.jsonl",
        "\n".join(json.dumps({"text": t, "label": y}) for t, y in ROWS),
        None,
    ),
    "JSON array": (
        "t.json",
        json.dumps([{"text": t, "label": y} for t, y in ROWS], indent=1),
        None,
    ),
}


@pytest.mark.parametrize("case", READ)
def test_what_the_standards_allow_is_read(tmp_path, case):
    name, content, column = READ[case]
    rows = rows_of(load(tmp_path, content, name))
    if column is None:
        assert rows == ROWS
    else:
        found = [row[("text", "label").index(column)] for row in rows]
        assert found in (["None", "NA", "null", "nan"], ["None", "NA", "null", "nan"])


def test_line_breaks_commas_and_quotes_inside_quotes_belong_to_the_text(tmp_path):
    data = load(tmp_path, 'text,label\n"a, ""b""\nc",0\nd,1\n')
    assert rows_of(data) == [('a, "b"\nc', "0"), ("d", "1")]


def test_quotes_in_tsv_are_plain_characters(tmp_path):
    data = load(tmp_path, 'text\tlabel\n"a\t0\nb "c\t1\n', "train.tsv")
    assert rows_of(data) == [('"a', "0"), ('b "c', "1")]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8"])
def test_encoding_is_taken_at_its_word(tmp_path, encoding):
    data = load(tmp_path, "text,label\ncafé,0\nd,1\n".encode(encoding), encoding=encoding)
    assert rows_of(data) == [("café", "0"), ("d", "1")]


@pytest.mark.parametrize("name", ["train.csv", "train.jsonl"])
def test_unknown_encoding_is_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"--encoding: got 'klingon'"):
        load(tmp_path, GOOD, name, encoding="klingon")


def test_utf_16_without_mark_is_refused_without_a_traceback(tmp_path):
    with pytest.raises(InputError, match=r"train\.csv: not utf-16"):
        load(tmp_path, b"text,label\na,0\n", encoding="utf-16")


def parquet(folder, columns, name="train.parquet"):
    pq.write_table(pa.table(columns), folder / name)
    return folder / name


def test_parquet_is_read_whatever_the_order_of_its_columns(tmp_path):
    labels = [y for _, y in ROWS]
    path = parquet(tmp_path, {"label": labels, "id": range(40), "text": [t for t, _ in ROWS]})
    assert rows_of(load_data(DataRequest(train_file=path, **WHOLE))) == ROWS


def test_one_missing_label_turns_integers_to_floats_and_is_named(tmp_path):
    path = parquet(tmp_path, {"text": ["a", "b", "c"], "label": [0.0, float("nan"), 1.0]})
    with pytest.raises(InputError, match=r"train\.parquet, row 2: no label"):
        load_data(DataRequest(train_file=path, **WHOLE))


def test_large_json_array_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("ampft.data.sources.json_rows.CHARACTERS_AT_A_TIME", 7)
    content = json.dumps([{"text": t, "label": y} for t, y in ROWS], indent=2)
    assert rows_of(load(tmp_path, content, "train.json")) == ROWS


def test_missing_texts_are_dropped_and_counted_when_asked(tmp_path):
    data = load(tmp_path, "text,label\na,0\n,1\nc,1\n", drop_missing_text=True)
    assert rows_of(data) == [("a", "0"), ("c", "1")]
    assert any("line 3: 1 rows without text are left out" in note for note in data.notes)


def test_ignored_labels_are_left_out_and_counted(tmp_path):
    data = load(tmp_path, "text,label\na,0\nb,-1\nc,1\n", ignore_labels=("-1",))
    assert rows_of(data) == [("a", "0"), ("c", "1")]
    assert any("1 rows with the label '-1' are left out" in note for note in data.notes)


def test_labels_are_strings_that_sort_as_numbers(tmp_path):
    data = load(tmp_path, csv_of((f"t{i}", y) for i, y in enumerate(["10", "9", "007", "1.5"])))
    assert data.label_names == ("1.5", "007", "9", "10")


@pytest.mark.parametrize(
    "labels", [("007", "7"), ("1.0", "1"), ("True", "yes"), ("Pos", " pos"), ("false", "no")]
)
def test_near_duplicate_labels_are_pointed_out_and_not_merged(tmp_path, labels):
    data = load(tmp_path, csv_of([("a", labels[0]), ("b", labels[1]), ("c", "other")]))
    assert set(data.label_names) == {*labels, "other"}
    assert any(repr(labels[0]) in n and "several spellings" in n for n in data.notes)


def test_different_labels_are_not_pointed_out(tmp_path):
    assert not any("spellings" in note for note in load(tmp_path, GOOD).notes)


def test_a_column_of_identifiers_as_label_is_remarked(tmp_path):
    data = load(tmp_path, csv_of((f"t{i}", str(i)) for i in range(9)))
    assert any("9 classes in 9 training rows" in note for note in data.notes)


HOLD = """
import sys, time
from ampft.data.sources.files import on_disk
on_disk(iter([("a text",)]), ("text",))
print("held", flush=True)
time.sleep(60)
"""


def test_the_texts_of_a_killed_process_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    with holder:
        assert holder.stdout.readline() == "held\n"
        (held,) = tmp_path.glob("ampft-data-*")
        os.utime(held / ".lock", (0, 0))
        sources_files.on_disk(iter([("another",)]), ("text",))
        assert held.exists()
        holder.kill()
    sources_files.on_disk(iter([("another",)]), ("text",))
    assert not held.exists()
    assert len(list(tmp_path.glob("ampft-data-*"))) == 2
