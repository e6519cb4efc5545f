"""predictions.parquet: one row per example, with its inputs, its label and what was predicted."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ampft.errors import InputError
from ampft.files import atomic_path
from ampft.tasks import problem_types
from ampft.tasks.outcome import Outcome

# From a slice of example ids to the columns that show those examples: texts, or `reference`.
References = Callable[[slice], Mapping[str, Sequence[str]]]

OUTCOME_KEY = b"ampft.outcome"
# The key of files from before there was more than one kind of outcome.
LABEL_NAMES_KEY = b"ampft.label_names"
ROWS_PER_GROUP = 8192
RESERVED_COLUMNS = (
    *("example_id", "split", "label", "prediction", "label_id", "prediction_id"),
    *("confidence", "probabilities"),
)
# What a column that is missing, of another type or of other values leads to.
FORMAT_ERRORS = (AttributeError, LookupError, TypeError, ValueError)


def write_predictions(
    path: Path,
    outcome: Outcome,
    references: References,
    *,
    rows_per_group: int = ROWS_PER_GROUP,
) -> None:
    """Write the predictions as Parquet, whole or not at all.

    Columns: `example_id` int64, `split` string, one string column for each input, and the columns
    of the outcome (label, prediction, probabilities, ...). What the outcome says of all rows stands
    in the file's metadata. An input column with one of the file's own names is written as
    `input_<name>`.

    Args:
        path: The file; its folder exists.
        outcome: Predictions of n examples.
        references: Called with consecutive slices of 0..n-1; returns the input columns of those
            rows, so that the inputs of the whole split are never in memory together.
        rows_per_group: Rows of one slice, and of one row group of the file.
    """
    metadata = {OUTCOME_KEY: json.dumps({"kind": outcome.kind, **outcome.metadata()}).encode()}
    with atomic_path(path) as temporary:
        writer: pq.ParquetWriter | None = None
        try:
            for start in range(0, len(outcome), rows_per_group):
                rows = slice(start, min(start + rows_per_group, len(outcome)))
                table = _table(outcome, rows, references(rows)).replace_schema_metadata(metadata)
                if writer is None:
                    writer = pq.ParquetWriter(temporary, table.schema, compression="zstd")
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def read_predictions(path: Path) -> Outcome:
    """Read what `write_predictions` wrote, without the inputs.

    Raises:
        InputError: The file is missing or damaged, or was not written by a run.
    """
    try:
        return _read(pq.ParquetFile(path))
    except (OSError, pa.ArrowException, *FORMAT_ERRORS) as error:
        raise InputError(f"{path}: not the predictions.parquet of a run ({error})") from error


def _read(file: pq.ParquetFile) -> Outcome:
    metadata = _metadata(file)
    outcome_type = problem_types()[metadata["kind"]].outcome_type
    names = file.schema_arrow.names
    table = file.read(columns=[name for name in RESERVED_COLUMNS if name in names])
    return outcome_type.from_table(table, metadata)


def _metadata(file: pq.ParquetFile) -> dict[str, Any]:
    found = file.schema_arrow.metadata
    if OUTCOME_KEY in found:
        metadata: dict[str, Any] = json.loads(found[OUTCOME_KEY])
        return metadata
    split = file.read_row_group(0, columns=["split"])["split"][0].as_py()
    return {
        "kind": "single_label",
        "label_names": json.loads(found[LABEL_NAMES_KEY]),
        "split": split,
    }


def _table(outcome: Outcome, rows: slice, inputs: Mapping[str, Sequence[str]]) -> pa.Table:
    count = rows.stop - rows.start
    shown = {_free_name(name): pa.array(column, pa.string()) for name, column in inputs.items()}
    return pa.table(
        {
            "example_id": pa.array(np.arange(rows.start, rows.stop)),
            "split": pa.array([outcome.split] * count, pa.string()),
            **shown,
            **outcome.columns(rows),
        }
    )


def _free_name(name: str) -> str:
    return f"input_{name}" if name in RESERVED_COLUMNS else name
