"""Groups of rows that are not independent: duplicates, and the values of a group column."""

import pytest
from datasets import ClassLabel, Dataset, Features, Value
from tiny_files import csv_of, load

from ampft.data.load import load_data
from ampft.data.request import DataRequest
from ampft.data.splits import GROUP_COLUMN, dependent_groups, normalized_text
from ampft.errors import InputError

COPIES = [("Good film!", "a"), ("bad film", "b"), (" good  FILM ", "a"), ("good film?", "b")]


@pytest.mark.parametrize(
    ("one", "other"),
    [("It's late.", "it s   LATE"), ("ﬁne", "fine"), ("straße", "STRASSE"), ("a\u00a0b", "a b")],
)
def test_texts_that_are_nearly_identical(one, other):
    assert normalized_text(one) == normalized_text(other)


@pytest.mark.parametrize(("one", "other"), [("good", "goods"), ("fine 😀", "fine 😡"), ("!", "?")])
def test_texts_that_are_not(one, other):
    assert normalized_text(one) != normalized_text(other)


def test_marks_of_other_scripts_are_kept():
    assert normalized_text("कि") != normalized_text("का")


def test_duplicates_are_groups(tmp_path):
    groups = dependent_groups(load(tmp_path, csv_of(COPIES)), "train")
    assert groups is not None
    assert groups.ids.tolist() == [0, 1, 0, 0]
    assert (len(groups), groups.column) == (2, None)


def test_pairs_are_compared_as_pairs(tmp_path):
    rows = [("one", "two", "a"), ("one two", "x", "b"), ("ONE", "Two.", "a"), ("two", "one", "b")]
    data = load(tmp_path, csv_of(rows, "premise,hypothesis,label"))
    groups = dependent_groups(data, "train")
    assert groups is not None
    assert groups.ids.tolist() == [0, 1, 0, 2]


def test_different_texts_have_no_groups(tmp_path):
    assert dependent_groups(load(tmp_path, csv_of(COPIES[:2])), "train") is None


def test_equal_images_are_groups():
    digits = load_data(DataRequest(dataset_name="digits"))
    assert dependent_groups(digits, "test") is None
    part = digits.splits["test"].select([0, 1, 0])
    splits = {**digits.splits, "test": part}
    groups = dependent_groups(type(digits)(**{**vars(digits), "splits": splits}), "test")
    assert groups is not None
    assert groups.ids.tolist() == [0, 1, 0]


USERS = [(f"text {i}", "ab"[i % 2], "" if i >= 38 else f"user {i // 4}") for i in range(40)]


def test_a_group_column_is_the_group_and_an_empty_cell_is_its_own(tmp_path):
    data = load(tmp_path, csv_of(USERS, "text,label,user"), group_column="user")
    assert data.input_columns == ("text",)
    groups = dependent_groups(data, "train")
    assert groups is not None
    assert groups.ids.tolist() == [*(i // 4 for i in range(38)), 10, 11]
    assert groups.column == "user"


def test_the_group_column_is_not_taken_for_the_text(tmp_path):
    data = load(tmp_path, csv_of(USERS, "body,label,user"), group_column="user")
    assert data.input_columns == ("body",)


def test_an_input_can_be_the_group(tmp_path):
    rows = [(f"p {i // 2}", f"h {i}", "ab"[i % 2]) for i in range(6)]
    header = "premise,hypothesis,label"
    data = load(tmp_path, csv_of(rows, header), group_column="premise")
    groups = dependent_groups(data, "train")
    assert groups is not None
    assert groups.ids.tolist() == [0, 0, 1, 1, 2, 2]


def test_equal_texts_join_groups(tmp_path):
    rows = [("Same!", "a", "u"), ("x", "b", "u"), ("same", "a", "v"), ("y", "b", "w"),
            ("z", "a", "v"), ("X ", "b", "t"), ("q", "a", "")]  # fmt: skip
    data = load(tmp_path, csv_of(rows, "text,label,user"), group_column="user")
    groups = dependent_groups(data, "train")
    assert groups is not None
    assert groups.ids.tolist() == [0, 0, 0, 1, 0, 0, 2]


@pytest.mark.parametrize("settings", [{"test_fraction": 0.2}, {"folds": 4, "fold": 2}])
def test_new_splits_keep_groups_with_equal_texts_together(tmp_path, settings):
    rows = [(f"text {i % 60}", "ab"[i % 2], f"user {i // 3}") for i in range(120)]
    data = load(
        tmp_path, csv_of(rows, "text,label,user"), group_column="user", validation_fraction=0.0,
        **settings,
    )  # fmt: skip
    texts, users = (
        [set(part[name]) for part in data.splits.values()] for name in ("text", GROUP_COLUMN)
    )
    assert len(texts) == 2
    assert not texts[0] & texts[1]
    assert not users[0] & users[1]
    assert any("equal inputs join some of the 40 groups" in note for note in data.notes)


def test_new_splits_keep_groups_together(tmp_path):
    rows = [(f"text {i}", "ab"[i % 2], f"user {i // 10}") for i in range(200)]
    fractions = {"validation_fraction": 0.2, "test_fraction": 0.2}
    data = load(tmp_path, csv_of(rows, "text,label,user"), group_column="user", **fractions)
    users = {split: set(part[GROUP_COLUMN]) for split, part in data.splits.items()}
    assert min(map(len, users.values())) > 1
    assert sum(map(len, users.values())) == 20
    without = load(tmp_path, csv_of(rows, "text,label,user"), text_column_names="text", **fractions)
    seen = [
        {int(text.split()[1]) // 10 for text in part["text"]} for part in without.splits.values()
    ]
    assert sum(map(len, seen)) > 20  # the control


def test_groups_of_a_saved_data_set(tmp_path):
    rows = {"text": ["x", "y", "z", "w"], "label": [0, 1, 0, 1], "doc": [7, 7, 8, 7]}
    features = Features(
        {"text": Value("string"), "label": ClassLabel(names=["a", "b"]), "doc": Value("int64")}
    )
    Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    request = DataRequest(
        dataset_name=str(tmp_path / "saved"),
        group_column="doc",
        validation_fraction=0.0,
        test_fraction=0.0,
    )
    groups = dependent_groups(load_data(request), "train")
    assert groups is not None
    assert groups.ids.tolist() == [0, 0, 1, 0]


def test_a_group_column_that_is_missing_is_named(tmp_path):
    with pytest.raises(InputError, match=r"--group_column: .*no column 'userr'.*user"):
        load(tmp_path, csv_of(USERS, "text,label,user"), group_column="userr")


def test_built_in_data_have_no_group_column():
    with pytest.raises(InputError, match="--group_column has no effect on the built-in stdlib"):
        load_data(DataRequest(group_column="module"))
