"""Texts and labels from CSV, TSV, JSON, JSON Lines and Parquet files.

Rows go from the file to an Arrow file on disk in batches, so that memory does not grow with them.
"""

from __future__ import annotations

import atexit
import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from datasets import Dataset
from filelock import FileLock, Timeout

from ampft.data.columns import label_columns, require, text_columns
from ampft.data.intake import Intake, LabelledRows, places
from ampft.data.label_cells import LabelCells
from ampft.data.request import DataRequest
from ampft.data.sources.delimited import read_csv, read_tsv
from ampft.data.sources.json_rows import read_json
from ampft.data.sources.parquet import read_parquet
from ampft.data.sources.table import Table, as_text, described_columns
from ampft.errors import InputError


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
}
FLAGS = {"train": "--train_file", "validation": "--validation_file", "test": "--test_file"}
LOCK_NAME = ".lock"  # of a temporary folder
SECONDS_TO_LOCK = 5  # a younger folder may not be locked yet
ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class FileColumns:
    """The columns that were named or found in the training file."""

    inputs: tuple[str, ...]
    labels: LabelCells


def open_table(path: Path, *, flag: str, encoding: str) -> Table:
    """Open a file by its ending.

    Args:
        path: The file.
        flag: The argument that named it, for the messages.
        encoding: Of CSV, TSV and JSON.

    Raises:
        InputError: When there is no such file, its ending is unknown, or it cannot be read.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(
            f"{flag}: got {path}; files that end in {', '.join(READERS)} are read. Rename or"
            " convert it."
        )
    if not path.is_file():
        raise InputError(f"{flag}: there is no file {path}.")
    return reader(path, encoding=encoding)


def load_files(request: DataRequest) -> tuple[dict[str, LabelledRows], FileColumns, list[str]]:
    """Read the files of a request.

    Args:
        request: Has a training file.

    Returns:
        Rows by split, their columns, and notes.

    Raises:
        InputError: For a file or a row that cannot be read, with its place.
    """
    if request.train_file is None:
        given = ", ".join(FLAGS[split] for split in request.files)
        raise InputError(
            f"--train_file: missing; got {given} alone. There is nothing to learn from."
        )
    tables = {
        split: open_table(path, flag=FLAGS[split], encoding=request.encoding)
        for split, path in request.files.items()
    }
    columns, notes = choose_columns(tables["train"], request)
    for table in tables.values():
        refuse_other_columns(table, columns)
    rows = {split: read_rows(table, columns, request) for split, table in tables.items()}
    return rows, columns, notes


def choose_columns(table: Table, request: DataRequest) -> tuple[FileColumns, list[str]]:
    """Return the columns of the training file, and a note when they were not named."""

    def describe() -> str:
        return described_columns(table)

    labels = label_columns(
        table.columns, request.label_column_names, origin=table.origin, describe=describe
    )
    inputs = text_columns(
        table.columns,
        request.text_column_names,
        labels=labels,
        origin=table.origin,
        describe=describe,
    )
    notes = []
    if request.label_column_names is None or request.text_column_names is None:
        notes.append(
            f"Texts are read from {' and '.join(map(repr, inputs))}, labels from "
            f"{', '.join(map(repr, labels))}."
        )
    cells = LabelCells(labels, request.several_labels, request.label_separator)
    return FileColumns(inputs=inputs, labels=cells), notes


def refuse_other_columns(table: Table, columns: FileColumns) -> None:
    """Raise InputError when a file lacks a column that the training file has."""
    for names, flag in (
        (columns.inputs, "--text_column_names"),
        (columns.labels.columns, "--label_column_name"),
    ):
        require(
            names,
            table.columns,
            flag,
            origin=table.origin,
            describe=lambda: ", ".join(map(repr, table.columns)),
        )


def read_rows(table: Table, columns: FileColumns, request: DataRequest) -> LabelledRows:
    """Read the rows of one file into an Arrow file, checking each."""
    count = len(columns.inputs)
    names = (*columns.inputs, *columns.labels.columns)
    intake = Intake(
        origin=table.origin,
        unit=table.unit,
        inputs=columns.inputs,
        labels=columns.labels.columns,
        drop_missing_text=request.drop_missing_text,
        ignore_labels=request.ignore_labels,
    )

    def kept() -> Iterator[Sequence[str | None]]:
        for number, values in table.read(names):
            place = f"{table.origin}, {table.unit} {number}"
            inputs = [as_text(value, place) for value in values[:count]]
            if intake.take(number, inputs, columns.labels.read(values[count:], place)):
                yield inputs

    return intake.finish(on_disk(kept(), columns.inputs), declared=columns.labels.classes)


def load_texts(
    path: Path,
    *,
    text_column_names: tuple[str, ...],
    encoding: str = "utf-8",
) -> Dataset:
    """Read texts without labels, every row, for prediction.

    Args:
        path: A file of any format above.
        text_column_names: One column, or two for pairs.
        encoding: Of CSV, TSV and JSON.

    Returns:
        The columns named, strings, in the file's order.

    Raises:
        InputError: For a missing column, and for a missing text with its place.
    """
    table = open_table(path, flag="FILE", encoding=encoding)
    require(
        text_column_names,
        table.columns,
        "--text_column_names",
        origin=table.origin,
        describe=lambda: described_columns(table),
    )
    missing: list[int] = []

    def rows() -> Iterator[Sequence[str | None]]:
        for number, values in table.read(text_column_names):
            texts = [as_text(value, f"{path}, {table.unit} {number}") for value in values]
            if None in texts:
                missing.append(number)
            yield texts

    texts = on_disk(rows(), text_column_names)
    if missing:
        raise InputError(
            f"{places(table.origin, table.unit, missing)}: nothing in column"
            f" {', '.join(map(repr, text_column_names))}. Fill the cells or remove the rows."
        )
    return texts


def on_disk(rows: Iterator[Sequence[str | None]], names: tuple[str, ...]) -> Dataset:
    """Write columns of strings to a temporary Arrow file and return it, mapped into memory.

    The file is removed when the process ends; `TMPDIR` says where it lies.
    """
    folder = _temporary_folder()
    path = folder / "rows.arrow"
    schema = pa.schema([(name, pa.string()) for name in names])
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        while batch := list(islice(rows, ROWS_AT_A_TIME)):
            columns = [pa.array(column, pa.string()) for column in zip(*batch, strict=True)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return Dataset.from_file(str(path))


def _temporary_folder() -> Path:
    """Return a new folder that is removed at exit, and remove those of killed processes."""
    for folder in Path(tempfile.gettempdir()).glob("ampft-data-*"):
        with contextlib.suppress(OSError):
            _remove_if_abandoned(folder)
    folder = Path(tempfile.mkdtemp(prefix="ampft-data-"))
    # The system releases the lock when the process ends, for whatever reason.
    lock = FileLock(folder / LOCK_NAME, blocking=False)
    lock.acquire()
    atexit.register(_remove, folder, lock)
    return folder


def _remove(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.release()


def _remove_if_abandoned(folder: Path) -> None:
    lock_file = folder / LOCK_NAME
    if folder.is_symlink() or not lock_file.exists():
        return
    if time.time() - lock_file.stat().st_mtime < SECONDS_TO_LOCK:
        return
    lock = FileLock(lock_file, blocking=False)
    with contextlib.suppress(Timeout), lock:
        shutil.rmtree(folder, ignore_errors=True)
