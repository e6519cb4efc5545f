"""Inputs and labels from CSV, TSV, JSON, JSON Lines, Parquet and Excel files.

Inputs are texts, or images or sounds: paths relative to the folder of the file, or their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from ampft.data.columns import (
    INPUT_FLAGS,
    DataColumns,
    column_renames,
    expected_names,
    extra_columns,
    label_columns,
    renaming_notes,
    require,
    text_choices,
    text_columns,
)
from ampft.data.input_columns import InputColumns
from ampft.data.media import MEDIA, kind_of_file
from ampft.data.request import DataRequest
from ampft.data.row_collector import LabelledRows, concatenated
from ampft.data.row_labels import LabelParser
from ampft.data.sources import conll
from ampft.data.sources.delimited import read_csv, read_tsv
from ampft.data.sources.file_names import check_file
from ampft.data.sources.json_rows import read_json
from ampft.data.sources.parquet import read_parquet
from ampft.data.sources.rows import read_rows
from ampft.data.sources.table import SourceTable, described_columns
from ampft.data.sources.workbook import SUFFIXES, read_workbook
from ampft.errors import InputError, quoted, quoted_list


class FileReader(Protocol):
    """Opens a file of one format."""

    def __call__(self, path: Path, *, encoding: str) -> SourceTable:
        """Read the header of `path` and return the table."""


READERS: dict[str, FileReader] = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".tab": read_tsv,
    ".json": read_json,
    ".jsonl": read_json,
    ".ndjson": read_json,
    ".parquet": read_parquet,
    **dict.fromkeys(conll.SUFFIXES, conll.read_conll),
}
FLAGS = {"train": "--train_file", "validation": "--validation_file", "test": "--test_file"}
MEDIA_ROWS = 20  # whose cells tell whether a column has images or sounds
UNREAD_WORKBOOKS = (".xlsb", ".xls", ".ods")
OLE_MAGIC = bytes.fromhex("d0cf11e0a1b11ae1")  # .xls: Compound File Binary, section 2.2
ZIP_MAGIC = b"PK\x03\x04"  # .xlsx and .ods are ZIP archives


def open_table(
    path: Path,
    *,
    flag: str,
    encoding: str,
    sheet: str | None = None,
    other_reader: FileReader | None = None,
) -> SourceTable:
    """Open a file with the reader of its extension.

    Args:
        path: The file.
        flag: The flag that named it, for the messages.
        encoding: Character encoding of CSV, TSV and JSON files.
        sheet: Sheet of an Excel workbook; None takes the first one.
        other_reader: Reader of files with any other extension; None refuses them.

    Raises:
        InputError: The file does not exist, its extension is unknown, or it cannot be read.
    """
    if path.is_dir():
        check_file(path, flag=flag)
    suffix = path.suffix.lower()
    if other_reader is None and suffix not in (*READERS, *SUFFIXES, *UNREAD_WORKBOOKS):
        raise InputError(
            f"{flag}: received {path}; the name must end in one of"
            f" {', '.join((*READERS, *SUFFIXES))}. Convert the file."
        )
    check_file(path, flag=flag)
    if suffix in SUFFIXES:
        return read_workbook(path, flag=flag, sheet=sheet)
    with path.open("rb") as file:
        start = file.read(len(OLE_MAGIC))
    if suffix in UNREAD_WORKBOOKS or start == OLE_MAGIC or start.startswith(ZIP_MAGIC):
        raise InputError(
            f"{flag}: {path} is a spreadsheet of a kind or a name that is not read. Save it as"
            ' .xlsx, or its sheet as CSV (in Excel "CSV UTF-8"), and pass that file.'
        )
    if sheet is not None:
        raise InputError(
            f"--sheet_name: {path} is not an Excel workbook. Remove the flag, or pass"
            f" {' or '.join(SUFFIXES)} files."
        )
    reader = READERS.get(suffix, other_reader)
    assert reader is not None, "other extensions were refused"
    return reader(path, encoding=encoding)


def open_tables(
    request: DataRequest, other_reader: FileReader | None = None
) -> dict[str, list[SourceTable]]:
    """Open the files of a request, by split; for `other_reader` see `open_table`."""
    return {
        split: [
            open_table(
                path,
                flag=FLAGS[split],
                encoding=request.encoding,
                sheet=request.sheet_name,
                other_reader=other_reader,
            )
            for path in paths
        ]
        for split, paths in request.paths().items()
    }


def load_files(request: DataRequest) -> tuple[dict[str, LabelledRows], DataColumns, list[str]]:
    """Read the files of a request.

    Args:
        request: The user's choices, with at least one file.

    Returns:
        Rows by split, their columns, and notes.

    Raises:
        InputError: The training file is missing, or a file or a row cannot be read; the message
            names it.
    """
    if request.train_file is None:
        flags = ", ".join(FLAGS[split] for split in request.files)
        raise InputError(
            f"--train_file is missing: received only {flags}. Pass a file to train on."
        )
    tables = open_tables(request)
    names, labels = request.text_columns, request.label_columns
    expected = expected_names(tables["train"][0].columns, texts=names, labels=labels)
    train = tables["train"][0] = rename_columns(tables["train"][0], expected)
    columns, notes = choose_columns(train, request)
    rows, empty = {}, []
    for split, parts in tables.items():
        sources = InputColumns.of(columns.inputs, parts[0].columns).sources
        parts[:] = [rename_columns(table, (*sources, *columns.labels.columns)) for table in parts]
        for table in parts:
            columns.require_in(table.columns, origin=table.origin)
        read_parts = [read_rows(table, columns, request) for table in parts]
        empty += [part.origin for part in read_parts if not len(part.inputs)]
        rows[split] = concatenated(read_parts, str(request.files[split]))
    counts = [
        f"{request.files[split]}: {len(parts)} files, from {parts[0].origin} to {parts[-1].origin}."
        for split, parts in tables.items()
        if len(parts) > 1
    ]
    counts += [f"{name}: no rows of this file are used." for name in empty]
    read = [note for parts in tables.values() for table in parts for note in table.notes]
    return rows, columns, [*counts, *read, *notes]


def rename_columns(table: SourceTable, expected: Sequence[str]) -> SourceTable:
    """Return the table with the expected names for columns that differ only in case or spaces."""
    names = column_renames(table.columns, expected)
    return table.renamed(names, renaming_notes(names, table.origin)) if names else table


def media_column(table: SourceTable, request: DataRequest) -> tuple[str, str] | None:
    """Return the column of images or sounds and their kind; None if the inputs are texts.

    Without a flag or task that says so, it is the only column whose first cells are all files of
    one kind, in a file without a usual text column.

    Raises:
        InputError: The named column is missing, the task needs such a column and the file has
            none, or there are several.
    """
    describe = partial(described_columns, table)
    for kind, column in request.named_media.items():
        require((column,), table.columns, INPUT_FLAGS[kind], origin=table.origin, describe=describe)
        return column, kind
    if request.text_columns or request.data_kind not in (None, *MEDIA):
        return None
    if request.data_kind is None and text_choices(table.columns):
        return None
    found = {
        column: kind
        for column, kind in media_cells(table).items()
        if request.data_kind in (None, kind)
    }
    if len(found) == 1:
        return next(iter(found.items()))
    if request.data_kind is None and not found:
        return None
    flag = INPUT_FLAGS[request.data_kind or next(iter(found.values()))]
    problem = "several columns of files" if found else f"no column of paths of {request.data_kind}s"
    raise InputError(
        f"{flag}: {table.origin} has {problem}. Its columns: {describe()}. Pass the right one."
    )


def media_cells(table: SourceTable) -> dict[str, str]:
    """Return the kind of each column whose first cells are images or sounds: bytes, or paths."""

    def kind_of_cell(cell: object) -> str | None:
        name = cell.get("path") if isinstance(cell, dict) else cell
        return kind_of_file(name) if isinstance(name, str) and "://" not in name else None

    rows = [cells for _, cells in islice(table.read(table.columns), MEDIA_ROWS)]
    found = {}
    for column, cells in zip(table.columns, zip(*rows, strict=True), strict=False):
        kinds = {kind_of_cell(cell) for cell in cells if cell not in (None, "")}
        if len(kinds) == 1 and (kind := kinds.pop()) is not None:
            found[column] = kind
    return found


def choose_columns(table: SourceTable, request: DataRequest) -> tuple[DataColumns, list[str]]:
    """Return the columns of the training file, and a note if the user did not give them.

    Raises:
        InputError: A named column is missing, or the choice is not clear.
    """
    describe = partial(described_columns, table)
    media = media_column(table, request)
    labels = label_columns(
        table.columns, request.label_columns, origin=table.origin, describe=describe
    )
    parser = LabelParser(labels, request.several_labels, request.label_separator)
    extra = extra_columns(request)
    if media is not None:
        column, kind = media
        note = f"{kind.capitalize()}s are read from {column!r}, labels from {quoted(labels[0])}."
        return DataColumns((column,), parser, kind, extra), [note]
    inputs = text_columns(
        table.columns, request, labels=labels, origin=table.origin, describe=describe
    )
    notes = []
    if request.label_columns is None or request.text_columns is None:
        notes.append(
            f"Texts are read from {' and '.join(map(repr, inputs))}, labels from "
            f"{quoted_list(labels)}."
        )
    return DataColumns(inputs, parser, extra=extra), notes
