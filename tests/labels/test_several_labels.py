"""Rows with any number of labels: three ways to write them, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from tiny_files import NO_SPLITS, csv_of, load, write

from ampft.arguments import ClassifyArguments
from ampft.data.load import load_data
from ampft.data.row_labels import RowLabels
from ampft.errors import InputError
from ampft.tasks.table import TASKS

ROWS = [("one", ("b", "a")), ("two", ("a",)), ("three", ()), ("four", ("c", "a"))]
SEVERAL = {"task": "multi-label"}


def test_a_pipeline_of_transformers_gives_all_labels():
    several = [row for row in TASKS.values() if row.several_labels]
    assert len(several) > 1
    for row in several:  # by default, it gives the most probable label
        assert row.pipeline_arguments["top_k"] is None


def sets_of(data, split="train"):
    part, names = data.splits[split], data.label_names
    labels = [frozenset(names[code] for code in codes) for codes in part["label"]]
    return list(zip(part["text"][:], labels, strict=True))


EXPECTED = [(text, frozenset(labels)) for text, labels in ROWS]


def files():
    separated = [f'{text},"{",".join(labels)}"' for text, labels in ROWS]
    spaced = [f"{text},{' | '.join(labels)}" for text, labels in ROWS]
    columns = [f"{text},{','.join(str(int(n in labels)) for n in 'abc')}" for text, labels in ROWS]
    lines = [json.dumps({"text": text, "label": labels}) for text, labels in ROWS]
    return {
        "separated": ("train.csv", "\n".join(["text,label", *separated]), {}),
        "another separator": (
            "train.csv", "\n".join(["text,label", *spaced]), {"label_separator": "|"},
        ),
        "blanks": (
            "train.csv",
            "\n".join(["text,label", *(line.replace(" |", "") for line in spaced)]),
            {"label_separator": " "},
        ),
        "list": ("train.jsonl", "\n".join(lines), {}),
        "columns": (
            "train.csv", "\n".join(["text,a,b,c", *columns]),
            {"label_column_name": "a,b,c"},
        ),
    }  # fmt: skip


@pytest.mark.parametrize("form", files())
def test_every_form_gives_the_same_data(tmp_path, form):
    name, content, options = files()[form]
    data = load(tmp_path, content + "\n", name, **SEVERAL, **options)
    assert data.label_names == ("a", "b", "c")
    assert sets_of(data) == EXPECTED
    assert data.labels("train").tolist() == [
        [True, True, False], [True, False, False], [False] * 3, [True, False, True],
    ]  # fmt: skip
    assert "1.25 labels per training row; 1 of 4 rows have none." in data.notes
    other = load(tmp_path, files()["list"][1] + "\n", "other.jsonl", **SEVERAL)
    assert data.fingerprints == other.fingerprints


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl"])
def test_a_label_that_a_row_names_twice_is_said_and_counts_once(tmp_path, name):
    cells = ["a,a", "a,b", "b", "b,a,b"]
    lists = [json.dumps({"text": f"t{i}", "label": c.split(",")}) for i, c in enumerate(cells)]
    table = csv_of([(f"t{i}", f'"{cell}"') for i, cell in enumerate(cells)])
    content = table if name.endswith("csv") else "\n".join(lists)
    data = load(tmp_path, content, name, **SEVERAL)
    (note,) = [note for note in data.notes if "twice" in note]
    assert "lines 2, 5: 2 rows" in note or "lines 1, 4: 2 rows" in note
    assert data.labels("train").sum(axis=1).tolist() == [1, 2, 1, 2]


def test_labels_between_blanks_are_no_classes(tmp_path):
    content = csv_of([("u", "joy"), ("v", "fear"), ("w", "joy fear"), ("x", "fear joy")])
    for options, advice in ((SEVERAL, ""), ({}, "--task multi-label ")):
        with pytest.raises(InputError, match=f"{advice}--label_separator ' '"):
            load(tmp_path, content, **options)
    content = csv_of([("u", "good"), ("v", "bad"), ("w", "very good"), ("x", "very bad")])
    assert len(load(tmp_path, content).label_names) == 4


@pytest.mark.parametrize("name", ["t.jsonl", "t.csv"])
def test_lists_of_one_label_are_that_label(tmp_path, name):
    labels = ["ab"[row % 2] for row in range(4)]
    if name == "t.csv":
        content = csv_of([(f"text {row}", f"['{label}']") for row, label in enumerate(labels)])
    else:
        rows = [{"text": f"text {row}", "label": [label]} for row, label in enumerate(labels)]
        content = "\n".join(map(json.dumps, rows))
    data = load(tmp_path, content, name)
    assert [data.label_names[code] for code in data.splits["train"]["label"]] == labels


def test_lists_in_parquet(tmp_path):
    table = pa.table({"text": [t for t, _ in ROWS], "label": [list(labels) for _, labels in ROWS]})
    pq.write_table(table, tmp_path / "train.parquet")
    request = ClassifyArguments(train_file=tmp_path / "train.parquet", **SEVERAL, **NO_SPLITS)
    assert sets_of(load_data(request)) == EXPECTED


def test_lists_of_declared_classes_keep_their_order(tmp_path):
    classes = ClassLabel(names=["c", "b", "a", "never"])
    features = Features({"text": Value("string"), "emotions": List(classes)})
    rows = {"text": [t for t, _ in ROWS], "emotions": [list(labels) for _, labels in ROWS]}
    DatasetDict({"train": Dataset.from_dict(rows, features=features)}).save_to_disk(tmp_path / "d")
    data = load_data(ClassifyArguments(dataset_name=str(tmp_path / "d"), **SEVERAL, **NO_SPLITS))
    assert data.label_names == ("c", "b", "a", "never")
    assert sets_of(data) == EXPECTED


REFUSED = {
    "neither 0 nor 1": (
        "text,a,b\nx,1,0\ny,2,1\n", {"label_column_name": "a,b"},
        r"line 3: column 'a' must be 0 or 1, received '2'",
    ),
    "an empty cell of 0 and 1": (
        "text,a,b\nx,1,0\ny,,1\n", {"label_column_name": "a,b"}, r"line 3: column 'a'",
    ),
    "a column that is not there": (
        "text,a,b\nx,1,0\n", {"label_column_name": "a,d"}, r"no column 'd'",
    ),
    "no label at all": ("text,label\nx,\ny,\n", {}, r"none of the 2 rows has a label"),
    "one label only": ("text,label\nx,a\ny,a\n", {}, r"the only label is 'a', and several labels"),
    "another separator": (
        "text,label\nx,a|b\ny,b|c\nz,a|c\nu,a\n", {},
        r"no row has more than one label, but 3 of 4 .* add --label_separator '\|'",
    ),
    "a label that stands for no label": ("text,label\nx,a\ny,\"b,-1\"\n", {}, r"line 3: the label"),
    "the text is a label": (
        "text,a,b\nx,1,0\n",
        {"label_column_name": "a,b", "text_column_names": "a"},
        r"None may be a label column \('a', 'b'\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_bad_labels_are_refused(tmp_path, case):
    content, options, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        load(tmp_path, content, **SEVERAL, **options)


def test_a_list_where_one_label_is_expected_names_the_task(tmp_path):
    content = '{"text": "x", "label": ["a", "b"]}\n'
    with pytest.raises(InputError, match=r"line 1: several labels.*Add --task multi-label"):
        load(tmp_path, content, "train.jsonl")


def test_built_in_data_have_one_label():
    with pytest.raises(InputError, match="the built-in stdlib has one class per example"):
        load_data(ClassifyArguments(**SEVERAL))


def test_labels_that_training_lacks_are_named(tmp_path):
    write(tmp_path, 'text,label\nx,a\ny,"a,z"\n', "validation.csv")
    with pytest.raises(InputError, match=r"validation\.csv, line 3: .*'z'"):
        load(
            tmp_path, 'text,label\nx,"a,b"\ny,b\n', **SEVERAL,
            validation_file=tmp_path / "validation.csv",
        )  # fmt: skip


def test_rows_with_ignored_labels_are_left_out(tmp_path):
    content = 'text,label\nx,"a,b"\ny,"skip,a"\nz,b\n'
    data = load(tmp_path, content, **SEVERAL, ignore_label="skip")
    assert sets_of(data) == [("x", frozenset("ab")), ("z", frozenset("b"))]


def test_rows_are_stratified_by_their_rarest_label():
    labels = RowLabels.from_counts([0, 1, 0, 0, 2, 1, 0], [2, 1, 0, 2, 2])
    assert labels.strata().tolist() == [1, 0, -1, 2, 1]
    assert labels.row_codes(3) == {0, 2}
    assert labels.row_codes(2) == frozenset()
    assert labels.rows_with([1, 2]).tolist() == [0, 3, 4]


def test_one_label_each_is_its_own_stratum():
    codes = np.random.default_rng(0).integers(0, 5, 100)
    assert (RowLabels(codes, np.arange(100), 100).strata() == codes).all()


def test_a_rare_label_is_in_every_split_that_is_made(tmp_path):
    rng = np.random.default_rng(0)
    rows = [
        f'text {i},"common{",rare" * (i % 20 == 0)}{",other" * (rng.random() < 0.4)}"'
        for i in range(400)
    ]
    content = "\n".join(["text,label", *rows]) + "\n"
    fractions = {"validation_fraction": 0.1, "test_fraction": 0.2}
    data = load(tmp_path, content, **SEVERAL, **fractions)
    counts = {
        split: int(data.labels(split)[:, data.label_names.index("rare")].sum())
        for split in data.splits
    }
    assert counts == {"train": 14, "validation": 2, "test": 4}


def test_shared_rows_with_other_labels_are_counted(tmp_path):
    write(tmp_path, 'text,label\nx,"b,a"\ny,"a"\n', "validation.csv")
    data = load(
        tmp_path, 'text,label\nx,"a,b"\ny,b\nz,"a,b"\n', **SEVERAL,
        validation_file=tmp_path / "validation.csv",
    )  # fmt: skip
    assert any(
        "2 of 2 validation rows" in n and "1 of them with a different" in n for n in data.notes
    )
