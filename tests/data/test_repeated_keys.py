"""A column of customers or authors is named where rows are split at random."""

import pandas as pd
import pytest

from ampft.data.load import load_data
from ampft.data.request import DataRequest


def notes_of(tmp_path, column, values, **request):
    texts = [f"text number {index}" for index in range(40)]
    table = pd.DataFrame({"text": texts, "label": ["a", "b"] * 20, column: values})
    table.to_csv(tmp_path / "rows.csv", index=False)
    data = load_data(DataRequest(train_file=str(tmp_path / "rows.csv"), **request))
    return [note for note in data.notes if "--group_column" in note and "different values" in note]


@pytest.mark.parametrize("column", ["customer_id", "customerId", "Author", "PATIENT"])
def test_repeated_values_are_named(tmp_path, column):
    (note,) = notes_of(tmp_path, column, [f"p{index // 4}" for index in range(40)])
    assert note.startswith(f"The first 40 rows have 10 different values of '{column}'")
    assert note.endswith(f"pass --group_column {column}.")


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("customer_id", range(40)),  # each once
        ("customer_id", [7] * 40),  # only one
        ("rating", [index // 4 for index in range(40)]),  # no source of rows
        ("usage", [index // 4 for index in range(40)]),  # begins as "user" does
    ],
)
def test_other_columns_are_not(tmp_path, column, values):
    assert notes_of(tmp_path, column, values) == []


def test_the_flag_is_quoted_for_a_shell_and_zero_is_a_value(tmp_path):
    values = [index // 20 for index in range(40)]
    (note,) = notes_of(tmp_path, "customer id", values)
    assert note.startswith("The first 40 rows have 2 different values of 'customer id'")
    assert note.endswith("pass --group_column 'customer id'.")


def test_nothing_is_said_where_no_rows_are_split_off(tmp_path):
    values = [f"p{index // 4}" for index in range(40)]
    none = {"validation_fraction": 0.0, "test_fraction": 0.0}
    assert notes_of(tmp_path, "author", values, **none) == []
    assert len(notes_of(tmp_path, "author", values, folds=2, fold=1)) == 1


def test_nothing_is_said_of_given_splits_or_named_groups(tmp_path):
    values = [f"p{index // 4}" for index in range(40)]
    assert notes_of(tmp_path, "author", values, group_column="author") == []
    other = pd.DataFrame({"text": ["x y", "z w"], "label": ["a", "b"]})
    other.to_csv(tmp_path / "test.csv", index=False)
    files = {name: str(tmp_path / "test.csv") for name in ("validation_file", "test_file")}
    assert notes_of(tmp_path, "author", values, **files) == []
