"""Damaged files of a run, and files of another run, are refused with a message."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from run_folders import NAMES, SEEDS, predicted, write_run, write_runs

from ampft.comparison.analysis.compare_folders import compare_folders
from ampft.comparison.analysis.predictions import read_texts
from ampft.errors import InputError
from ampft.runs.predictions import read_predictions

FEW = SEEDS[:3]


def predictions_file(folder: Path) -> Path:
    return write_run(folder, "fp32", 42, predicted()) / "predictions.parquet"


def damage_column(path: Path, column: str) -> None:
    """Overwrite the pages of one column of every row group."""
    metadata = pq.ParquetFile(path).metadata
    bytes_ = bytearray(path.read_bytes())
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        chunk = next(
            candidate
            for i in range(group.num_columns)
            if (candidate := group.column(i)).path_in_schema == column
        )
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        bytes_[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
    path.write_bytes(bytes_)


@pytest.mark.slow
def test_a_damaged_column_of_texts_is_refused(tmp_path):
    runs = write_runs(tmp_path, {"fp32": [[]] * 3, "bf16": [[1, 2]] * 3}, seeds=FEW)
    assert compare_folders(runs).arm("bf16").flips is not None
    damage_column(runs[0] / "predictions.parquet", "text")
    with pytest.raises(InputError, match=r"fp32-seed42.predictions\.parquet: the texts in this"):
        compare_folders(runs)


def test_texts_that_are_not_requested_are_not_read(tmp_path):
    path = predictions_file(tmp_path)
    damage_column(path, "text")
    assert read_texts(path, []) == {}
    with pytest.raises(InputError, match="the texts in this file cannot be read"):
        read_texts(path, [3])


@pytest.mark.parametrize("column", ["example_id", "label_id", "probabilities"])
def test_predictions_that_lack_a_column_are_refused(tmp_path, column):
    path = predictions_file(tmp_path)
    pq.write_table(pq.read_table(path).drop_columns([column]), path)
    with pytest.raises(InputError, match=rf"not the predictions\.parquet of a run .*{column}"):
        read_predictions(path)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("probabilities", ["no list"] * 200),
        ("probabilities", [[0.5, 0.5]] * 200),
        ("label_id", ["no number"] * 200),
        ("label_id", [len(NAMES)] * 200),
    ],
)
def test_predictions_with_a_column_of_another_kind_are_refused(tmp_path, column, values):
    path = predictions_file(tmp_path)
    table = pq.read_table(path)
    place = table.schema.get_field_index(column)
    pq.write_table(table.set_column(place, column, pa.array(values)), path)
    with pytest.raises(InputError, match=r"not the predictions\.parquet of a run"):
        read_predictions(path)


def test_predictions_without_examples_are_refused(tmp_path):
    path = predictions_file(tmp_path)
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    with pytest.raises(InputError, match=r"not the predictions\.parquet of a run"):
        read_predictions(path)


@pytest.mark.slow
@pytest.mark.parametrize("in_fp32", [False, True])
def test_predictions_of_another_run_are_refused(tmp_path, in_fp32):
    """The accuracy of the predictions must be the one in the record."""
    part = "metrics_fp32" if in_fp32 else "metrics"
    runs = write_runs(tmp_path, {"fp32": [[]] * 3}, seeds=FEW)
    for seed, accuracy in zip(FEW, (0.94, 0.94 * (1 + 1e-12), 0.935), strict=True):
        predictions = predicted(range(12))
        changes = {part: {"accuracy": accuracy}}
        runs.append(write_run(tmp_path, "bf16", seed, predictions, in_fp32=predictions, **changes))
    assert compare_folders([*runs[:2], *runs[3:5]]).arm("bf16").metrics
    with pytest.raises(InputError, match=r"bf16-seed44.predictions.*accuracy 0\.94.* 0\.935"):
        compare_folders(runs)


@pytest.mark.slow
def test_a_run_that_recorded_no_accuracy_has_nothing_to_check(tmp_path):
    runs = write_runs(
        tmp_path, {"fp32": [[]] * 3, "bf16": [[]] * 3}, seeds=FEW, metrics={"accuracy": None}
    )
    assert np.isclose(compare_folders(runs).baseline.metrics["accuracy"].mean, 1)
