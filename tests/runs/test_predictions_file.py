"""predictions.parquet reads back, and with pyarrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from ampft.data.splits import Groups
from ampft.errors import InputError
from ampft.runs import predictions as predictions_file
from ampft.runs.predictions import read_groups, read_predictions, read_rows, write_predictions
from ampft.tasks.single_label import Predictions

NAMES = ("no", "yes", "a|b")


def make(n: int) -> Predictions:
    rng = np.random.default_rng(n)
    probabilities = rng.dirichlet(np.ones(3), n).astype(np.float32)
    return Predictions(np.arange(n), rng.integers(0, 3, n), probabilities, NAMES, "test")


@pytest.mark.parametrize("n", [1, 4, 10])
def test_round_trip_in_slices(tmp_path: Path, n: int):
    predictions, path, asked = make(n), tmp_path / "predictions.parquet", []

    def references(rows: slice) -> Mapping[str, Sequence[str]]:
        asked.append((rows.start, rows.stop))
        ids = range(rows.start, rows.stop)
        return {"text": [f"text {i}" for i in ids], "split": ["theirs" for _ in ids]}

    write_predictions(path, predictions, references, rows_per_group=4)
    assert asked == [(start, min(start + 4, n)) for start in range(0, n, 4)]
    table = pq.read_table(path)
    assert table.column_names == [
        "example_id",
        "split",
        "text",
        "input_split",
        "label",
        "prediction",
        "label_id",
        "prediction_id",
        "confidence",
        "probabilities",
    ]
    assert table["text"].to_pylist() == [f"text {i}" for i in range(n)]
    assert table["split"].to_pylist() == ["test"] * n
    assert table["label"].to_pylist() == [NAMES[i] for i in predictions.labels]
    assert table["prediction"].to_pylist() == [NAMES[i] for i in predictions.predicted]
    assert str(table.schema.field("probabilities").type) == "list<element: float>"
    read = read_predictions(path)
    for name in ("example_ids", "labels", "probabilities"):
        assert np.array_equal(getattr(read, name), getattr(predictions, name))
    assert (read.label_names, read.split) == (NAMES, "test")
    assert [p.name for p in tmp_path.iterdir()] == ["predictions.parquet"]


def test_a_failing_source_leaves_no_file(tmp_path: Path):
    def references(rows: slice) -> Mapping[str, Sequence[str]]:
        if rows.start:
            raise OSError("disk gone")
        return {"text": ["x"] * 4}

    with pytest.raises(OSError, match="disk gone"):
        write_predictions(tmp_path / "p.parquet", make(8), references, rows_per_group=4)
    assert list(tmp_path.iterdir()) == []


def test_a_colon_in_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("lr:1e-3")
    folder.mkdir()
    write_predictions(folder / "p.parquet", make(4), lambda rows: {"text": ["x"] * 4})
    assert len(read_predictions(folder / "p.parquet")) == 4


def test_another_file_is_refused(tmp_path: Path):
    (tmp_path / "p.parquet").write_text("no")
    with pytest.raises(InputError, match=r"not the predictions.parquet of a run"):
        read_predictions(tmp_path / "p.parquet")
    with pytest.raises(InputError, match=r"not the predictions.parquet of a run"):
        read_predictions(tmp_path / "absent.parquet")


@pytest.mark.parametrize("column", ["user", None])
def test_groups_read_back(tmp_path: Path, column: str | None):
    predictions, path = make(6), tmp_path / "predictions.parquet"
    groups = Groups(np.array([0, 1, 1, 2, 0, 3]), column)

    def references(rows: slice) -> Mapping[str, Sequence[str]]:
        return {"group_id": ["theirs" for _ in range(rows.start, rows.stop)]}

    write_predictions(path, predictions, references, groups=groups, rows_per_group=4)
    assert read_groups(path) == groups
    assert pq.read_table(path)["group_id"].to_pylist() == groups.ids.tolist()
    assert np.array_equal(read_predictions(path).truth, predictions.truth)
    write_predictions(path, predictions, references)
    assert read_groups(path) is None
    assert "group_id" not in pq.read_table(path).column_names


def test_a_damaged_group_column_is_named(tmp_path: Path):
    path = tmp_path / "predictions.parquet"
    write_predictions(path, make(3), lambda _: {}, groups=Groups(np.array([0, 0, 1]), None))
    pq.write_table(pq.read_table(path).drop_columns(["group_id"]), path)
    with pytest.raises(InputError, match=r"not the predictions\.parquet of a run"):
        read_groups(path)


@pytest.mark.parametrize("size", [1, 2**24])
@pytest.mark.parametrize("rows", [[9, 0, 5, 4], [3], []])
def test_rows_are_read_in_any_order_and_in_parts(tmp_path, rows, size, monkeypatch):
    monkeypatch.setattr(predictions_file, "BYTES_AT_A_TIME", size)
    path = tmp_path / "predictions.parquet"
    write_predictions(path, make(10), lambda part: {"text": ["a"] * (part.stop - part.start)})
    found = read_rows(path, rows, lambda name: name in ("example_id", "probabilities"))
    table = pq.read_table(path, columns=["example_id", "probabilities"]).to_pylist()
    assert found == {row: table[row] for row in rows}


def test_a_group_has_fewer_rows_with_many_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(predictions_file, "ENTRIES_PER_GROUP", 6)
    path = tmp_path / "predictions.parquet"
    write_predictions(path, make(5), lambda rows: {})
    file = pq.ParquetFile(path)
    groups = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
    assert groups == [2, 2, 1]
    assert np.array_equal(read_predictions(path).probabilities, make(5).probabilities)
