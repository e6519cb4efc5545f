"""JSON Lines files, and JSON arrays of objects."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from ampft.data.sources.delimited import decoding_errors, without_mark
from ampft.data.sources.table import SAMPLE_ROWS, Row, Table
from ampft.errors import InputError, quoted, quoted_list

CHARACTERS_AT_A_TIME = 2**20
BLANKS = " \t\r\n"
EXPECTED = "The file must hold one object per line, or one array of objects."
Numbered = tuple[int, dict[str, Any]]


def read_json(path: Path, *, encoding: str) -> Table:
    """Open a file that has one JSON object per line, or one array of objects.

    The array can also be the value of the only key of an object, as in `{"data": [...]}`; a note
    says so. The columns are the keys of the first 1,000 objects. A key that an object lacks is a
    missing cell.

    Raises:
        InputError: The file has no objects. Reading a row raises it for invalid JSON, a value that
            is not an object, and a duplicate key; the message names file and line (in an array,
            file and row).
    """
    is_array = starts_with_bracket(path, encoding)
    key = None if is_array else wrapping_key(path, encoding)

    def objects() -> Iterator[Numbered]:
        with decoding_errors(path, encoding), path.open(encoding=without_mark(encoding)) as file:
            if is_array or key is not None:
                yield from array_objects(file, path, key)
            else:
                yield from line_objects(file, path)

    columns = tuple(dict.fromkeys(k for _, o in islice(objects(), SAMPLE_ROWS) for k in o))
    if not columns:
        raise InputError(f"{path}: the file has no JSON objects. {EXPECTED}")

    def read(names: Sequence[str]) -> Iterator[Row]:
        for number, item in objects():
            yield number, [item.get(name) for name in names]

    return Table(
        columns=columns,
        read=read,
        unit="row" if is_array or key is not None else "line",
        origin=str(path),
        notes=() if key is None else (f"{path}: the rows are read from the key {quoted(key)}.",),
    )


def starts_with_bracket(path: Path, encoding: str) -> bool:
    """Return whether the first character that is not white space starts an array."""
    with decoding_errors(path, encoding), path.open(encoding=without_mark(encoding)) as file:
        while part := file.read(CHARACTERS_AT_A_TIME):
            if part.strip(BLANKS):
                return part.lstrip(BLANKS).startswith("[")
    return False


def wrapping_key(path: Path, encoding: str) -> str | None:
    """Return the key of a file that is one object with a list of objects; None for JSON Lines.

    Raises:
        InputError: The object has other keys too.
    """
    item = only_object(path, encoding)
    lists = [key for key, value in item.items() if is_list_of_objects(value)]
    if not lists:
        return None
    if len(item) > 1:
        raise InputError(
            f"{path}: the file is one object with the keys {quoted_list(item)}."
            f" {EXPECTED} Save the list in {quoted_list(lists, separator=' or ')} as a file."
        )
    return lists[0]


def only_object(path: Path, encoding: str) -> dict[str, Any]:
    """Return the file's only object, or an empty one if the file holds anything else."""
    with decoding_errors(path, encoding), path.open(encoding=without_mark(encoding)) as file:
        first = next((line for line in file if line.strip(BLANKS)), "")
        try:
            item = decode(first, path, 1)
            rest = next((line for line in file if line.strip(BLANKS)), None)
        except InputError:  # the object may span several lines
            file.seek(0)
            try:
                item, rest = decode(file.read(), path, 1), None
            except InputError:  # whoever reads the lines reports it
                return {}
    return item if isinstance(item, dict) and rest is None else {}


def is_list_of_objects(value: object) -> bool:
    """Return whether a value is a list of objects, and not empty."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, dict) for v in value)


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; for duplicate keys, json would silently use the last value."""
    item = dict(pairs)
    if len(item) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        duplicates = sorted(key for key, count in counts.items() if count > 1)
        raise KeyError(quoted_list(duplicates))
    return item


DECODER = json.JSONDecoder(object_pairs_hook=unique_keys)


def decode(content: str, path: Path, line: int | None = None) -> Any:
    """Return the value of a JSON text.

    Args:
        content: The text.
        path: Its file, for the messages.
        line: Line of the file on which it starts; None if it is the whole file.

    Raises:
        InputError: It is not valid JSON, has a duplicate key, or is too large to read.
    """
    location = str(path) if line is None else f"{path}, line {line}"
    try:
        return DECODER.decode(content)
    except json.JSONDecodeError as error:
        location = f"{path}, line {error.lineno if line is None else line}"
        raise InputError(f"{location}: not valid JSON ({error.msg}). {EXPECTED}") from None
    except KeyError as error:
        raise InputError(f"{location}: duplicate key {error.args[0]} in an object.") from None
    except RecursionError:
        raise InputError(f"{location}: values are nested too deeply. {EXPECTED}") from None
    except ValueError:  # Python's limit on the digits of integers
        digits = sys.get_int_max_str_digits()
        raise InputError(
            f"{location}: a number has more than {digits:,} digits. Write it as a string."
        ) from None


def line_objects(file: TextIO, path: Path) -> Iterator[Numbered]:
    """Yield (line, object) of JSON Lines; blank lines are skipped."""
    for number, content in enumerate(file, start=1):
        if content.strip(BLANKS):
            item = decode(content, path, number)
            yield number, as_object(item, f"{path}, line {number}")


def array_objects(file: TextIO, path: Path, key: str | None) -> Iterator[Numbered]:
    """Yield (row, object) of a file that is one JSON array, or an object with one at `key`."""
    content = decode(file.read(), path)
    items = content if key is None else content[key]
    for number, item in enumerate(items, start=1):
        yield number, as_object(item, f"{path}, row {number}")


def as_object(item: object, location: str) -> dict[str, Any]:
    """Return `item`, or raise InputError if it is not an object."""
    if not isinstance(item, dict):
        raise InputError(f"{location}: received {type(item).__name__}. {EXPECTED}")
    return item
