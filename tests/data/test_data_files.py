"""Bad files are refused with file, line and remedy; what the standards allow is read."""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Features, Value
from tiny_files import GOOD, NO_SPLITS, ROWS, csv_of, load, rows_of

from ampft import ownership
from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.data.sources.arrow_rows import write_arrow
from ampft.data.sources.readers import open_table
from ampft.errors import InputError

# (file name, content, location, value or remedy in the message)
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
    "label -100": (
        "train.csv",
        "text,label\na,0\nb,-100\nc,1\n",
        r"line 3: the label .* is -100, .* \(1 of 3 rows\)\. Pass --ignore_label -100 to leave",
    ),
    "one class only": ("train.csv", "text,label\na,x\nb,x\n", r"all 2 rows have the label 'x'"),
    "empty file": ("train.csv", "", r"train\.csv: the file is empty"),
    "header only": ("train.csv", "text,label\n", r"train\.csv: no rows for the train split"),
    "no header, comma": ("train.csv", "good film,1\nbad film,0\n", r"lacks a header"),
    "no header, tabs": ("train.tsv", "good film\t1\nbad film\t0\n", r"'good film' \(1 different\)"),
    "a comment above the header": (
        "train.csv",
        "# of 2024\ntext,label\na,0\nb,1\n",
        r"line 2: 2 fields, but the header has 1\. Is the first line the header\?",
    ),
    "header repeated": (
        "train.csv",
        "text,label\na,0\nb,1\ntext,label\nc,0\n",
        r"train\.csv, line 4: the header is repeated\. Remove this line",
    ),
    "header repeated with its byte-order mark": (
        "train.csv",
        "\ufefftext,label\na,0\nb,1\n\ufefftext,label\nc,0\n",
        r"train\.csv, line 4: the header is repeated\. Remove this line",
    ),
    "header repeated with a mark, labels first": (
        "train.tsv",
        "label\ttext\n0\ta\n1\tb\n\ufefflabel\ttext\n0\tc\n",
        r"train\.tsv, line 4: the header is repeated\. Remove this line",
    ),
    "columns of 0 and 1": (
        "train.csv",
        "text,x,y\na,0,1\nb,1,1\nc,1,0\n",
        r"--task multi-label --label_column_name x,y",
    ),
    "lines of fastText": (
        "train.txt",
        "__label__1 good film\n__label__2 bad\n",
        r"sed 's/\^__label__\\\(\[\^ \]\*\\\) /\\1\\t/' \S*train\.txt\) > \S*train\.txt\.tsv",
    ),
    "lines of words without --task": (
        "eng.train",
        "Rita B-PER\nruns O\n\nhi O\n",
        r"a word and its tag per line: add --task tokens",
    ),
    "addresses of images": (
        "train.csv",
        "image,label\nhttps://x.org/1.jpg,0\nhttps://x.org/2.jpg?s=1,1\n",
        r"column 'image' holds addresses of images, .*which are not downloaded",
    ),
    "columns of one name": (
        "train.csv",
        "text,label,text\na,0,b\n",
        r"train\.csv: more than one column is called 'text'",
    ),
    "a key twice": (
        "train.jsonl",
        '{"text":"a","label":0}\n{"text":"b","label":0,"label":1}\n',
        r"line 2: duplicate key 'label'",
    ),
    "several text columns": (
        "train.csv",
        "text,title,label\na,b,0\n",
        r"several possible text columns.*'title'",
    ),
    "latin-1": (
        "train.csv",
        "text,label\na,0\ncaf\xe9,1\n".encode("latin-1"),
        r"train\.csv, line 3: byte 0xe9 is not utf-8.*--encoding latin-1",
    ),
    "UTF-16": ("train.csv", GOOD.encode("utf-16-le"), r"seems to be UTF-16. Pass .* utf-16-le"),
    "ragged row, short": (
        "train.csv",
        "text,label\na,0\nb\n",
        r"train\.csv, line 3: 1 fields, but the header has 2",
    ),
    "ragged row, long": (
        "train.csv",
        "text,label\na,0\nb,c,1\n",
        r"line 3: 3 fields, .*double quotes",
    ),
    "ragged row after a line break in quotes": (
        "train.csv",
        'text,label\n"a\nb",0\nc\n',
        r"train\.csv, line 4: 1 fields",
    ),
    "open quote": (
        "train.csv",
        'text,label\na,0\n"b,1\nc,0\n',
        r"train\.csv, line 3: .*quote not closed",
    ),
    "quote not doubled": ("train.csv", 'text,label\n"a "b" c",0\n', r"train\.csv, line 2: .*quote"),
    "ragged TSV": ("train.tsv", "text\tlabel\na\tb\t0\n", r"train\.tsv, line 2: 3 fields, .*plain"),
    "NUL": ("train.csv", "text,label\na,0\nb\0,1\n", r"train\.csv, line 3: a NUL character"),
    "semicolons in a TSV file": ("train.tsv", "text;label\na;0\n", r"separated by semicolons"),
    "ragged row between semicolons": (
        "train.csv",
        "text;label\na, b;0\nc; d;1\n",
        r"train\.csv, line 3: 3 fields, .*A text with semicolons must be in double quotes",
    ),
    "broken JSON Lines": (
        "train.jsonl",
        '{"text":"a","label":0}\n{"text"\n',
        r"line 2: not valid JSON",
    ),
    "broken JSON array": (
        "train.json",
        '[{"text":"a","label":0},{"text":]',
        r"line 1: not valid JSON",
    ),
    "one object with several keys": (
        "train.json",
        '{"version": "1", "data": [{"text": "a", "label": 0}]}',
        r"train\.json: .*one object with the keys 'version', 'data'\. .*Save the list in 'data'",
    ),
    "huge number in JSON": (
        "train.jsonl",
        f'{{"text":"a","label":0}}\n{{"text":"b","label":{"9" * 5000}}}\n',
        r"train\.jsonl, line 2: a number has more than 4,300 digits",
    ),
    "deep JSON Lines": (
        "train.jsonl",
        f'{{"text":"a","label":{"[" * 100_000}{"]" * 100_000}}}\n',
        r"train\.jsonl, line 1: values are nested too deeply",
    ),
    "deep JSON array": ("train.json", "[" * 100_000, r"train\.json: values are nested too deeply"),
    "no object": ("train.jsonl", '{"text":"a","label":0}\n[1]\n', r"line 2: received list"),
    "several labels": (
        "train.jsonl",
        '{"text":"a","label":[0,1]}\n',
        r"line 1: several labels, .*Add --task multi-label",
    ),
    "text in an object": (
        "train.jsonl",
        '{"text":{"body":"a"},"label":0}\n',
        r"line 1: column 'text' holds a nested value .*pandas\.json_normalize\(ROWS\)",
    ),
    "fastText in a column": (
        "train.csv",
        "text\n__label__a good soup\n__label__b bad soup\n",
        r"The labels stand before the texts in 'text'.*\.extract\(r'__label__\(\\S\+\) \(\.\*\)'\)",
    ),
    "no column of classes": (
        "train.csv",
        "question1,question2\n" + "".join(f"a{i},b{i}\n" for i in range(20)),
        r"No column repeats a value, .*add a column with the class of each row",
    ),
    "nested text": (
        "train.jsonl",
        '{"text":"a","label":0}\n{"text":["b","c"],"label":0}\n',
        r"train\.jsonl, line 2: column 'text' holds a nested value \(list \['b', 'c'\]\)",
    ),
    "scores": (
        "train.csv",
        csv_of((f"t{i}", str(i / 8)) for i in range(12)),
        r"the labels are 12 different numbers such as 0\.125\. .*regression",
    ),
    "many scores": (
        "train.csv",
        csv_of((f"t{i}", str(i % 50 / 10)) for i in range(500)),
        r"the labels are 50 different numbers such as 0\.1\. .*regression",
    ),
    "lists of labels": (
        "train.csv",
        csv_of((f"t{i}", f'"{i % 4},{i % 5}"') for i in range(40)),
        r"20 of 20 different labels contain ',', such as '0,0', .*--task multi-label\. "
        r"If they are numbers with decimal commas, write points\. If each",
    ),
    "lists of labels between bars": (
        "train.csv",
        csv_of((f"t{i}", "|".join("abcd"[: i % 4 + 1][i % 3 :] or "a")) for i in range(40)),
        r"--task multi-label --label_separator '\|'\. If each",
    ),
    "half a surrogate": (
        "train.jsonl",
        '{"text":"\\ud800","label":0}\n',
        r"line 1: '\\ud800' is half",
    ),
    "no Parquet": ("train.parquet", "text,label\n", r"train\.parquet: not a readable Parquet file"),
    "unknown ending": (
        "train.txt",
        "",
        r"--train_file: received .*train\.txt; the name must end in one of \.csv",
    ),
    "old Excel": ("train.xls", b"", r"train\.xls; .* It is a spreadsheet.*CSV UTF-8"),
    "Excel called CSV": ("train.csv", b"PK\3\4\x14\0", r"train\.csv is a spreadsheet"),
    "old Excel called CSV": (
        "train.csv",
        bytes.fromhex("d0cf11e0a1b11ae1"),
        r"train\.csv is a spreadsheet",
    ),
    "ZIP archive": ("train.csv.zip", b"PK\3\4", r"train\.csv\.zip; the name must end in .* unzip"),
    "gzip": ("train.csv.gz", b"\x1f\x8b", r"csv\.gz; .* unpack it with gunzip --keep .*csv\.gz"),
    "Arrow": ("train.arrow", b"ARROW1", r"pandas\.read_feather\('.*train\.arrow'\)\.to_parquet"),
    "brat": ("train.ann", "T1\tPER 0 3\tAnn\n", r"of brat are not read\. Write lines such as"),
    "COCO": (
        "train.json",
        '{"images": [{"id": 1}], "annotations": [{"image_id": 1}], "categories": [{"id": 3}]}',
        r"annotations of COCO are not read\. Draw them as masks.*--task pixels",
    ),
}


@pytest.mark.add_ons
@pytest.mark.parametrize("case", REFUSED)
def test_bad_data_is_refused_with_its_location(tmp_path, case):
    name, content, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        load(tmp_path, content, name)


def test_a_good_file_is_read(tmp_path):
    assert len(REFUSED) > 25  # an empty table would test nothing
    assert rows_of(load(tmp_path, GOOD)) == ROWS


# (file name, content, column to check)
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
    "JSON array in an object": (
        "t.json",
        json.dumps({"data": [{"text": t, "label": y} for t, y in ROWS]}),
        None,
    ),
    "JSON array in an object over several lines": (
        "t.json",
        json.dumps({"data": [{"text": t, "label": y} for t, y in ROWS]}, indent=1),
        None,
    ),
    "JSON array": (
        "t.json",
        json.dumps([{"text": t, "label": y} for t, y in ROWS], indent=1),
        None,
    ),
}


@pytest.mark.add_ons
@pytest.mark.parametrize("case", READ)
def test_what_the_standards_allow_is_read(tmp_path, case):
    name, content, column = READ[case]
    rows = rows_of(load(tmp_path, content, name))
    if column is None:
        assert rows == ROWS
    else:
        values = [row[("text", "label").index(column)] for row in rows]
        assert values == ["None", "NA", "null", "nan"]


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_another_delimiter_is_detected_and_said(tmp_path, delimiter):
    content = f'text{delimiter}label\none, two, three{delimiter}0\n"a{delimiter}b, c"{delimiter}1\n'
    data = load(tmp_path, content)
    assert rows_of(data) == [("one, two, three", "0"), (f"a{delimiter}b, c", "1")]
    assert any("fields are separated by" in note and "not by commas" in note for note in data.notes)


def test_a_delimiter_without_usual_names_is_detected_by_its_columns(tmp_path):
    columns = {"text_column_names": "Satz", "label_column_name": "Art"}
    data = load(tmp_path, "Satz;Art\na, b;0\nc;1\n", **columns)
    assert rows_of(data) == [("a, b", "0"), ("c", "1")]


@pytest.mark.parametrize("rows", [3, 900])
def test_the_encoding_is_named_where_semicolons_divide_rows_with_commas(tmp_path, rows):
    """As Excel saves a table in German: one byte that UTF-8 lacks must not hide the semicolons."""
    lines = ["Frage;Klasse;Preis", *(f"Was kostet Nummer {i}?;Preis;{i},50" for i in range(rows))]
    path = tmp_path / "tickets.csv"
    path.write_bytes("\n".join([*lines, "Wo ist die Tür?;Ort;1,50\n"]).encode("cp1252"))
    with pytest.raises(InputError, match=r"tickets\.csv.*--encoding"):
        list(open_table(path, flag="--train_file", encoding="utf-8").read(["Frage"]))
    table = open_table(path, flag="--train_file", encoding="cp1252")
    assert list(table.columns) == ["Frage", "Klasse", "Preis"]


def test_commas_are_kept_where_texts_have_as_many_semicolons(tmp_path):
    data = load(tmp_path, "text,label\na; b,0\nc; d,1\n")
    assert rows_of(data) == [("a; b", "0"), ("c; d", "1")]
    assert not any("separated" in note for note in data.notes)


def test_line_breaks_commas_and_quotes_inside_quotes_belong_to_the_text(tmp_path):
    data = load(tmp_path, 'text,label\n"a, ""b""\nc",0\nd,1\n')
    assert rows_of(data) == [('a, "b"\nc', "0"), ("d", "1")]


def test_quotes_in_tsv_are_plain_characters(tmp_path):
    data = load(tmp_path, 'text\tlabel\n"a\t0\nb "c\t1\n', "train.tsv")
    assert rows_of(data) == [('"a', "0"), ('b "c', "1")]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8"])
def test_the_named_encoding_is_used(tmp_path, encoding):
    data = load(tmp_path, "text,label\ncafé,0\nd,1\n".encode(encoding), encoding=encoding)
    assert rows_of(data) == [("café", "0"), ("d", "1")]


@pytest.mark.parametrize("name", ["train.csv", "train.jsonl"])
def test_unknown_encoding_is_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"--encoding: received 'klingon'"):
        load(tmp_path, GOOD, name, encoding="klingon")


@pytest.mark.parametrize("name", ["train.csv", "train.jsonl"])
def test_an_encoding_that_decodes_nothing_is_refused(tmp_path, name):
    with pytest.raises(InputError, match=rf"{name}: not undefined .*Pass the file's encoding"):
        load(tmp_path, GOOD, name, encoding="undefined")


def test_a_cell_that_is_too_long_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("ampft.data.sources.text_files.MAX_FIELD_LENGTH", 10)
    with pytest.raises(InputError, match=r"train\.csv, line 3: a cell is longer than 10 char"):
        load(tmp_path, "text,label\na,0\nlonger than ten,1\n")


def test_utf_16_without_mark_is_refused_without_a_traceback(tmp_path):
    with pytest.raises(InputError, match=r"train\.csv: not utf-16"):
        load(tmp_path, b"text,label\na,0\n", encoding="utf-16")


def parquet(folder, columns, name="train.parquet"):
    pq.write_table(pa.table(columns), folder / name)
    return folder / name


def test_parquet_is_read_whatever_the_order_of_its_columns(tmp_path):
    labels = [y for _, y in ROWS]
    path = parquet(tmp_path, {"label": labels, "id": range(40), "text": [t for t, _ in ROWS]})
    assert rows_of(load_data(DataRequest(train_file=path, **NO_SPLITS))) == ROWS


def test_a_damaged_parquet_file_is_refused_while_it_is_read(tmp_path):
    generator = np.random.default_rng(0)
    texts = [generator.bytes(40).hex() for _ in range(1000)]
    path = tmp_path / "train.parquet"
    table = pa.table({"text": texts, "label": [i % 2 for i in range(1000)]})
    pq.write_table(table, path, write_page_checksum=True, use_dictionary=False)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"train\.parquet: not a readable Parquet file"):
        load_data(DataRequest(train_file=path, **NO_SPLITS))


def test_a_parquet_text_that_is_not_utf_8_is_refused(tmp_path):
    texts = pa.array([b"a", b"caf\xe9"]).view(pa.string())
    path = parquet(tmp_path, {"text": texts, "label": [0, 1]})
    with pytest.raises(InputError, match=r"train\.parquet: a text has the byte 0xe9, .*not UTF-8"):
        load_data(DataRequest(train_file=path, **NO_SPLITS))


def test_a_missing_label_that_makes_integers_floats_is_refused(tmp_path):
    path = parquet(tmp_path, {"text": ["a", "b", "c"], "label": [0.0, float("nan"), 1.0]})
    with pytest.raises(InputError, match=r"train\.parquet, row 2: no label"):
        load_data(DataRequest(train_file=path, **NO_SPLITS))


@pytest.mark.add_ons
def test_the_key_of_a_wrapped_json_array_is_said(tmp_path):
    content = json.dumps({"rows": [{"text": t, "label": y} for t, y in ROWS]})
    notes = load(tmp_path, content, "train.json").notes
    assert any("rows are read from the key 'rows'" in note for note in notes)


def test_large_json_array_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("ampft.data.sources.text_files.CHARACTERS_AT_A_TIME", 7)
    content = json.dumps([{"text": t, "label": y} for t, y in ROWS], indent=2)
    assert rows_of(load(tmp_path, content, "train.json")) == ROWS


def test_missing_texts_are_dropped_and_counted_when_asked(tmp_path):
    data = load(tmp_path, "text,label\na,0\n,1\nc,1\n", drop_missing_text=True)
    assert rows_of(data) == [("a", "0"), ("c", "1")]
    assert any("line 3: 1 row without text left out" in note for note in data.notes)


def test_ignored_labels_are_left_out_and_counted(tmp_path):
    data = load(tmp_path, "text,label\na,0\nb,-1\nc,1\n", ignore_label="-1")
    assert rows_of(data) == [("a", "0"), ("c", "1")]
    assert any("1 row with the label '-1' left out" in note for note in data.notes)


@pytest.mark.parametrize(
    "labels",
    [
        [str(i / 2) for i in range(1, 11)],
        [str(i) for i in range(30)],
        ['"Paris, France"', '"Lyon, France"', '"Rome, Italy"'],
        [f"{kind}; {place}" for kind in ("art", "war") for place in ("home", "abroad")],
    ],
    ids=["half stars", "whole numbers", "commas", "semicolons"],
)
def test_numbers_and_commas_can_be_classes(tmp_path, labels):
    data = load(tmp_path, csv_of((f"t{i}", y) for i, y in enumerate(labels * 3)))
    assert set(data.label_names) == {label.strip('"') for label in labels}


def test_an_ignored_label_that_no_row_has_is_said(tmp_path):
    content = csv_of([("a", "positive"), ("b", "neutral"), ("c", "negative")])
    notes = load(tmp_path, content, ignore_label="neutrl").notes
    assert any("no row has the label 'neutrl'" in n and "'neutral'?" in n for n in notes)


def test_rows_without_a_label_are_dropped_when_asked(tmp_path):
    data = load(tmp_path, "text,label\na,x\nb,\nc,y\n", drop_missing_labels=True)
    assert data.splits["train"]["text"][:] == ["a", "c"]
    assert any("line 3: 1 row without a label left out (--drop" in n for n in data.notes)


@pytest.mark.parametrize(("rows", "is_few"), [(1, True), (2, True), (3, False)])
def test_classes_with_fewer_rows_than_splits_are_in_the_plan(tmp_path, rows, is_few):
    labels = ["a"] * 20 + ["b"] * 20 + ["rare"] * rows
    content = csv_of((f"t{i}", y) for i, y in enumerate(labels))
    fractions = {"validation_fraction": 0.1, "test_fraction": 0.2}
    notes = load(tmp_path, content, **fractions).notes
    note = "1 class with fewer rows than the 3 splits, so that one of them has no example: "
    note += f"'rare' ({rows})."
    assert (note in notes) == is_few
    assert not any("fewer rows" in n for n in load(tmp_path, content).notes)  # no split is made


def test_labels_are_strings_that_sort_as_numbers(tmp_path):
    data = load(tmp_path, csv_of((f"t{i}", y) for i, y in enumerate(["10", "9", "007", "1.5"])))
    assert data.label_names == ("1.5", "007", "9", "10")


INVISIBLE = "\u200b\u200c\u200d\u2060\u00ad\u200e\ufeff"


@pytest.mark.parametrize(
    "labels",
    [
        *(("007", "7"), ("1.0", "1"), ("True", "yes"), ("Pos", " pos"), ("false", "no")),
        *(("pos", f"po{character}s") for character in INVISIBLE),
    ],
)
def test_near_duplicate_labels_are_reported_and_not_merged(tmp_path, labels):
    data = load(tmp_path, csv_of([("a", labels[0]), ("b", labels[1]), ("c", "other")]))
    assert set(data.label_names) == {*labels, "other"}
    assert any(repr(labels[0]) in n and "several spellings" in n for n in data.notes)


@pytest.mark.parametrize("label", ["nan", "NaN", "NA", "None", " null", "-", "?", "-1"])
def test_labels_that_often_stand_for_none_are_said(tmp_path, label):
    content = csv_of([("u", label), ("v", "b"), ("w", "c")])
    data = load(tmp_path, content)
    assert set(data.label_names) == {label, "b", "c"}
    (flag,) = re.findall(r"If it does, pass --ignore_label (\S+)\.", " ".join(data.notes))
    assert load(tmp_path, content, ignore_label=shlex.split(flag)[0]).label_names == ("b", "c")


@pytest.mark.parametrize("labels", [(-1, 1), (-1.0, 1.0), (-2, -1, 0, 1, 2), (-1, 0, 1)])
@pytest.mark.parametrize("name", ["train.csv", "train.json", "train.parquet"])
def test_minus_one_is_a_class(tmp_path, labels, name):
    rows = [(f"t{i}", label) for i, label in enumerate(labels * 3)]
    path = tmp_path / name
    texts, of_rows = zip(*rows, strict=True)
    if name.endswith("parquet"):
        pq.write_table(pa.table({"text": texts, "label": of_rows}), path)
    elif name.endswith("json"):
        path.write_text(json.dumps([{"text": t, "label": y} for t, y in rows]))
    else:
        path.write_text(csv_of([(t, str(y)) for t, y in rows]))
    data = load_data(DataRequest(train_file=path, **NO_SPLITS))
    assert data.label_names == tuple(map(str, sorted(labels)))
    assert rows_of(data) == [(t, str(y)) for t, y in rows]
    # Beside 0 and 1 alone it may stand for no label.
    said = [note for note in data.notes if "pass --ignore_label -1." in note]
    assert len(said) == (labels == (-1, 0, 1))


@pytest.mark.parametrize("code", [-1, -100])
def test_minus_one_is_no_class_beside_declared_ones(tmp_path, code):
    path = tmp_path / "train.parquet"
    table = pa.table({"text": ["a", "b", "c"], "label": [0, code, 1]})
    features = Features({"text": Value("string"), "label": ClassLabel(names=["x", "y"])})
    pq.write_table(table.cast(features.arrow_schema), path)
    with pytest.raises(InputError, match=rf"row 2: .* Pass --ignore_label {code} to leave"):
        load_data(DataRequest(train_file=path, **NO_SPLITS))
    data = load_data(DataRequest(train_file=path, ignore_label=str(code), **NO_SPLITS))
    assert rows_of(data) == [("a", "x"), ("c", "y")]


def test_a_column_of_images_and_one_of_sounds_are_refused(tmp_path):
    settings = {"image_column_name": "text", "audio_column_name": "text"}
    with pytest.raises(InputError, match="--image_column_name and --audio_column_name: received"):
        load(tmp_path, GOOD, **settings)


def test_different_labels_are_not_reported(tmp_path):
    assert not any("spellings" in note for note in load(tmp_path, GOOD).notes)
    ids = ("100000000000000001", "100000000000000002")  # equal as floats
    data = load(tmp_path, csv_of((f"a {y}", y) for y in (*ids, *ids)))
    assert set(data.label_names) == set(ids)
    assert not any("spellings" in note for note in data.notes)


def test_a_label_column_of_identifiers_is_reported(tmp_path):
    data = load(tmp_path, csv_of((f"t{i}", str(i)) for i in range(9)))
    assert any("9 classes in 9 training rows" in note for note in data.notes)


HOLD = """
import sys, time
from ampft.data.sources.arrow_rows import (write_arrow)
write_arrow(iter([("a text",)]), ("text",))
print("held", flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_the_texts_of_a_killed_process_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    with holder:
        assert holder.stdout.readline() == "held\n"
        (held,) = tmp_path.glob("ampft-data-*")
        write_arrow(iter([("another",)]), ("text",))
        assert held.exists()
        holder.kill()
    ownership._remove_left.cache_clear()  # as in the next process
    write_arrow(iter([("another",)]), ("text",))
    assert not held.exists()
    assert len(list(tmp_path.glob("ampft-data-*"))) == 2


def test_a_class_that_is_declared_twice_is_refused(tmp_path):
    path = tmp_path / "train.parquet"
    table = pa.table({"text": ["a", "b"], "label": [0, 1]})
    for names, is_refused in ((["neg", "neg"], True), (["neg", "pos"], False)):
        features = {"label": {"names": names, "_type": "ClassLabel"}}
        described = json.dumps({"info": {"features": features}})
        pq.write_table(table.replace_schema_metadata({"huggingface": described}), path)
        request = DataRequest(train_file=path, **NO_SPLITS)
        if not is_refused:
            assert load_data(request).label_names == ("neg", "pos")
            continue
        with pytest.raises(InputError, match=r"classes of column 'label', 'neg' occurs twice"):
            load_data(request)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("1 -1 1 -1", r"all 2 rows have the label '1'.*2 rows with the label '-1' left out"),
        ("-1 -1 -1", r"no rows for the train split. .*3 rows with the label '-1' left out"),
    ],
)
def test_a_class_that_a_flag_removed_is_named(tmp_path, labels, message):
    content = "text,label\n" + "".join(f"t{i},{k}\n" for i, k in enumerate(labels.split()))
    with pytest.raises(InputError, match=rf"{message}.*remove --ignore_label"):
        load(tmp_path, content, ignore_label="-1")


@pytest.mark.parametrize("kind", ["repeated", "numbers"])
def test_a_column_that_may_have_labels_is_not_called_without(tmp_path, kind):
    cells = [str(i // 2) + "b" if kind == "repeated" else str(i / 7) for i in range(20)]
    with pytest.raises(InputError, match="Pass the label column") as error:
        load(tmp_path, "text,other\n" + "".join(f"a{i},{cell}\n" for i, cell in enumerate(cells)))
    assert "No column repeats" not in str(error.value)


def test_a_header_with_a_usual_name_is_not_doubted(tmp_path):
    rows = "".join(f"a{i},b{i}\n" for i in range(4))
    with pytest.raises(InputError, match="Pass the label column") as error:
        load(tmp_path, f"question1,question2\n{rows}")
    assert "lacks a header" not in str(error.value)
    with pytest.raises(InputError, match="lacks a header"):
        load(tmp_path, f"a good film,a bad film\n{rows}")


@pytest.mark.add_ons
def test_an_index_of_masks_is_refused_for_texts(tmp_path):
    with pytest.raises(InputError, match="--ignore_index"):
        load(tmp_path, csv_of([("a", "x"), ("b", "y")] * 6), ignore_index=3)
