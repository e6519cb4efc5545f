"""Parquet files and sheets of Excel workbooks (.xlsx, .xlsm) as tables, row by row."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ampft.data.extension_points import HIDDEN_CELL_NOTES
from ampft.data.sources.source_table import NamedColumns, Row, SourceTable, refuse_duplicates
from ampft.errors import InputError, quoted_list
from ampft.text.numbers import counted

if TYPE_CHECKING:
    from openpyxl.worksheet._read_only import ReadOnlyWorksheet

ROWS_AT_A_TIME = 4096
WORKBOOK_SUFFIXES = (".xlsx", ".xlsm")
MAX_COLUMNS = 16_384  # of a sheet
END_OF_CELLS = b"</sheetData>"
# A control character in a text, such as a carriage return (ECMA-376, part 1, 22.9.2.19).
_CONTROL = re.compile("_x00([01][0-9A-Fa-f])_")
# Values of cells with a failed formula (18.18.11).
ERRORS = frozenset({"#N/A", "#NAME?", "#NULL!", "#NUM!", "#REF!", "#VALUE!", "#DIV/0!"})


class MergedRows(NamedTuple):
    """Rows of a sheet, from 1, whose cells in a column, from 0, are merged."""

    first: int
    last: int
    column: int


@contextmanager
def _reading_errors(path: Path) -> Iterator[None]:
    """Turn an error of a damaged file into an InputError that names it."""
    try:
        yield
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(
            f"{path}: a text has the byte 0x{byte:02x}, which is not UTF-8. Parquet texts must be"
            " UTF-8: write the file again from decoded strings."
        ) from None
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"{path}: not a readable Parquet file ({reason}). It may be damaged: copy or write it"
            " again."
        ) from None


def read_parquet(path: Path, *, encoding: str) -> SourceTable:
    """Open a Parquet file; its texts are UTF-8, so `encoding` has no effect.

    Raises:
        InputError: The file is not Parquet, or two columns have the same name. Reading a row raises
            it for damaged pages and texts that are not UTF-8.
    """
    del encoding
    with _reading_errors(path):
        schema = pq.ParquetFile(path.absolute()).schema_arrow
    columns = tuple(schema.names)
    refuse_duplicates(columns, str(path))

    def read(names: Sequence[str]) -> Iterator[Row]:
        number = 0
        with (
            _reading_errors(path),
            pq.ParquetFile(path.absolute(), page_checksum_verification=True) as file,
        ):
            for batch in file.iter_batches(batch_size=ROWS_AT_A_TIME, columns=list(names)):
                # By name, because the batch has the columns in the order of the file.
                values = [batch.column(name).to_pylist() for name in names]
                for row in zip(*values, strict=True):
                    number += 1
                    yield number, row

    return SourceTable(
        columns=columns, read=read, unit="row", origin=str(path), classes=_declared_classes(schema)
    )


def _declared_classes(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the names of classes that `datasets` wrote into a file, by column of indices."""
    try:
        features = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))["info"][
            "features"
        ]
    except (ValueError, KeyError, TypeError):
        return {}
    declared = {}
    for column, feature in features.items():
        while isinstance(feature, dict | list) and "names" not in feature:  # a list of classes
            feature = feature.get("feature") if isinstance(feature, dict) else feature[0]
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
            declared[column] = tuple(map(str, feature["names"]))
    return declared


def read_workbook(path: Path, *, flag: str, sheet: str | None) -> SourceTable:
    """Open a sheet; its first row that is not empty is the header.

    Formulas have the values that Excel stored, and dates are written as in ISO 8601.

    Args:
        flag: The flag that named it, for the messages.
        sheet: Name of the sheet; None takes the first one.

    Raises:
        InputError: openpyxl is missing, the file cannot be read, it has no such sheet, or a column
            has no name or the name of another.
    """
    try:
        import openpyxl  # noqa: F401
    except ImportError:
        raise InputError(
            f"{flag}: {path} is an Excel workbook, and reading it needs openpyxl. Run"
            ' pip install openpyxl, or save the sheet as CSV (in Excel "CSV UTF-8").'
        ) from None
    with _opened_sheet(path, sheet) as (worksheet, names):
        header = next(_filled_rows(worksheet, path), None)
        title, width = worksheet.title, worksheet.max_column or MAX_COLUMNS
        merged = _merged_rows(worksheet, path)
        unseen = [each.title for each in worksheet.parent if each.sheet_state != "visible"]
    if header is None:
        raise InputError(f"{path}: sheet {title!r} is empty. Its first row must be a header.")
    columns = NamedColumns.of(["" if n is None else str(n) for n in header[1]], str(path))

    def filled() -> Iterator[tuple[int, list[Any]]]:
        with _opened_sheet(path, title) as (worksheet, _):
            rows = islice(_filled_rows(worksheet, path), 1, None)
            yield from _with_merged_cells(rows, merged)

    def read(wanted: Sequence[str]) -> Iterator[Row]:
        indices = [columns.places[name] for name in wanted]
        for row, values in filled():
            cells = [*values, *[None] * (columns.count - len(values))]
            yield row, [_cell_value(cells[index], path, row) for index in indices]

    shown = len(names) - len(unseen)
    note = f"{path}: read from sheet {title!r}, the first of {shown} (--sheet_name)."
    notes = [note] if sheet is None and shown > 1 else []
    if merged:
        notes.append(
            f"{path}: {counted(len(merged), 'merged area')} of cells: each row has the value of the"
            " first."
        )
    if hidden_notes := HIDDEN_CELL_NOTES.get():
        with _opened_sheet(path, title) as (worksheet, _):
            notes += hidden_notes(worksheet, columns.places, path, unseen)
    notes += columns.unread_note(str(path), (values for _, values in filled()), width)
    return SourceTable(
        columns=columns.names, read=read, unit="row", origin=str(path), notes=(*notes,)
    )


@contextmanager
def _opened_sheet(path: Path, sheet: str | None) -> Iterator[tuple[ReadOnlyWorksheet, list[str]]]:
    """Yield a sheet of a workbook, and the names of all its sheets."""
    from openpyxl import load_workbook

    with path.open("rb") as file:  # openpyxl leaves the file of a damaged workbook open
        try:
            book = load_workbook(file, read_only=True, data_only=True)
        except Exception as error:  # zipfile, expat and openpyxl raise many kinds
            raise _unreadable(path, error) from None
        names = [worksheet.title for worksheet in book.worksheets]
        if sheet is not None and sheet not in names:
            raise InputError(
                f"--sheet_name: {path} has no sheet {sheet!r}; its sheets: {quoted_list(names)}."
            )
        first = next((s.title for s in book.worksheets if s.sheet_state == "visible"), names[0])
        yield book[first if sheet is None else sheet], names


def _unreadable(path: Path, error: Exception) -> InputError:
    """Return the error for a workbook that openpyxl cannot read."""
    reason = " ".join(str(error).split()).rstrip(".")
    return InputError(
        f"{path}: not a readable Excel workbook ({type(error).__name__}: {reason}). It may be"
        " damaged or protected by a password: open it in Excel and save the sheet as CSV."
    )


def _filled_rows(worksheet: Any, path: Path) -> Iterator[tuple[int, list[Any]]]:
    """Yield (row of the sheet, values up to the last one) for all rows with a value."""
    rows = worksheet.iter_rows(values_only=True)
    for number in itertools.count(1):
        try:
            values = next(rows, None)
        except Exception as error:  # a sheet is parsed while it is read
            raise _unreadable(path, error) from None
        if values is None:
            return
        length = max((i for i, v in enumerate(values, start=1) if v not in (None, "")), default=0)
        if length:
            yield number, list(values[:length])


def _merged_rows(worksheet: Any, path: Path) -> list[MergedRows]:
    """Return the merged cells of a sheet that span rows. They follow the cells in its file."""
    from openpyxl.utils.cell import range_boundaries

    found, is_after, tail = b"", False, b""
    try:
        with worksheet.parent._archive.open(worksheet._worksheet_path) as file:
            while chunk := file.read(2**20):
                if is_after:
                    found += chunk
                    continue
                _, end, after = (tail + chunk).partition(END_OF_CELLS)
                found, is_after, tail = after, bool(end), chunk[-len(END_OF_CELLS) :]
        areas = re.findall(rb'<(?:\w+:)?mergeCell ref="([A-Z0-9:]+)"', found)
        places: list[Any] = [range_boundaries(area.decode()) for area in areas]
    except Exception as error:  # of a damaged archive, as of its cells
        raise _unreadable(path, error) from None
    return [
        MergedRows(first, last, column - 1) for column, first, _, last in places if last > first
    ]


def _with_merged_cells(
    rows: Iterator[tuple[int, list[Any]]], merged: Sequence[MergedRows]
) -> Iterator[tuple[int, list[Any]]]:
    """Yield rows in which each merged cell has the value of its first row."""
    values_of: dict[MergedRows, Any] = {}
    starts = sorted(merged)
    for number, values in rows:
        while starts and starts[0].first <= number:
            area = starts.pop(0)
            values_of[area] = None
            if area.first == number and area.column < len(values):
                values_of[area] = values[area.column]
        for area in [area for area in values_of if area.last < number]:
            del values_of[area]
        for area, value in values_of.items():
            values += [None] * (area.column + 1 - len(values))
            if values[area.column] is None:
                values[area.column] = value
        yield number, values


def _cell_value(value: Any, path: Path, row: int) -> object:
    """Return a cell as text, number, boolean or None."""
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, str) and value in ERRORS:
        raise InputError(f"{path}, row {row}: a cell holds the error {value}. Correct its formula.")
    if isinstance(value, str):
        return _CONTROL.sub(lambda found: chr(int(found[1], 16)), value)
    return value if isinstance(value, str | bool | int | float | None) else str(value)
