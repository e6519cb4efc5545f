"""The column of weights: how it is read, and what is refused."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_files import ROWS, csv_of, load, write

from ampft.arguments import ClassifyArguments
from ampft.data.load import load_data
from ampft.data.row_labels import WEIGHT_COLUMN
from ampft.errors import InputError

HEADER = "text,label,w"


def weighted(weights):
    return [(*row, str(weight)) for row, weight in zip(ROWS, weights, strict=True)]


def test_weights_of_every_format_are_the_same(tmp_path):
    values = [0.5, 2, 0, 1e-3] * 10
    expected = np.array(values, dtype=np.float32).astype(np.float64)
    files = {"a.csv": csv_of(weighted(values), HEADER)}
    rows = [
        {"text": text, "label": label, "w": w}
        for (text, label), w in zip(ROWS, values, strict=True)
    ]
    files["b.jsonl"] = "\n".join(map(json.dumps, rows))
    table = tmp_path / "c.parquet"
    pq.write_table(pa.Table.from_pylist(rows), table)
    files["c.parquet"] = table.read_bytes()
    prints = set()
    for name, content in files.items():
        data = load(tmp_path, content, name, weight_column="w")
        assert np.array_equal(data.weights("train"), expected), name
        assert data.input_columns == ("text",)
        prints.add(data.fingerprints["train"])
        assert any("0 to 2; 10 training rows with the weight 0" in note for note in data.notes)
    plain = load(tmp_path, csv_of(ROWS))
    assert plain.weights("train") is None
    assert len(prints) == 1
    assert plain.fingerprints["train"] not in prints


@pytest.mark.parametrize(
    ("cell", "found"),
    [("", "is empty"), ("-1", "holds '-1'"), ("nan", "nan"), ("inf", "inf"), ("1e39", "1e39"),
     ("heavy", "heavy"), ("1_0", "1_0"), ("True", "True")],
)  # fmt: skip
def test_what_is_no_weight_is_refused_with_its_rows(tmp_path, cell, found):
    weights = ["1"] * 40
    weights[4] = weights[9] = cell
    message = rf"lines 6, 11: the column of weights, 'w', .*{found}.*in 2 of 40 rows"
    if cell == "nan":  # as pandas writes a missing number
        message = r"lines 6, 11: the column of weights, 'w', holds 'nan' in 2 of 40 rows"
    with pytest.raises(InputError, match=message):
        load(tmp_path, csv_of(weighted(weights), HEADER), weight_column="w")


def test_weights_of_zero_everywhere_are_refused(tmp_path):
    content = csv_of(weighted([0] * 40), HEADER)
    with pytest.raises(InputError, match="all 40 rows of the train split have the weight 0"):
        load(tmp_path, content, weight_column="w")


def test_only_training_needs_weights_unless_metrics_do(tmp_path):
    train = csv_of(weighted(range(1, 41)), HEADER)
    write(tmp_path, train)
    settings = {
        "train_file": str(tmp_path / "train.csv"),
        "validation_file": str(write(tmp_path, csv_of(ROWS), "validation.csv")),
        "weight_column": "w",
    }
    data = load_data(ClassifyArguments(**settings))
    assert data.weights("train").tolist() == list(range(1, 41))
    assert data.weights("validation") is None
    with pytest.raises(InputError, match=r"--weight_column: .*validation.csv has no column 'w'"):
        load_data(ClassifyArguments(**settings, weighted_metrics=True))


def test_splits_that_are_made_have_weights_for_metrics_only(tmp_path):
    content = csv_of(weighted(range(1, 41)), HEADER)
    made = {"validation_fraction": 0.2, "test_fraction": 0.2, "weight_column": "w"}
    data = load(tmp_path, content, **made)
    assert [split for split in data.splits if data.weights(split) is not None] == ["train"]
    scored = load(tmp_path, content, weighted_metrics=True, **made)
    every = np.concatenate([scored.weights(split) for split in scored.splits])
    assert sorted(every) == list(range(1, 41))
    assert data.fingerprints["train"] == scored.fingerprints["train"]
    assert data.fingerprints["test"] != scored.fingerprints["test"]
    assert WEIGHT_COLUMN not in data.splits["test"].column_names


@pytest.mark.add_ons
def test_words_with_tags_have_weights(tmp_path):
    rows = [{"tokens": ["a", "b"], "tags": ["X", "O"], "w": i + 1} for i in range(6)]
    content = "\n".join(map(json.dumps, rows))
    data = load(tmp_path, content, "train.jsonl", weight_column="w", task="tokens")
    assert data.weights("train").tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(InputError, match="--weighted_metrics has no effect on words with tags"):
        load(
            tmp_path, content, "train.jsonl", weight_column="w", task="tokens",
            weighted_metrics=True,
        )  # fmt: skip


def test_the_column_of_weights_is_not_taken_for_the_text(tmp_path):
    rows = [(text, label, "1") for text, label in ROWS]
    data = load(tmp_path, csv_of(rows, "body,label,title"), weight_column="title")
    assert data.input_columns == ("body",)


def test_built_in_data_have_no_weights():
    with pytest.raises(InputError, match="--weight_column has no effect on the built-in stdlib"):
        load_data(ClassifyArguments(dataset_name="stdlib", weight_column="w"))
