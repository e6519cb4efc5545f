"""Rows of a table: checked, and written to an Arrow file on disk, so that memory does not grow."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset

from ampft.data.columns import DataColumns, InputColumns
from ampft.data.labelled_rows import LabelledRows
from ampft.data.media import MEDIA
from ampft.data.request import DataRequest
from ampft.data.row_collector import RowCollector
from ampft.data.sources.source_table import BYTE_ORDER_MARK, SourceTable, as_text
from ampft.errors import InputError
from ampft.ownership import temporary_folder

ROWS_AT_A_TIME = 4096
FILE_TYPE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def read_rows(table: SourceTable, columns: DataColumns, request: DataRequest) -> LabelledRows:
    """Check the rows of one file or split, and keep the usable ones.

    Texts and the files of images and sounds are written to an Arrow file. Images and sounds of a
    data set are selected from it, because they can be large.

    Raises:
        InputError: A cell cannot be read, or a row without text or label is not allowed; the
            message names the rows.
    """
    inputs, media = columns.of_table(table.columns), MEDIA.get(columns.kind)
    labels, folder = columns.labels, Path(table.origin).parent
    # A split can declare its classes in another order than training does.
    if not labels.numbers:
        labels = replace(labels, declared=table.classes)
        columns = replace(columns, labels=labels)
    collector = RowCollector(table, columns, request)
    count, extra = len(inputs.sources), columns.extra

    def usable() -> Iterator[tuple[int, list[Any]]]:
        names = [*inputs.sources, *extra.values(), *labels.columns]
        header = {name: (name, BYTE_ORDER_MARK + name) for name in names}
        for row, (number, values) in enumerate(table.read(names)):
            place = table.place(number)
            if all(value in header[name] for name, value in zip(names, values, strict=True)):
                raise InputError(f"{place}: the header is repeated. Remove this {table.unit}.")
            cells: list[Any]
            if media is None:
                cells = _texts(inputs, values[:count], place)
            else:
                cells = [as_file(values[0], folder) if table.dataset is None else values[0]]
            others = zip(extra.values(), values[count:], strict=False)
            cells += [as_text(value, place, name) for name, value in others]
            found = labels.parse(values[count + len(extra) :], place)
            if collector.add(number, cells[: len(columns.inputs)], found):
                yield row, cells

    if media is not None and table.dataset is not None:
        # Without the files, which can be large.
        rows = [(row, cells[1:]) for row, cells in usable()]
        kept = _selected(table.dataset, columns, rows)
    else:
        files = () if media is None else columns.inputs
        kept = write_arrow((cells for _, cells in usable()), (*columns.inputs, *extra), files=files)
        for name in files:
            kept = kept.cast_column(name, MEDIA[columns.kind].column_type)
    return collector.finish(kept, declared=labels.classes)


def _texts(inputs: InputColumns, values: Sequence[object], place: str) -> list[str | None]:
    """Return the texts of a row."""
    try:
        return inputs.texts(values, place)
    except InputError as error:
        if not any(isinstance(value, list | tuple) for value in values):
            raise
        raise InputError(f"{error} For words with tags, add --task tokens.") from None


def _selected(dataset: Dataset, columns: DataColumns, rows: list[tuple[int, list[Any]]]) -> Dataset:
    """Return the files of some rows of a data set, with the cells of their extra columns.

    Args:
        rows: Index and extra cells of each row.
    """
    kept = dataset.select_columns(list(columns.inputs))
    for position, name in enumerate(columns.extra):
        values: list[Any] = [None] * len(kept)
        for row, extra in rows:
            values[row] = extra[position]
        kept = kept.add_column(name, values)
    return kept if len(rows) == len(kept) else kept.select([row for row, _ in rows])


def as_file(cell: object, folder: Path) -> dict[str, object] | None:
    """Return a cell as a dictionary of `bytes` and `path`; None if it is missing.

    Args:
        cell: A path, bytes, or a dictionary with bytes or a path.
    """
    content = cell.get("bytes") if isinstance(cell, dict) else None
    name = cell.get("path") if isinstance(cell, dict) else cell
    if isinstance(cell, bytes):
        return {"bytes": cell, "path": None}
    if isinstance(content, bytes):
        return {"bytes": content, "path": name}
    if not isinstance(name, str) or not name.strip():
        return None
    path = folder / name
    if "\\" in name and not path.exists():  # written on Windows
        path = folder / name.replace("\\", "/")
    return {"bytes": None, "path": str(path)}


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
        names: Columns, of strings except for `files` and `lists`.
        files: Columns of dictionaries with `bytes` and `path`.
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
