"""Files and columns that must fit together: splits, pairs, labels."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny_files import GOOD, ROWS, SHARED, csv_of, load, rows_of, write

from ampft.data.assembly import merged_digests
from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.errors import InputError


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


@pytest.mark.add_ons
@pytest.mark.parametrize(("last", "says"), [("3.5", True), (" -2e3 ", True), ("3 stars", False)])
def test_a_text_column_of_numbers_is_noted(tmp_path, last, says):
    rows = [(f"{number}.5", "ab"[number % 2]) for number in range(30)]
    data = load(tmp_path, csv_of([*rows, (last, "a")]))
    assert says == any("'text' contains only numbers" in note for note in data.notes)


def test_a_wrong_label_column_lists_the_candidates(tmp_path):
    message = r"no column 'lable'.*'text' \(40 different\), 'label' \(2 different\).*'label'\?"
    with pytest.raises(InputError, match=message):
        load(tmp_path, GOOD, label_column_name="lable")


def test_columns_are_found_whatever_their_case_and_blanks(tmp_path):
    data = load(tmp_path, csv_of(ROWS, header="Text , Label"))
    assert data.input_columns == ("text",)
    assert rows_of(data) == ROWS
    assert any("'Text ' as 'text', ' Label' as 'label'" in note for note in data.notes)
    named = load(tmp_path, csv_of(ROWS, header="Words,Kind"), label_column_name="kind")
    assert rows_of(named) == ROWS


def test_a_column_that_is_spelled_exactly_is_preferred(tmp_path):
    rows = [(text, label, label * 2) for text, label in ROWS]
    data = load(tmp_path, csv_of(rows, header="text,label,Title"))
    assert data.input_columns == ("text",)
    data = load(tmp_path, csv_of(rows, header="Text,label,Title"), label_column_name="Title")
    assert data.label_names == ("aa", "bb")


def test_columns_that_differ_only_in_case_are_not_chosen_between(tmp_path):
    rows = [(text, label, label) for text, label in ROWS]
    with pytest.raises(InputError, match=r"several possible label columns: 'Label', 'LABEL'\."):
        load(tmp_path, csv_of(rows, header="text,Label,LABEL"))


def test_the_columns_of_another_split_are_found_whatever_their_case(tmp_path):
    data = with_test(tmp_path, GOOD, csv_of([("new", "a")], header="TEXT,Label"))
    assert rows_of(data, "test") == [("new", "a")]
    assert any("test.csv" in note and "'TEXT' as 'text'" in note for note in data.notes)


@pytest.mark.parametrize("names", ["label", "text,text", "a,b,c"])
def test_text_columns_must_be_one_or_two_others(tmp_path, names):
    with pytest.raises(InputError, match=r"--text_column_names: received"):
        load(tmp_path, GOOD, text_column_names=names)


def test_rows_in_two_splits_are_counted_and_refused_when_asked(tmp_path):
    test = csv_of([("text 0", "a"), ("text 1", "a"), ("text 2", "a"), ("new", "a")])
    data = with_test(tmp_path, GOOD, test)
    note = "3 of 4 test rows have inputs that train has too, 1 of them with a different label"
    assert any(note in other for other in data.notes), data.notes
    with pytest.raises(InputError, match=r"--fail_on_leak: 3 of 4 .*test\.csv, lines 2, 3, 4"):
        with_test(tmp_path, GOOD, test, fail_on_leak=True)


SPELLINGS = ["GOOD  film", "good film!", " good\u00a0film", "go\u200bod film", "good, film"]


@pytest.mark.parametrize("text", SPELLINGS)
def test_rows_shared_in_another_spelling_are_counted(tmp_path, text):
    train = csv_of([("good film", "a"), ("bad film", "b"), ("other", "a")])
    test = csv_of([(f'"{text}"', "b"), ("bad film", "b"), ("goods film", "a")])
    notes = with_test(tmp_path, train, test).notes
    assert any(
        note.startswith(
            "2 of 3 test rows have inputs that train has too (1 in another spelling: case, "
            "punctuation or spaces), 1 of them with a different label"
        )
        for note in notes
    )
    with pytest.raises(InputError, match=r"--fail_on_leak: 2 of 3 .*test\.csv, lines 2, 3"):
        with_test(tmp_path, train, test, fail_on_leak=True)


def test_spellings_of_one_text_stay_in_one_split(tmp_path):
    rows = [(f'"{text} {n}"', "ab"[n % 2]) for n in range(20) for text in SPELLINGS]
    data = load(tmp_path, csv_of(rows), validation_fraction=0.3, test_fraction=0.3)
    numbers = {
        split: {re.search(r"\d+", text)[0] for text in part["text"]}
        for split, part in data.splits.items()
    }
    assert sum(map(len, numbers.values())) == 20
    exact = {"train": np.arange(5, dtype=np.uint64)}
    alike = {"train": np.array([7, 8, 7, 9, 8], dtype=np.uint64)}
    assert merged_digests(exact, alike)["train"].tolist() == [0, 1, 0, 3, 1]
    assert merged_digests(exact, exact)["train"].tolist() == [0, 1, 2, 3, 4]  # control: unchanged


def test_splits_without_shared_rows_pass(tmp_path):
    data = with_test(tmp_path, GOOD, csv_of([("new", "a"), ("x", "b")]), fail_on_leak=True)
    assert not any("--fail_on_leak" in note for note in data.notes)


def test_pairs(tmp_path):
    content = "premise,hypothesis,label\np1,h1,x\np2,h2,y\n"
    unnamed = load(tmp_path, content)
    assert unnamed.input_columns == ("premise", "hypothesis")
    named = load(tmp_path, content, text_column_names="hypothesis,premise")
    assert rows_of(named) == [("h1", "p1", "x"), ("h2", "p2", "y")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"train_file": None, "test_file": Path("t.csv")},
            r"--train_file is missing: received only --test_file",
        ),
        ({"train_file": Path("gone.csv")}, r"--train_file: the file gone\.csv"),
        (
            {"train_file": Path("t.csv"), "dataset_name": "x"},
            r"--dataset_name: received 'x' together",
        ),
        (
            {"train_file": Path("t.csv"), "dataset_config_name": "x"},
            r"--dataset_config_name has no eff",
        ),
    ],
)
def test_files_that_do_not_fit_together(options, message):
    with pytest.raises(InputError, match=message):
        load_data(DataRequest(**options))


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data beside the repository")
def test_real_pairs_with_mark_and_plain_quotes(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_bytes((SHARED / "mrpc" / "msr_paraphrase_train.txt").read_bytes())
    pair = "#1 String,#2 String"
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


def test_groups_in_two_splits_are_counted_and_refused_when_asked(tmp_path):
    train = csv_of([("a1", "a", "u"), ("b1", "b", "v"), ("c1", "a", "")], "text,label,user")
    test = csv_of([("a2", "a", "u"), ("b2", "b", "w"), ("c2", "a", "")], "text,label,user")
    data = with_test(tmp_path, train, test, group_column="user")
    note = "--group_column user: 1 of 2 groups of test rows are in train too"
    assert any(each.startswith(note) for each in data.notes), data.notes
    assert not any("inputs that train has too" in each for each in data.notes)
    with pytest.raises(InputError, match=r"--fail_on_leak: --group_column user: 1 of 2 groups"):
        with_test(tmp_path, train, test, group_column="user", fail_on_leak=True)
    alone = csv_of([("a2", "a", "x"), ("b2", "b", "w")], "text,label,user")
    notes = with_test(tmp_path, train, alone, group_column="user", fail_on_leak=True).notes
    assert not any("--group_column" in each for each in notes)
