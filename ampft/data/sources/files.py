"""Inputs and labels from CSV, TSV, JSON, JSON Lines, Parquet and Excel files.

Inputs are texts, or images or sounds: paths relative to the folder of the file, or their bytes.

Rows are written to an Arrow file on disk in batches, so that memory use does not grow with them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from datasets import Dataset

from ampft.data.columns import (
    INPUT_FLAGS,
    DataColumns,
    column_renames,
    expected_names,
    label_columns,
    renaming_notes,
    require,
    text_choices,
    text_columns,
)
from ampft.data.input_columns import InputColumns
from ampft.data.label_parser import LabelParser
from ampft.data.media import MEDIA, kind_of_file
from ampft.data.request import DataRequest
from ampft.data.row_collector import LabelledRows, RowCollector, concatenated
from ampft.data.sources import conll
from ampft.data.sources.delimited import read_csv, read_tsv
from ampft.data.sources.file_names import check_file
from ampft.data.sources.json_rows import read_json
from ampft.data.sources.parquet import read_parquet
from ampft.data.sources.table import Table, as_text, described_columns
from ampft.data.sources.workbook import SUFFIXES, read_workbook
from ampft.errors import InputError, quoted, quoted_list
from ampft.ownership import temporary_folder


class Reader(Protocol):
    """Opens a file of one format."""

    def __call__(self, path: Path, *, encoding: str) -> Table:
        """Read the header of `path` and return the table."""


READERS: dict[str, Reader] = {
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
ROWS_AT_A_TIME = 4096
MEDIA_ROWS = 20  # whose cells tell whether a column has images or sounds
FILE_TYPE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
UNREAD_WORKBOOKS = (".xlsb", ".xls", ".ods")
OLE_MAGIC = bytes.fromhex("d0cf11e0a1b11ae1")  # .xls: Compound File Binary, section 2.2
ZIP_MAGIC = b"PK\x03\x04"  # .xlsx and .ods are ZIP archives


def open_table(
    path: Path,
    *,
    flag: str,
    encoding: str,
    sheet: str | None = None,
    other_reader: Reader | None = None,
) -> Table:
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
    if is_workbook(path):
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


def is_workbook(path: Path) -> bool:
    """Return whether a file is a workbook of Excel or LibreOffice, by content or by name."""
    if path.suffix.lower() in UNREAD_WORKBOOKS:
        return True
    with path.open("rb") as file:
        start = file.read(len(OLE_MAGIC))
    return start == OLE_MAGIC or start.startswith(ZIP_MAGIC)


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
    tables = {
        split: [
            open_table(path, flag=FLAGS[split], encoding=request.encoding, sheet=request.sheet_name)
            for path in paths
        ]
        for split, paths in request.paths().items()
    }
    train = tables["train"][0]
    tables["train"][0] = rename_columns(
        train,
        expected_names(
            train.columns, texts=request.text_column_names, labels=request.label_column_names
        ),
    )
    first = tables["train"][0]
    columns, notes = choose_columns(first, request, media_column(first, request))
    rows, empty = {}, []
    for split, parts in tables.items():
        sources = InputColumns.of(columns.inputs, parts[0].columns).sources
        parts[:] = [rename_columns(table, (*sources, *columns.labels.columns)) for table in parts]
        for table in parts:
            columns.require_in(table.columns, origin=table.origin)
        name = str(request.files[split])
        read_parts = [read_rows(table, columns, request) for table in parts]
        empty += [
            t.origin for t, part in zip(parts, read_parts, strict=True) if not len(part.inputs)
        ]
        rows[split] = concatenated(read_parts, name)
    read = [note for parts in tables.values() for table in parts for note in table.notes]
    counts = [
        f"{request.files[split]}: {len(parts)} files, from {parts[0].origin} to {parts[-1].origin}."
        for split, parts in tables.items()
        if len(parts) > 1
    ]
    counts += [f"{name}: no rows of this file are used." for name in empty]
    return rows, columns, [*counts, *read, *notes]


def rename_columns(table: Table, expected: Sequence[str]) -> Table:
    """Return the table with the expected names for columns that differ only in case or spaces."""
    names = column_renames(table.columns, expected)
    return table.renamed(names, renaming_notes(names, table.origin)) if names else table


def media_column(table: Table, request: DataRequest) -> tuple[str, str] | None:
    """Return the column of images or sounds and their kind; None if the inputs are texts.

    Without a flag or task that says so, it is the only column whose first cells are all files of
    one kind, in a file without a usual text column.

    Raises:
        InputError: The named column is missing, the task needs such a column and the file has
            none, or there are several.
    """
    describe = lambda: described_columns(table)  # noqa: E731
    for kind, column in request.named_media.items():
        require((column,), table.columns, INPUT_FLAGS[kind], origin=table.origin, describe=describe)
        return column, kind
    if request.text_column_names or request.data_kind not in (None, *MEDIA):
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
        f"{flag}: {table.origin} has {problem}. Its columns: {describe()}. Name the right one."
    )


def media_cells(table: Table) -> dict[str, str]:
    """Return the kind of each column whose first cells are images or sounds: bytes, or paths."""
    rows = [cells for _, cells in islice(table.read(table.columns), MEDIA_ROWS)]
    found = {}
    for column, cells in zip(table.columns, zip(*rows, strict=True), strict=False):
        kinds = {kind_of_cell(cell) for cell in cells if cell not in (None, "")}
        if len(kinds) == 1 and (kind := kinds.pop()) is not None:
            found[column] = kind
    return found


def kind_of_cell(cell: object) -> str | None:
    """Return the kind of a file by its name: a path, or a dictionary with bytes and path."""
    name = cell.get("path") if isinstance(cell, dict) else cell
    return kind_of_file(name) if isinstance(name, str) and "://" not in name else None


def as_file(cell: object, folder: Path) -> dict[str, object] | None:
    """Return a cell as a dictionary of `bytes` and `path`; None if it is missing.

    Args:
        cell: A path, or a dictionary with bytes or a path.
        folder: Folder to which paths are relative.
    """
    content = cell.get("bytes") if isinstance(cell, dict) else None
    name = cell.get("path") if isinstance(cell, dict) else cell
    if isinstance(content, bytes):
        return {"bytes": content, "path": name}
    if not isinstance(name, str) or not name.strip():
        return None
    return {"bytes": None, "path": str(folder / name)}


def choose_columns(
    table: Table, request: DataRequest, media: tuple[str, str] | None = None
) -> tuple[DataColumns, list[str]]:
    """Return the columns of the training file, and a note if the user did not name them.

    Args:
        table: The training file.
        request: The user's choices.
        media: Column of images or sounds, and their kind; None if the inputs are texts.
    """

    def describe() -> str:
        return described_columns(table)

    labels = label_columns(
        table.columns, request.label_column_names, origin=table.origin, describe=describe
    )
    parser = LabelParser(labels, request.several_labels, request.label_separator)
    if media is not None:
        column, kind = media
        note = f"{kind.capitalize()}s are read from {column!r}, labels from {quoted(labels[0])}."
        return DataColumns((column,), parser, kind, request.group_column, request.id_column), [note]
    named_texts = request.text_column_names is not None
    inputs = text_columns(
        [name for name in table.columns if named_texts or name not in request.not_texts],
        request.text_column_names,
        labels=labels,
        origin=table.origin,
        describe=describe,
    )
    notes = []
    if request.label_column_names is None or request.text_column_names is None:
        notes.append(
            f"Texts are read from {' and '.join(map(repr, inputs))}, labels from "
            f"{quoted_list(labels)}."
        )
    columns = DataColumns(inputs, parser, group=request.group_column, id=request.id_column)
    return columns, notes


def read_rows(table: Table, columns: DataColumns, request: DataRequest) -> LabelledRows:
    """Check the rows of one file, and write the usable ones to an Arrow file."""
    inputs = InputColumns.of(columns.inputs, table.columns)
    count, extra = len(inputs.sources), columns.extra
    folder, is_text = Path(table.origin).parent, columns.kind == "text"
    collector = RowCollector(origin=table.origin, unit=table.unit, columns=columns, request=request)

    def usable() -> Iterator[Sequence[Any]]:
        names = (*inputs.sources, *extra.values(), *columns.labels.columns)
        for number, values in table.read(names):
            row = f"{table.origin}, {table.unit} {number}"
            cells: list[Any] = (
                [*inputs.texts(values[:count], row)] if is_text else [as_file(values[0], folder)]
            )
            others = [
                as_text(value, row, name)
                for name, value in zip(extra.values(), values[count:], strict=False)
            ]
            labels = columns.labels.parse(values[count + len(extra) :], row)
            if collector.add(number, cells, labels):
                yield [*cells, *others]

    files = () if is_text else columns.inputs
    written = write_arrow(usable(), (*columns.inputs, *extra), files=files)
    for name in files:
        written = written.cast_column(name, MEDIA[columns.kind].column_type)
    return collector.finish(written, declared=columns.labels.classes)


def write_arrow(
    rows: Iterator[Sequence[Any]],
    names: tuple[str, ...],
    *,
    files: Collection[str] = (),
    lists: Collection[str] = (),
) -> Dataset:
    """Write columns to a temporary Arrow file and return it, mapped into memory.

    `TMPDIR` sets its folder; the file is removed when the process ends.

    Args:
        rows: The rows.
        names: Columns, of strings except for `files` and `lists`.
        files: Columns of dictionaries with `bytes` and `path`.
        lists: Columns of lists of strings.
    """
    path = temporary_folder("data") / "rows.arrow"
    types = {**dict.fromkeys(files, FILE_TYPE), **dict.fromkeys(lists, pa.list_(pa.string()))}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in names])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        while batch := list(islice(rows, ROWS_AT_A_TIME)):
            columns = [
                pa.array(column, field.type)
                for column, field in zip(zip(*batch, strict=True), schema, strict=True)
            ]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return Dataset.from_file(str(path))
