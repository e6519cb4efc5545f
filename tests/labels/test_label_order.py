"""The order of labels: their values, or --label_order."""

import pytest
from tiny_files import csv_of, load

from ampft.arguments import ClassifyArguments
from ampft.arguments.parsing import complete_arguments
from ampft.errors import InputError


def ordered(folder, labels, **options):
    rows = [(f"text {i}", labels[i % len(labels)]) for i in range(40)]
    return load(folder, csv_of(rows), task="ordinal", **options)


def test_numbers_are_in_the_order_of_their_values(tmp_path):
    assert ordered(tmp_path, ("10", "9", "-2", "1")).label_names == ("-2", "1", "9", "10")


def test_named_labels_are_in_the_order_of_the_flag(tmp_path):
    names = ("good", "bad", "fair")
    assert ordered(tmp_path, names, label_order="bad, fair,good").label_names == (
        "bad",
        "fair",
        "good",
    )
    assert ordered(tmp_path, ("1", "2"), label_order="2,1").label_names == ("2", "1")


@pytest.mark.parametrize(
    ("labels", "order", "message"),
    [(("good", "bad"), None, "the order of the labels 'bad', 'good'"),
     (("1", "1.0", "2"), None, "not different numbers"),
     (("1 star", "2 stars"), None, "not known"),
     (("good", "bad"), "bad,fair,good", "has no label 'fair'"),
     (("good", "bad", "fair"), "bad,good", "the labels 'fair' are missing"),
     (("good", "bad"), "bad,good,bad", "Name each label of the training data once")],
)  # fmt: skip
def test_an_order_that_cannot_be_known_is_refused(tmp_path, labels, order, message):
    options = {} if order is None else {"label_order": order}
    with pytest.raises(InputError, match=message):
        ordered(tmp_path, labels, **options)


@pytest.mark.parametrize("task", [None, "ordinal", "regression"])
def test_several_columns_of_labels_are_refused_with_a_way(tmp_path, task):
    content = csv_of(
        [(f"text {i}", "ab"[i % 2], "xy"[i % 2]) for i in range(40)], "text,mood,topic"
    )
    message = "predicts one column of labels. Add --task columns"
    with pytest.raises(InputError, match=message):
        load(tmp_path, content, task=task, label_column_name="mood,topic")
    with pytest.raises(InputError, match="if each holds its own, pass --task columns"):
        load(tmp_path, content, task="multi-label", label_column_name="mood,topic")
    alone = csv_of([("ab"[i % 2], "xy"[i % 2]) for i in range(40)], "mood,topic")
    with pytest.raises(InputError, match=message):
        load(tmp_path, alone, task=task, label_column_name="mood,topic")


def test_columns_have_names_without_a_sign_of_equality(tmp_path):
    content = csv_of([(f"text {i}", "ab"[i % 2], "xy"[i % 2]) for i in range(40)], "text,m=1,m=2")
    with pytest.raises(InputError, match="a column cannot have = in its name"):
        load(tmp_path, content, task="columns", label_column_name="m=1,m=2")


def test_the_order_needs_the_task():
    with pytest.raises(InputError, match="--label_order needs --task ordinal"):
        complete_arguments(ClassifyArguments(label_order="a,b"), ())
