"""predictions.parquet: one row per example, with its inputs, its label and what was predicted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ampft.errors import InputError
from ampft.metrics.predictions import FloatArray, IntArray, Predictions
from ampft.files import atomic_path

# From a slice of example ids to the columns that show those examples: texts, or `reference`.
References = Callable[[slice], Mapping[str, Sequence[str]]]

LABEL_NAMES_KEY = b"ampft.label_names"
ROWS_PER_GROUP = 8192
OWN_COLUMNS = (
    "example_id",
    "split",
    "label",
    "prediction",
    "label_id",
    "prediction_id",
    "confidence",
    "probabilities",
)
# What a column that is missing, of another type or of other values leads to.
NOT_OF_A_RUN = (AttributeError, LookupError, TypeError, ValueError)


def write_predictions(
    path: Path,
    predictions: Predictions,
    references: References,
    *,
    rows_per_group: int = ROWS_PER_GROUP,
) -> None:
    """Write the predictions as Parquet, whole or not at all.

    Columns: `example_id` int64, `split` string, one string column for each input, `label` and
    `prediction` (names), `label_id` and `prediction_id` (int64), `confidence` float32,
    `probabilities` list of C float32, in the order of the label names that the file's metadata
    holds. An input column with one of these names is written as `input_<name>`.

    Args:
        path: The file; its folder exists.
        predictions: n examples.
        references: Called with consecutive slices of 0..n-1; returns the input columns of those
            rows, so that the inputs of the whole split are never in memory together.
        rows_per_group: Rows of one slice, and of one row group of the file.
    """
    predicted, confidence = predictions.predicted, predictions.confidence
    with atomic_path(path) as temporary:
        writer: pq.ParquetWriter | None = None
        try:
            for start in range(0, len(predictions), rows_per_group):
                rows = slice(start, min(start + rows_per_group, len(predictions)))
                columns = _columns(predictions, rows, predicted[rows], confidence[rows])
                table = _table(columns, references(rows), predictions.label_names)
                if writer is None:
                    writer = pq.ParquetWriter(temporary, table.schema, compression="zstd")
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def read_predictions(path: Path) -> Predictions:
    """Read what `write_predictions` wrote, without the inputs.

    Raises:
        InputError: When the file is missing or damaged, or was not written by a run.
    """
    try:
        return _read(pq.ParquetFile(path))
    except (OSError, pa.ArrowException, *NOT_OF_A_RUN) as error:
        raise InputError(f"{path}: not the predictions.parquet of a run ({error})") from error


def _read(file: pq.ParquetFile) -> Predictions:
    names = json.loads(file.schema_arrow.metadata[LABEL_NAMES_KEY])
    table = file.read(columns=["split", "example_id", "label_id", "probabilities"])
    flat = table["probabilities"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return Predictions(
        example_ids=table["example_id"].to_numpy(),
        labels=table["label_id"].to_numpy(),
        probabilities=flat.astype(np.float32, copy=False).reshape(table.num_rows, len(names)),
        label_names=tuple(names),
        split=table["split"][0].as_py(),
    )


def _columns(
    predictions: Predictions, rows: slice, predicted: IntArray, confidence: FloatArray
) -> dict[str, pa.Array]:
    labels = predictions.labels[rows]
    probabilities = predictions.probabilities[rows]
    names = np.asarray(predictions.label_names, dtype=object)
    count, classes = probabilities.shape
    offsets = np.arange(0, count * classes + 1, classes, dtype=np.int32)
    return {
        "example_id": pa.array(predictions.example_ids[rows]),
        "split": pa.array([predictions.split] * count, pa.string()),
        "label": pa.array(names[labels], pa.string()),
        "prediction": pa.array(names[predicted], pa.string()),
        "label_id": pa.array(labels),
        "prediction_id": pa.array(predicted),
        "confidence": pa.array(confidence),
        "probabilities": pa.ListArray.from_arrays(offsets, pa.array(probabilities.ravel())),
    }


def _table(
    columns: dict[str, pa.Array], inputs: Mapping[str, Sequence[str]], label_names: Sequence[str]
) -> pa.Table:
    shown = {_free_name(name): pa.array(column, pa.string()) for name, column in inputs.items()}
    before = {name: columns.pop(name) for name in ("example_id", "split")}
    metadata = {LABEL_NAMES_KEY: json.dumps(label_names).encode()}
    return pa.table(before | shown | columns).replace_schema_metadata(metadata)


def _free_name(name: str) -> str:
    return f"input_{name}" if name in OWN_COLUMNS else name
