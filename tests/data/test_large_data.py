"""Checks of data with very many columns or labels: linear work, and messages of bounded length."""

import json

import numpy as np
import openpyxl
import pandas as pd
import pytest
from datasets import Dataset, DatasetDict

from ampft.arguments import ClassifyArguments
from ampft.data.assembly import _may_be_unlabelled, class_names
from ampft.data.columns import InputColumns, column_renames, require_columns
from ampft.data.labelled_rows import LabelledRows
from ampft.data.load import load_data
from ampft.data.row_labels import RowLabels
from ampft.data.sources.source_table import SourceTable, refuse_duplicates
from ampft.data.splits import stratified_choice
from ampft.errors import InputError
from ampft.integrations.data_in_memory import splits_in_memory

MANY = 3000
LONGEST_MESSAGE = 2500


class Counted(str):
    """A string that counts how often one is compared with another."""

    comparisons = 0
    __slots__ = ()

    def __eq__(self, other):
        Counted.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def names(prefix, count=MANY):
    return tuple(Counted(f"{prefix}{number}") for number in range(count))


def rows(labels):
    return LabelledRows(
        inputs=Dataset.from_dict({"text": ["x"] * len(labels)}),
        labels=RowLabels.from_counts(range(len(labels)), [1] * len(labels)),
        names=labels,
        numbers=np.arange(len(labels)),
        table=SourceTable(("text",), lambda names: iter(()), unit="line", origin="x.csv"),
    )


def refused(call):
    with pytest.raises(InputError):
        call()


WORK = {
    "unseen labels": lambda: refused(
        lambda: class_names({"train": rows(names("a")), "test": rows(names("b"))}, several=False)
    ),
    "known labels": lambda: class_names(
        {"train": rows(names("a")), "test": rows(names("a"))}, several=False
    ),
    "columns that are there": lambda: require_columns(
        names("a"), names("a"), "--x", origin="x.csv"
    ),
    "missing columns": lambda: refused(
        lambda: require_columns(names("a"), names("b"), "--x", origin="x.csv")
    ),
    "duplicate columns": lambda: refused(lambda: refuse_duplicates(names("a") * 2, "x.csv")),
    "other spellings": lambda: column_renames(names(" A"), names("a")),
    "joined columns": lambda: InputColumns.of(names("a"), names("a")),
}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK.keys())
def test_comparisons_grow_with_the_number_of_names(work):
    Counted.comparisons = 0
    work()
    assert Counted.comparisons <= 30 * MANY


def test_a_search_in_a_tuple_would_be_noticed():  # negative control
    Counted.comparisons = 0
    sum(name in names("a", 300) for name in names("b", 300))
    assert Counted.comparisons > 30 * 300


def looped_choice(labels, count, *, seed, leave_one=False, take_one=False):
    """The choice as a loop over classes, whose work grows with rows times classes."""
    generator = np.random.default_rng(seed)
    classes, sizes = np.unique(labels, return_counts=True)
    available = sizes - 1 if leave_one else sizes
    shares = sizes * count / len(labels)
    quota = np.floor(shares).astype(np.int64)
    by_remainder = np.lexsort((generator.random(len(classes)), -(shares - quota)))
    quota = np.minimum(quota, available)
    for index in by_remainder:
        if quota.sum() >= count:
            break
        quota[index] += quota[index] < available[index]
    if take_one:
        quota = np.maximum(quota, 1)
        while quota.sum() > count:
            quota[np.argmax(np.where(quota > 1, quota - shares, -np.inf))] -= 1
    return np.sort(
        np.concatenate(
            [
                generator.permutation(np.flatnonzero(labels == label))[:size]
                for label, size in zip(classes, quota, strict=True)
            ]
        )
    )


@pytest.mark.parametrize("option", ["leave_one", "take_one", None])
@pytest.mark.parametrize("seed", range(20))
def test_a_stratified_choice_equals_the_loop(option, seed):
    generator = np.random.default_rng(seed)
    labels = generator.geometric(0.2, 128)  # shares are exact in binary
    count = int(generator.integers(len(np.unique(labels)), 100))
    options = {} if option is None else {option: True}
    expected = looped_choice(labels, count, seed=seed, **options)
    assert stratified_choice(labels, count, seed=seed, **options).tolist() == expected.tolist()


def write(path, columns, cells):
    if path.suffix == ".jsonl":
        path.write_text(
            "\n".join(json.dumps(dict(zip(columns, row, strict=True))) for row in cells)
        )
    elif path.suffix == ".json":
        path.write_text(json.dumps({name: [{"a": 1}] for name in columns}))
    elif path.suffix == ".parquet":
        pd.DataFrame(cells, columns=list(columns)).to_parquet(path)
    elif path.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for name in columns:
            book.create_sheet(name)
        book.save(path)
    else:
        path.write_text("\n".join(",".join(map(str, row)) for row in (columns, *cells)))
    return path


WIDE = [f"a column with quite a long name {number}" for number in range(MANY)]
CELLS = [[str(number % 7) for number in range(MANY)]] * 4
LONG = "word " * 20_000
LABELS = [(f"text {number}", f"a label with quite a long name {number}") for number in range(MANY)]
NAMES = ("text", "label")
FILES = {
    "csv": ("x.csv", WIDE, CELLS, {}),
    "jsonl": ("x.jsonl", WIDE, CELLS, {}),
    "parquet": ("x.parquet", WIDE, CELLS, {}),
    "keys of json": ("x.json", WIDE, CELLS, {}),
    "sheets": ("x.xlsx", [f"a sheet {n}" for n in range(300)], [], {"sheet_name": "y"}),
    "twice": ("x.csv", WIDE + WIDE, [row * 2 for row in CELLS], {}),
    "label column": ("x.csv", WIDE, CELLS, {"label_column_name": "y"}),
    "label columns": ("x.csv", WIDE, CELLS, {"label_column_name": ",".join(f"{n}x" for n in WIDE),
                                             "task": "multi-label"}),
    "text columns": ("x.csv", ["label", *WIDE[1:]], CELLS, {}),
    "joined texts": ("x.csv", ["label", *WIDE[1:]], CELLS, {"text_column_names": ",".join(WIDE)}),
    "tokens": ("x.jsonl", WIDE, CELLS, {"task": "tokens"}),
    "group": ("x.csv", ["text", "label", *WIDE[2:]], CELLS, {"group_column": "y"}),
    "images": ("x.csv", ["text", "label", *WIDE[2:]], CELLS, {"task": "images"}),
    "unseen labels": ("x.csv", NAMES, LABELS, {"test": [(t, f"{n} other") for t, n in LABELS]}),
    "long labels": ("x.csv", NAMES, [("a", LONG), ("b", LONG + "x")], {"test": [("a", "y")]}),
    "one long label": ("x.csv", NAMES, [("a", LONG)] * 4, {}),
    "long cells": ("x.jsonl", NAMES, [("a", [LONG]), ("b", [LONG])], {}),
    "long flags": ("x.csv", [*NAMES, "more"], [("a", LONG, 1)] * 4,
                   {"label_column_name": "label,more", "task": "multi-label"}),
    "long ignored": ("x.csv", NAMES, [("a", "b"), ("c", "d"), ("e", "")],
                     {"ignore_label": LONG}),
    "long words": ("x.jsonl", ("tokens", "tags"), [([LONG], LONG), ([LONG], [LONG])], {}),
    "long tags": ("x.jsonl", ("tokens", "tags"), [([LONG], [LONG]), ([LONG], [f"B-{LONG}"])], {}),
    "long spans": ("x.jsonl", ("text", "spans"), [(LONG, [[0, 3, LONG], [1, 2, LONG]])], {}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("file", "columns", "cells", "options"), FILES.values(), ids=FILES.keys())
def test_messages_about_files_are_bounded(tmp_path, file, columns, cells, options):
    options = dict(options)
    path = write(tmp_path / file, columns, cells)
    assert path.stat().st_size > LONGEST_MESSAGE or file == "x.csv"  # what could be repeated
    if test := options.pop("test", None):
        options["test_file"] = write(tmp_path / f"test{path.suffix}", NAMES, test)
    with pytest.raises(InputError) as error:
        load_data(ClassifyArguments(train_file=path, **options))
    assert len(str(error.value)) < LONGEST_MESSAGE + 3 * len(str(path)), str(error.value)[:3000]


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        lambda: pd.DataFrame(CELLS, columns=WIDE),
        lambda: DatasetDict(dict.fromkeys(WIDE, Dataset.from_dict({"x": [1]}))),
        lambda: [(LONG, None), ("a", "b")],
    ],
    ids=["columns", "splits", "texts"],
)
def test_messages_about_data_in_memory_are_bounded(data):
    with pytest.raises(InputError) as error:
        load_data(ClassifyArguments(), splits_in_memory({"train": data()}))
    assert len(str(error.value)) < LONGEST_MESSAGE


def test_notes_are_bounded(tmp_path):
    labels = [f" {name}" if row % 2 else name for row, (_, name) in enumerate(LABELS)]
    cells = [(f"text {row}", name[:-1]) for row, name in enumerate(labels)]
    path = write(tmp_path / "x.csv", NAMES, cells)
    notes = load_data(ClassifyArguments(train_file=path, test_fraction=0.0)).notes
    assert any("groups of labels are spelled alike" in note for note in notes)
    assert sum(map(len, notes)) < LONGEST_MESSAGE


def test_a_class_that_may_mean_no_label_is_found_in_linear_time():
    class OneRead(tuple):
        __slots__ = ()
        reads = 0

        def __iter__(self):
            OneRead.reads += 1
            return super().__iter__()

    classes = OneRead((*map(str, range(1, MANY)), "-1"))
    assert [name for name in tuple(classes) if _may_be_unlabelled(name, classes)] == ["-1"]
    assert OneRead.reads <= 3
