"""predictions.parquet: one row per example, with its inputs, its label and its prediction.

`CaseViewer` shows its cases, with the data of the run where they are needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ampft.data.splits import Groups, group_equal_keys
from ampft.errors import InputError
from ampft.files import atomic_path
from ampft.kinds.views import MASK_COLUMN, Case, CasePrediction
from ampft.runs.record import RunRecord
from ampft.runs.run_text import task_row
from ampft.tasks.outcome import WEIGHT, Outcome
from ampft.tasks.table import problem_types
from ampft.text.page import ShownCase

if TYPE_CHECKING:
    from ampft.data.dataset import ClassificationData

# Maps a slice of example ids to columns that identify these examples: their texts, or `reference`.
References = Callable[[slice], Mapping[str, Sequence[str]]]
Origins = Callable[[slice], Mapping[str, Sequence[Any]]]

OUTCOME_KEY = b"ampft.outcome"
GROUPS_KEY = b"ampft.groups"  # JSON: the column of the groups, or null for duplicates
ROWS_PER_GROUP = 8192
ENTRIES_PER_GROUP = 2**24  # probabilities of a group, so that many classes have fewer rows
BYTES_AT_A_TIME = 2**24  # of a group of rows that is read for a few of them
RESERVED_COLUMNS = (
    *("example_id", "split", "label", "prediction", "label_id", "prediction_id"),
    *("loss", WEIGHT),
    *("pixel_cells", "pixel_counts", "pixel_loss", "pixel_squared_loss", "pixel_calibration"),
    *("mask_digest", MASK_COLUMN),
    *("confidence", "probabilities", "answered", "group_id", "fold"),
    *("file", "file_line", "file_row", "position", "id"),
)
# Raised by a column that is missing or has an unexpected type or value.
FORMAT_ERRORS = (AttributeError, LookupError, TypeError, ValueError)


def write_predictions(
    path: Path,
    outcome: Outcome,
    references: References,
    *,
    origins: Origins | None = None,
    groups: Groups | None = None,
    rows_per_group: int = ROWS_PER_GROUP,
) -> None:
    """Write the predictions as Parquet, atomically.

    Columns: `example_id` int64, `split` string, with `origins` `fold`, `file_line` or `file_row` or
    `position` int64, `file` and `id` string, one string column for each input, and the columns
    of the outcome (label, prediction, probabilities, ...). The file's metadata hold what applies to
    all rows. An input column with a reserved name is written as `input_<name>`. With groups, there
    is also a column `group_id` int64.

    Args:
        path: File to write, in an existing folder.
        references: Function that returns the input columns of a slice of rows. It is called with
            consecutive slices of 0..n-1, so that only one slice is in memory at a time.
        origins: Function like `references` that returns where the rows come from: fold, line or row
            of the file or position in the data set, and id.
        groups: Groups of examples that are not independent; None if all are.
    """
    metadata = {OUTCOME_KEY: json.dumps({"kind": outcome.kind, **outcome.metadata()}).encode()}
    if groups is not None:
        metadata[GROUPS_KEY] = json.dumps(groups.column).encode()
    most = max(1, ENTRIES_PER_GROUP // max(1, len(getattr(outcome, "class_names", ()))))
    length = min(rows_per_group, most)
    # pyarrow takes a relative path with a colon for a URL.
    with atomic_path(path.absolute()) as temporary:
        writer: pq.ParquetWriter | None = None
        try:
            for start in range(0, len(outcome), length):
                rows = slice(start, min(start + length, len(outcome)))
                origin = {} if origins is None else origins(rows)
                table = _table(outcome, rows, references(rows), origin)
                if groups is not None:
                    table = table.append_column("group_id", pa.array(groups.ids[rows]))
                table = table.replace_schema_metadata(metadata)
                if writer is None:
                    writer = pq.ParquetWriter(temporary, table.schema, compression="zstd")
                writer.write_table(table)
        finally:
            if writer is not None:
                writer.close()


def read_predictions(path: Path) -> Outcome:
    """Read a file that `write_predictions` wrote, without the inputs.

    Raises:
        InputError: The file is missing or damaged, or was not written by a run.
    """
    try:
        file = pq.ParquetFile(path.absolute())
        metadata = json.loads(file.schema_arrow.metadata[OUTCOME_KEY])
        outcome_type = problem_types()[metadata["kind"]].outcome_type
        names = file.schema_arrow.names
        table = file.read(columns=[n for n in RESERVED_COLUMNS if n in names and n != MASK_COLUMN])
        return outcome_type.from_table(table, metadata)
    except (OSError, pa.ArrowException, *FORMAT_ERRORS) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not the predictions.parquet of a run ({reason}).") from error


def read_rows(
    path: Path, rows: Sequence[int], is_read: Callable[[str], bool]
) -> dict[int, dict[str, Any]]:
    """Read some columns of a few rows, by row, without the rest of the file.

    Args:
        path: File whose rows are the examples 0..n-1 in order.
        is_read: Function that says whether a column is read.

    Raises:
        InputError: The columns are damaged.
    """
    try:
        file = pq.ParquetFile(path.absolute())
        names = [name for name in file.schema_arrow.names if is_read(name)]
        found: dict[int, dict[str, Any]] = {row: {} for row in rows}
        start = 0
        for group in range(file.num_row_groups):
            stop = start + file.metadata.row_group(group).num_rows
            inside = sorted(row for row in found if start <= row < stop)
            if inside and names:
                places = np.array(inside) - start
                found |= zip(inside, _taken(file, group, names, places), strict=True)
            start = stop
    except (OSError, pa.ArrowException, ValueError) as error:  # such as text that is not UTF-8
        reason = " ".join(str(error).split())
        raise InputError(
            f"{path}: the texts in this file cannot be read ({reason}). Copy the file again, or "
            "repeat the run."
        ) from error
    return found


def _taken(
    file: pq.ParquetFile, group: int, names: list[str], places: npt.NDArray[np.int64]
) -> Iterator[dict[str, Any]]:
    """Yield some columns of rows of a group, at ascending places, from a part at a time."""
    of_group, start = file.metadata.row_group(group), 0
    size = max(1, BYTES_AT_A_TIME * of_group.num_rows // max(1, of_group.total_byte_size))
    for batch in file.iter_batches(size, row_groups=[group], columns=names):
        inside = places[(places >= start) & (places < start + len(batch))]
        yield from batch.take(pa.array(inside - start)).to_pylist()
        start += len(batch)


def is_input(name: str) -> bool:
    """Return whether a column of predictions.parquet is an input of the examples."""
    return name not in RESERVED_COLUMNS


def read_groups(path: Path) -> Groups | None:
    """Read the groups of the examples in a file that `write_predictions` wrote.

    Raises:
        InputError: The file is missing or damaged, or was not written by a run.
    """
    try:
        file = pq.ParquetFile(path)
        stored = file.schema_arrow.metadata or {}
        if GROUPS_KEY not in stored:
            return None
        ids = file.read(columns=["group_id"])["group_id"].to_numpy()
        column = json.loads(stored[GROUPS_KEY])
        # Numbering them again makes sure that the ids are 0..G-1.
        return group_equal_keys(ids.tolist(), column=None if column is None else str(column))
    except (OSError, pa.ArrowException, *FORMAT_ERRORS) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: not the predictions.parquet of a run ({reason}).") from error


def _table(
    outcome: Outcome,
    rows: slice,
    inputs: Mapping[str, Sequence[str]],
    origin: Mapping[str, Sequence[Any]],
) -> pa.Table:
    count = rows.stop - rows.start
    input_columns = {
        f"input_{name}" if name in RESERVED_COLUMNS else name: pa.array(column, pa.string())
        for name, column in inputs.items()
    }
    return pa.table(
        {
            "example_id": pa.array(np.arange(rows.start, rows.stop)),
            "split": pa.array([outcome.split] * count, pa.string()),
            **{
                name: pa.array(values, pa.string() if name in ("file", "id") else pa.int64())
                for name, values in origin.items()
            },
            **input_columns,
            **outcome.columns(rows),
        }
    )


MOST_READ_AGAIN = 100_000  # examples; reading more would take many minutes


@dataclass
class CaseViewer:
    """Shows the cases of the final split of a run."""

    record: RunRecord  # Record of the run.
    split: str  # Name of the split.
    label_names: Sequence[str]  # The labels.

    def show(
        self,
        case: int,
        inputs: Mapping[str, str],
        truth: Any,
        predictions: Sequence[CasePrediction],
    ) -> ShownCase:
        """Return how a case is shown; as texts if it cannot be read.

        Args:
            inputs: Input columns of the case in the table of predictions.
            truth: Entry of `Outcome.truth`.
        """

        def stored(path: Path, column: str) -> Any:
            return read_rows(path, [case], lambda name: name == column)[case].get(column)

        return task_row(self.record).kind.show(
            Case(
                number=case,
                split=self.split,
                label_names=self.label_names,
                inputs=inputs,
                truth=truth,
                predictions=predictions,
                data=lambda: self._data,
                stored=stored,
            )
        )

    @cached_property
    def _data(self) -> ClassificationData | None:
        """The data of the run; None if they are not available, have changed, or are very many."""
        if sum(self.record.data.examples.values()) > MOST_READ_AGAIN:
            return None
        from ampft.runs.recorded_arguments import recorded_arguments

        try:
            data = task_row(self.record).kind.load(recorded_arguments(self.record, ()), None)
        except InputError:
            return None
        return data if dict(data.fingerprints) == dict(self.record.data.fingerprints) else None
