"""What `ampft predict` reads and writes: rows with all their columns, in their order."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ampft.data.columns import column_renames, require
from ampft.data.input_columns import InputColumns
from ampft.data.media import MEDIA, kind_of_file
from ampft.data.row_collector import location
from ampft.data.sources.files import open_table
from ampft.data.sources.folders import files_in
from ampft.data.sources.table import (
    Row,
    Table,
    described_columns,
    refuse_surrogates,
)
from ampft.errors import InputError, quoted
from ampft.files import special_or_atomic_path
from ampft.precision.modes import BASELINE

STANDARD_INPUT = "-"
FILE_COLUMN = "file"
LABEL_COLUMN = "label"

Write = Callable[[Sequence[Sequence[Any]]], None]

# What a cell of a JSON file can have, by the error that writing it raises.
UNWRITABLE: dict[type[Exception], str] = {
    UnicodeEncodeError: "half of a surrogate pair",
    RecursionError: "lists or objects nested hundreds of times",
    OverflowError: "a whole number of more than 64 bits",
}


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """What to predict, and how.

    Attributes:
        files: One file, `-` for standard input, or images and folders of images.
        texts: Texts to predict instead of files.
        output_file: File to write; None writes CSV to standard output.
        text_column_names: Comma-separated input columns; None reads those used in training.
        label_column_name: Label column to score; None looks for that of the training.
        batch_size: Rows per forward pass.
        mixed_precision: Precision of the computation.
        top_k: Number of most probable labels to add.
        all_probabilities: Whether to add the probability of every label.
        encoding: Character encoding of CSV, TSV and JSON files.
        sheet_name: Sheet of an Excel workbook; None takes the first one.
    """

    files: Sequence[str] = ()
    texts: Sequence[str] = ()
    output_file: str | None = None
    text_column_names: str | None = None
    label_column_name: str | None = None
    batch_size: int = 64
    mixed_precision: str = BASELINE
    top_k: int = 0
    all_probabilities: bool = False
    encoding: str = "utf-8"
    sheet_name: str | None = None


def table_of_lists(columns: Sequence[str], rows: Sequence[Row], unit: str, origin: str) -> Table:
    """Return rows in memory as a table."""

    def read(names: Sequence[str]) -> Iterator[Row]:
        indices = [columns.index(name) for name in names]
        for number, row in rows:
            yield number, [row[index] for index in indices]

    return Table(columns=tuple(columns), read=read, unit=unit, origin=origin)


def texts_as_table(texts: Sequence[str], columns: Sequence[str]) -> Table:
    """Return the texts of `--text` as a table; for pairs, two texts are a row.

    Raises:
        InputError: Their number is not a multiple of the number of columns.
    """
    count = len(columns)
    if len(texts) % count:
        raise InputError(
            f"--text: received {len(texts)}; the model was trained on {count} text columns"
            f" ({', '.join(columns)}), so pass --text {count} times per row."
        )
    rows = [texts[start : start + count] for start in range(0, len(texts), count)]
    return table_of_lists(columns, list(enumerate(rows, start=1)), "text", "--text")


def lines_as_table(columns: Sequence[str]) -> Table:
    """Return the lines of standard input that are not blank as a table; tabs separate columns.

    Raises:
        InputError: A line does not have one text per column.
    """
    rows: list[Row] = []
    for number, line in enumerate(sys.stdin, start=1):
        text = line.rstrip("\r\n")
        if not text.strip():
            continue
        row = text.split("\t") if len(columns) > 1 else [text]
        if len(row) != len(columns):
            raise InputError(
                f"standard input, line {number}: {len(row)} texts, but the model was trained on"
                f" {len(columns)} ({', '.join(columns)}). Separate them by a tab."
            )
        rows.append((number, row))
    return table_of_lists(columns, rows, "line", "standard input")


def media_as_table(paths: Sequence[str], kind: str, class_names: Collection[str] = ()) -> Table:
    """Return the images or sounds in `paths`, which may be folders, as a table of their paths.

    If every file lies in a folder of one of the classes, as in training, the table has the column
    `label` with its name.

    Args:
        paths: Files and folders.
        kind: `image` or `sound`.
        class_names: Names of the classes that a folder can have.

    Raises:
        InputError: A path does not exist, or a folder has no such files.
    """
    suffixes = MEDIA[kind].suffixes
    rows: list[list[str]] = []
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"FILE: {path} does not exist.")
        found = files_in(path) if path.is_dir() else [path]
        usable = [file for file in found if file.suffix.lower() in suffixes]
        if not usable:
            raise InputError(f"FILE: {path} has no {kind}s ({', '.join(suffixes)}).")
        rows += [[str(file), _class_folder(file, path)] for file in usable]
    has_labels = all(label in class_names for _, label in rows)
    columns = (FILE_COLUMN, LABEL_COLUMN) if has_labels else (FILE_COLUMN,)
    cells = [(number, row[: len(columns)]) for number, row in enumerate(rows, start=1)]
    return table_of_lists(columns, cells, kind, ", ".join(paths))


def _class_folder(file: Path, folder: Path) -> str:
    """Return the name of the outermost folder inside `folder` that holds a file, or nothing."""
    return file.relative_to(folder).parts[0] if file.parent != folder and file != folder else ""


def are_media(paths: Sequence[str], kind: str | None = None) -> bool:
    """Return whether paths name folders, or images or sounds, not a table.

    Args:
        paths: Files and folders.
        kind: `image` or `sound`; None for either.
    """
    kinds = MEDIA if kind is None else (kind,)
    return all(Path(path).is_dir() or kind_of_file(path) in kinds for path in paths)


def open_rows(
    path: Path, *, inputs: tuple[str, ...], flag: str, encoding: str, sheet: str | None
) -> tuple[Table, InputColumns]:
    """Open a file whose rows are to be predicted.

    Args:
        path: A file in one of the formats of `READERS`.
        inputs: Columns that the model reads.
        flag: Flag that names them, for messages.
        encoding: Character encoding of CSV, TSV and JSON files.
        sheet: Sheet of an Excel workbook; None takes the first one.

    Returns:
        The table, and its input columns under their names there, which differ at most in case and
        blanks.

    Raises:
        InputError: The file cannot be read, or a column is missing.
    """
    table = open_table(path, flag="FILE", encoding=encoding, sheet=sheet)
    columns = InputColumns.of(inputs, table.columns)
    renamed = {new: old for old, new in column_renames(table.columns, columns.sources).items()}
    require(
        [name for name in columns.sources if name not in renamed],
        table.columns,
        flag,
        origin=table.origin,
        describe=lambda: described_columns(table),
    )
    return table, columns.renamed(renamed)


def check_texts(table: Table, inputs: InputColumns) -> int:
    """Check that every row has its texts; return the number of rows.

    Raises:
        InputError: A text is missing, or the file has no rows; the message names the rows.
    """
    missing, count = [], 0
    for number, values in table.read(inputs.sources):
        count += 1
        if None in inputs.texts(values, f"{table.origin}, {table.unit} {number}"):
            missing.append(number)
    if missing:
        raise InputError(
            f"{location(table.origin, table.unit, missing)}: nothing in column"
            f" {', '.join(map(repr, inputs.names))}. Fill the cells or remove the rows."
        )
    return count


def new_names(names: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return names for new columns; one that a file has already gets a number."""
    result: list[str] = []
    for name in names:
        free, number = name, 1
        while free in taken or free in result:
            number += 1
            free = f"{name}_{number}"
        result.append(free)
    return result


@contextmanager
def opened_output(
    output_file: str | None,
    columns: Sequence[str],
    added: Sequence[str],
    *,
    types: Mapping[str, pa.DataType] | None = None,
) -> Iterator[Write]:
    """Yield a function that writes rows, as CSV, JSON Lines or Parquet by the name of the file.

    Args:
        output_file: File to write, atomically; None for CSV on standard output.
        columns: Columns of the input.
        added: Columns of the predictions, which follow.
        types: Types of columns in Parquet, by name. Those of other columns follow from the first
            rows.
    """
    names = [*columns, *added]
    for name in names:
        refuse_surrogates(name, f"the name of the column {name!a}")
    suffix = "" if output_file is None else Path(output_file).suffix.lower()
    target = nullcontext() if output_file is None else special_or_atomic_path(Path(output_file))
    with target as path:
        if suffix == ".parquet" and path is not None:
            with _parquet(path, names, types or {}) as write:
                yield _refusing(write, names)
            return
        out = sys.stdout if path is None else path.open("w", encoding="utf-8", newline="")
        try:
            is_json = suffix == ".jsonl"
            write = _json_lines(out, names) if is_json else _csv(out, names, len(columns))
            yield _refusing(write, names)
        finally:
            if path is not None:
                out.close()


def _refusing(write: Write, names: Sequence[str]) -> Write:
    """Return a function that writes rows, or refuses the first cell that the output cannot hold."""
    written = 0

    def write_or_refuse(rows: Sequence[Sequence[Any]]) -> None:
        nonlocal written
        try:
            write(rows)
        except tuple(UNWRITABLE) as error:
            cells = (
                f"row {number}, column {quoted(name)}: "
                for number, row in enumerate(rows, start=written + 1)
                for name, value in zip(names, row, strict=True)
                if _is_unwritable(value, type(error))
            )
            raise InputError(
                f"{next(cells, '')}the cell has {UNWRITABLE[type(error)]}, which the output cannot "
                "hold. Remove the cell or the row."
            ) from None
        written += len(rows)

    return write_or_refuse


def _is_unwritable(value: Any, error: type[Exception]) -> bool:
    """Return whether writing a cell raises an error of `UNWRITABLE`."""
    if error is OverflowError:
        return isinstance(value, int) and value.bit_length() > 63
    try:
        _json(value).encode()
    except error:
        return True
    return False


def _csv(out: Any, columns: Sequence[str], of_input: int) -> Write:
    # With a line feed as the end of lines, csv leaves carriage returns in cells without quotes.
    writer = csv.writer(_LineFeeds(out), lineterminator="\r\n")
    writer.writerow(columns)

    def write(rows: Sequence[Sequence[Any]]) -> None:
        writer.writerows(
            [
                *(_csv_cell(value) for value in row[:of_input]),
                *(f"{v:.6f}" if isinstance(v, float) else _csv_cell(v) for v in row[of_input:]),
            ]
            for row in rows
        )

    return write


@dataclass(frozen=True)
class _LineFeeds:
    """Writes lines that end in CR LF to a file, with only LF."""

    out: Any

    def write(self, line: str) -> None:
        self.out.write(line.removesuffix("\r\n") + "\n")


def _csv_cell(value: Any) -> Any:
    return _json(value) if isinstance(value, dict | list) else value


def _json_lines(out: Any, columns: Sequence[str]) -> Write:
    def write(rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            out.write(_json(dict(zip(columns, row, strict=True))) + "\n")

    return write


def _json(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    """Return a cell with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value


@contextmanager
def _parquet(
    path: Path, columns: Sequence[str], types: Mapping[str, pa.DataType]
) -> Iterator[Write]:
    writer: pq.ParquetWriter | None = None

    def write(rows: Sequence[Sequence[Any]]) -> None:
        nonlocal writer
        schema = None if writer is None else writer.schema
        try:
            values = [
                pa.array(column, types.get(name) if schema is None else schema.field(name).type)
                for name, column in zip(columns, zip(*rows, strict=True), strict=True)
            ]
        except (pa.ArrowException, TypeError) as error:
            reason = " ".join(str(error).split())
            raise InputError(
                f"--output_file: a column has values of several types ({reason}), which Parquet"
                " cannot hold. Name a .csv or .jsonl file."
            ) from None
        if writer is None:
            # A column without values so far may have texts later.
            values = [v.cast(pa.string()) if pa.types.is_null(v.type) else v for v in values]
            schema = pa.schema([(name, v.type) for name, v in zip(columns, values, strict=True)])
            writer = pq.ParquetWriter(path.absolute(), schema, compression="zstd")
        writer.write_table(pa.Table.from_arrays(values, schema=writer.schema))

    try:
        yield write
        if writer is None:  # without rows
            schema = pa.schema([(name, types.get(name, pa.string())) for name in columns])
            writer = pq.ParquetWriter(path.absolute(), schema)
    finally:
        if writer is not None:
            writer.close()
