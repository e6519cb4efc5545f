"""JSON Lines files, and JSON arrays of objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from ampft.data.sources.delimited import decoding_errors, without_mark
from ampft.data.sources.table import SAMPLE_ROWS, Row, Table, quoted
from ampft.errors import InputError

CHARACTERS_AT_A_TIME = 2**20
BLANKS = " \t\r\n"
EXPECTED = "The file must hold one object per line, or one array of objects."
Numbered = tuple[int, dict[str, Any]]


def read_json(path: Path, *, encoding: str) -> Table:
    """Open a file that has one JSON object per line, or one array of objects.

    The columns are the keys of the first 1,000 objects. A key that an object lacks is a missing
    cell.

    Raises:
        InputError: At once if the file has no objects. While rows are read, for invalid JSON, a
            value that is not an object, and a duplicate key; the message names file and line (in
            an array, file and row).
    """

    def objects() -> Iterator[Numbered]:
        with decoding_errors(path, encoding), path.open(encoding=without_mark(encoding)) as file:
            yield from array_objects(file, path) if is_array else line_objects(file, path)

    is_array = starts_with_bracket(path, encoding)
    columns = tuple(dict.fromkeys(k for _, o in islice(objects(), SAMPLE_ROWS) for k in o))
    if not columns:
        raise InputError(f"{path}: the file has no JSON objects. {EXPECTED}")

    def read(names: Sequence[str]) -> Iterator[Row]:
        for number, item in objects():
            yield number, [item.get(name) for name in names]

    unit = "row" if is_array else "line"
    return Table(columns=columns, read=read, unit=unit, origin=str(path))


def starts_with_bracket(path: Path, encoding: str) -> bool:
    """Return whether the first character that is not white space starts an array."""
    with decoding_errors(path, encoding), path.open(encoding=without_mark(encoding)) as file:
        while part := file.read(CHARACTERS_AT_A_TIME):
            if part.strip(BLANKS):
                return part.lstrip(BLANKS).startswith("[")
    return False


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; for duplicate keys, json would silently use the last value."""
    item = dict(pairs)
    if len(item) != len(pairs):
        keys = [key for key, _ in pairs]
        duplicates = sorted({key for key in keys if keys.count(key) > 1})
        raise KeyError(", ".join(map(quoted, duplicates)))
    return item


DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)


def line_objects(file: TextIO, path: Path) -> Iterator[Numbered]:
    """Yield (line, object) of JSON Lines; blank lines are skipped."""
    for number, content in enumerate(file, start=1):
        if content.strip(BLANKS):
            location = f"{path}, line {number}"
            try:
                item = DECODER.decode(content)
            except json.JSONDecodeError as error:
                raise InputError(f"{location}: not valid JSON ({error.msg}). {EXPECTED}") from None
            except KeyError as error:
                raise InputError(f"{location}: duplicate key {error.args[0]}.") from None
            yield number, as_object(item, location)


def array_objects(file: TextIO, path: Path) -> Iterator[Numbered]:
    """Yield (row, object) of a file that is one JSON array."""
    try:
        items = DECODER.decode(file.read())
    except json.JSONDecodeError as error:
        location = f"{path}, line {error.lineno}"
        raise InputError(f"{location}: not valid JSON ({error.msg}). {EXPECTED}") from None
    except KeyError as error:
        raise InputError(f"{path}: duplicate key {error.args[0]} in an object.") from None
    for number, item in enumerate(items, start=1):
        yield number, as_object(item, f"{path}, row {number}")


def as_object(item: object, location: str) -> dict[str, Any]:
    """Return `item`, or raise InputError if it is not an object."""
    if not isinstance(item, dict):
        raise InputError(f"{location}: received {type(item).__name__}. {EXPECTED}")
    return item
