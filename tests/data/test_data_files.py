"""Bad data is named before training: one fixture per row of the table in the project's promises."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ampft.data.files import load_texts
from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.errors import InputError

SHARED = Path(__file__).resolve().parents[2] / "../shared/data"
ROWS = [(f"text {i}", "ab"[i % 2]) for i in range(40)]
WHOLE = {"validation_fraction": 0.0, "test_fraction": 0.0}  # no split made: rows stay as they are


def csv_of(rows, header="text,label"):
    return "\n".join([header, *(",".join(row) for row in rows)]) + "\n"


GOOD = csv_of(ROWS)


def write(folder, content, name="train.csv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def load(folder, content, name="train.csv", **options):
    path = write(folder, content, name)
    return load_data(DataRequest(train_file=path, **{**WHOLE, **options}))


def rows_of(data, split="train"):
    part = data.splits[split]
    columns = [part[name][:] for name in data.input_columns]
    labels = [data.label_names[code] for code in part["label"]]
    return list(zip(*columns, labels, strict=True))


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
    "broken JSON array": ("train.json", '[{"text":"a","label":0},{"text":]', r"row 2: not JSON"),
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
    monkeypatch.setattr("ampft.data.json_rows.CHARACTERS_AT_A_TIME", 7)
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


def with_test(folder, train, test, **options):
    request = DataRequest(
        train_file=write(folder, train), test_file=write(folder, test, "test.csv"), **options
    )
    return load_data(replace(request, validation_fraction=0.0))


def test_a_label_that_training_lacks_is_refused_with_its_rows(tmp_path):
    bad = csv_of([("x", "a"), ("y", "c"), ("z", "B ")])
    message = r"test\.csv, lines 3, 4: labels of the test split .*'c', 'B ' \('B ' may mean 'b'\)"
    with pytest.raises(InputError, match=message):
        with_test(tmp_path, GOOD, bad)


def test_a_class_may_be_absent_from_evaluation(tmp_path):
    data = with_test(tmp_path, GOOD, csv_of([("x", "b"), ("y", "b")]))
    assert data.label_names == ("a", "b")
    assert data.splits["test"]["label"][:] == [1, 1]


def test_an_empty_test_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"test\.csv: no rows for the test split"):
        with_test(tmp_path, GOOD, "text,label\n")


def test_columns_that_differ_between_splits_are_named(tmp_path):
    message = (
        r"--text_column_names: .*test\.csv has no column 'text'. Its columns: 'texts', 'label'"
    )
    with pytest.raises(InputError, match=message):
        with_test(tmp_path, GOOD, csv_of(ROWS, header="texts,label"))


def test_a_wrong_label_column_lists_the_candidates(tmp_path):
    message = r"no column 'lable'.*'text' \(40 different\), 'label' \(2 different\).*'label'\?"
    with pytest.raises(InputError, match=message):
        load(tmp_path, GOOD, label_column_name="lable")


@pytest.mark.parametrize("names", [("label",), ("text", "text"), ("a", "b", "c")])
def test_text_columns_have_to_be_one_or_two_others(tmp_path, names):
    with pytest.raises(InputError, match=r"--text_column_names: got"):
        load(tmp_path, GOOD, text_column_names=names)


def test_rows_in_two_splits_are_counted_and_refused_when_asked(tmp_path):
    test = csv_of([("text 0", "a"), ("text 1", "a"), ("new", "a")])
    data = with_test(tmp_path, GOOD, test)
    said = "2 of 3 test rows have inputs that train has too, 1 of them with another label"
    assert any(said in note for note in data.notes)
    with pytest.raises(InputError, match=r"--fail_on_leak: 2 of 3 .*test\.csv, lines 2, 3"):
        with_test(tmp_path, GOOD, test, fail_on_leak=True)


def test_splits_without_shared_rows_pass(tmp_path):
    data = with_test(tmp_path, GOOD, csv_of([("new", "a"), ("x", "b")]), fail_on_leak=True)
    assert not any("--fail_on_leak" in note for note in data.notes)


def test_pairs(tmp_path):
    content = "premise,hypothesis,label\np1,h1,x\np2,h2,y\n"
    found = load(tmp_path, content)
    assert found.input_columns == ("premise", "hypothesis")
    named = load(tmp_path, content, text_column_names=("hypothesis", "premise"))
    assert rows_of(named) == [("h1", "p1", "x"), ("h2", "p2", "y")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"train_file": None, "test_file": Path("t.csv")},
            r"--train_file: missing; got --test_file",
        ),
        ({"train_file": Path("gone.csv")}, r"--train_file: there is no file gone\.csv"),
        ({"train_file": Path("t.csv"), "dataset_name": "x"}, r"--dataset_name: got 'x' and"),
        (
            {"train_file": Path("t.csv"), "image_column_name": "x"},
            r"--image_column_name: has no eff",
        ),
    ],
)
def test_files_that_do_not_go_together(options, message):
    with pytest.raises(InputError, match=message):
        load_data(DataRequest(**options))


def test_texts_for_prediction_keep_every_row(tmp_path):
    path = write(tmp_path, "id,text\n1,a\n2,b\n")
    assert load_texts(path, text_column_names=("text",))["text"][:] == ["a", "b"]
    path = write(tmp_path, "id,text\n1,a\n2,\n")
    with pytest.raises(InputError, match=r"train\.csv, line 3: nothing in column 'text'"):
        load_texts(path, text_column_names=("text",))


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data beside the repository")
def test_real_pairs_with_mark_and_plain_quotes(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_bytes((SHARED / "mrpc" / "msr_paraphrase_train.txt").read_bytes())
    pair = ("#1 String", "#2 String")
    request = DataRequest(train_file=path, text_column_names=pair, label_column_name="Quality")
    data = load_data(request)
    assert sum(len(part) for part in data.splits.values()) == 4076
    assert data.label_names == ("0", "1")


@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data beside the repository")
def test_real_file_without_header_lists_what_is_there():
    with pytest.raises(
        InputError, match=r"'a stirring , funny.*'1' \(2 different\).*lacks a header"
    ):
        load_data(DataRequest(train_file=SHARED / "sst2" / "train.tsv"))
