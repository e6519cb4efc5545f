"""What `ampft predict` writes: rows with all their columns, in their order."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ampft.data.sources.table import refuse_surrogates
from ampft.errors import InputError, quoted
from ampft.files import special_or_atomic_path
from ampft.kinds.prediction import RowFormat

Write = Callable[[Sequence[Sequence[Any]]], None]

# What a cell of a JSON file can have, by the error that writing it raises.
UNWRITABLE: dict[type[Exception], str] = {
    UnicodeEncodeError: "half of a surrogate pair",
    RecursionError: "lists or objects nested hundreds of times",
    OverflowError: "a whole number of more than 64 bits",
}


# Formats that a reader would expect by the ending of a file. Any other ending is CSV.
OTHER_FORMATS = (
    *(".xlsx", ".xls", ".ods", ".json", ".tsv", ".tab", ".feather", ".arrow", ".html"),
    *(".gz", ".zip", ".bz2", ".xz", ".zst"),
)


@contextmanager
def opened_output(
    output_file: str | None,
    columns: Sequence[str],
    added: Sequence[str],
    *,
    types: Mapping[str, pa.DataType] | None = None,
    formats: Mapping[str, RowFormat] | None = None,
) -> Iterator[Write]:
    """Yield a function that writes rows, as CSV, JSON Lines or Parquet by the name of the file.

    Args:
        output_file: File to write, atomically; None for CSV on standard output.
        added: Columns of the predictions, which follow.
        types: Types of columns in Parquet, by name. Other columns get their types from the
            first rows.
        formats: Other formats by the ending of the file: the text of a row from its new columns.
    """
    names = [*columns, *added]
    for name in names:
        refuse_surrogates(name, f"the name of the column {name!a}")
    suffix = "" if output_file is None else Path(output_file).suffix.lower()
    if suffix in OTHER_FORMATS:
        raise InputError(
            f"--output_file {output_file}: {suffix} files are not written. Use .csv, .jsonl or "
            ".parquet."
        )
    target = nullcontext() if output_file is None else special_or_atomic_path(Path(output_file))
    with target as path:
        if suffix == ".parquet" and path is not None:
            with _parquet(path, names, types or {}) as write:
                yield _refusing(write, names)
            return
        out = sys.stdout if path is None else path.open("w", encoding="utf-8", newline="")
        try:
            if formats is not None and suffix in formats:
                row_text = formats[suffix]
                write = _lines(out, lambda row: row_text(row[len(columns) :]))
            elif suffix == ".jsonl":
                write = _lines(out, lambda row: _json(dict(zip(names, row, strict=True))) + "\n")
            else:
                write = _csv(out, names, len(columns))
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
    if isinstance(value, dict | list):
        return _json(value)
    return _as_text(value) if isinstance(value, bytes) else value


def _as_text(value: object) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _lines(out: Any, line: Callable[[Sequence[Any]], str]) -> Write:
    def write(rows: Sequence[Sequence[Any]]) -> None:
        out.writelines(map(line, rows))

    return write


def _json(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, default=_as_text)


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
                " cannot hold. Choose a .csv or .jsonl file."
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
