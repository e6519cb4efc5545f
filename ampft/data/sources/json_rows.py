"""JSON Lines files and JSON arrays of objects, object by object."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from ampft.data.sources.delimited import undecodable, with_mark
from ampft.data.sources.table import ROWS_LOOKED_AT, Row, Table, shown
from ampft.errors import InputError

CHARACTERS_AT_A_TIME = 2**20
BLANKS = " \t\r\n"
WANTED = "Wanted is one object per line, or one array of objects."
Numbered = tuple[int, dict[str, Any]]


def read_json(path: Path, *, encoding: str) -> Table:
    """Open a file that has one JSON object per line, or one array of objects.

    Its columns are the keys of the first 1,000 objects; a key that an object lacks is a missing
    cell.

    Raises:
        InputError: For a file without objects at once; while rows are read, for what is not JSON,
            not an object, or has a key twice, with file and line (of an array: file and row).
    """

    def objects() -> Iterator[Numbered]:
        try:
            with path.open(encoding=with_mark(encoding)) as file:
                yield from array_items(file, path) if is_array else lines(file, path)
        except UnicodeError as error:
            raise InputError(undecodable(path, encoding, error)) from None

    is_array = starts_with_bracket(path, encoding)
    columns = tuple(dict.fromkeys(k for _, o in islice(objects(), ROWS_LOOKED_AT) for k in o))
    if not columns:
        raise InputError(f"{path}: the file has no JSON objects; one per example is wanted.")

    def read(names: Sequence[str]) -> Iterator[Row]:
        for number, item in objects():
            yield number, [item.get(name) for name in names]

    unit = "row" if is_array else "line"
    return Table(columns=columns, read=read, unit=unit, origin=str(path))


def starts_with_bracket(path: Path, encoding: str) -> bool:
    """Tell an array from JSON Lines by the first character that is no blank."""
    try:
        with path.open(encoding=with_mark(encoding)) as file:
            while part := file.read(CHARACTERS_AT_A_TIME):
                if part.strip(BLANKS):
                    return part.lstrip(BLANKS).startswith("[")
    except UnicodeError as error:
        raise InputError(undecodable(path, encoding, error)) from None
    except LookupError:
        raise InputError(f"--encoding: got {encoding!r}, which no codec of Python has.") from None
    return False


def no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; of a key that stands twice, json would silently take the last."""
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        raise KeyError(", ".join(map(shown, twice)))
    return found


DECODER = json.JSONDecoder(object_pairs_hook=no_key_twice)


def lines(file: TextIO, path: Path) -> Iterator[Numbered]:
    """Yield (line, object) of JSON Lines; blank lines are read over."""
    for number, content in enumerate(file, start=1):
        if content.strip(BLANKS):
            place = f"{path}, line {number}"
            try:
                item = DECODER.decode(content)
            except json.JSONDecodeError as error:
                raise InputError(f"{place}: not JSON ({error.msg}). {WANTED}") from None
            except KeyError as error:
                raise InputError(f"{place}: a key stands twice: {error.args[0]}.") from None
            yield number, as_object(item, place)


def array_items(file: TextIO, path: Path) -> Iterator[Numbered]:
    """Yield (row, object) of the JSON array that makes up the whole file."""
    try:
        items = DECODER.decode(file.read())
    except json.JSONDecodeError as error:
        where = f"{path}, line {error.lineno}"
        raise InputError(f"{where}: not JSON ({error.msg}). {WANTED}") from None
    except KeyError as error:
        raise InputError(f"{path}: a key stands twice in one object: {error.args[0]}.") from None
    for number, item in enumerate(items, start=1):
        yield number, as_object(item, f"{path}, row {number}")


def as_object(item: object, place: str) -> dict[str, Any]:
    """Return a decoded object, or say where something else stands."""
    if not isinstance(item, dict):
        raise InputError(f"{place}: found {type(item).__name__}. {WANTED}")
    return item
