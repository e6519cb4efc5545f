"""JSON Lines files, and JSON arrays of objects."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ampft.data.sources.delimited import opened_text
from ampft.data.sources.table import SAMPLE_ROWS, Row, SourceTable
from ampft.errors import InputError, quoted, quoted_list

CHARACTERS_AT_A_TIME = 2**20
BLANKS = " \t\r\n"
EXPECTED = "The file must hold one object per line, or one array of objects."


def read_json(path: Path, *, encoding: str) -> SourceTable:
    """Open a file that has one JSON object per line, or one array of objects.

    The array can also be the value of the only key of an object, as in `{"data": [...]}`; a note
    says so. The columns are the keys of the first 1,000 objects. A key that an object lacks is a
    missing cell.

    Raises:
        InputError: The file has no objects. Reading a row raises it for invalid JSON, a value that
            is not an object, and a duplicate key; the message names file and line (in an array,
            file and row).
    """
    with opened_text(path, encoding) as file:
        start = ""
        while not start and (part := file.read(CHARACTERS_AT_A_TIME)):
            start = part.lstrip(BLANKS)
    is_array = start.startswith("[")
    key = None if is_array else wrapping_key(path, encoding)
    unit = "row" if is_array or key is not None else "line"

    def objects() -> Iterator[tuple[int, dict[str, Any]]]:
        with opened_text(path, encoding) as file:
            numbered: Iterable[tuple[int, Any]]
            if unit == "row":
                content = decode(file.read(), path)
                numbered = enumerate(content if key is None else content[key], start=1)
            else:
                lines = ((n, text) for n, text in enumerate(file, start=1) if text.strip(BLANKS))
                numbered = ((number, decode(text, path, number)) for number, text in lines)
            for number, item in numbered:
                if not isinstance(item, dict):
                    raise InputError(
                        f"{path}, {unit} {number}: received {type(item).__name__}. {EXPECTED}"
                    )
                yield number, item

    columns = tuple(dict.fromkeys(k for _, o in islice(objects(), SAMPLE_ROWS) for k in o))
    if not columns:
        raise InputError(f"{path}: the file has no JSON objects. {EXPECTED}")

    def read(names: Sequence[str]) -> Iterator[Row]:
        for number, item in objects():
            yield number, [item.get(name) for name in names]

    notes = () if key is None else (f"{path}: the rows are read from the key {quoted(key)}.",)
    return SourceTable(columns=columns, read=read, unit=unit, origin=str(path), notes=notes)


def wrapping_key(path: Path, encoding: str) -> str | None:
    """Return the key of a file that is one object with a list of objects; None for JSON Lines.

    Raises:
        InputError: The object has other keys too.
    """
    with opened_text(path, encoding) as file:
        lines = (line for line in file if line.strip(BLANKS))
        try:
            item = decode(next(lines, ""), path, 1)
            is_only = next(lines, None) is None
        except InputError:  # the object may span several lines
            file.seek(0)
            try:
                item, is_only = decode(file.read(), path, 1), True
            except InputError:  # whoever reads the lines reports it
                return None
    if not isinstance(item, dict) or not is_only:
        return None
    lists = [
        key
        for key, value in item.items()
        if isinstance(value, list) and value and all(isinstance(each, dict) for each in value)
    ]
    if lists and len(item) > 1:
        raise InputError(
            f"{path}: the file is one object with the keys {quoted_list(item)}."
            f" {EXPECTED} Save the list in {quoted_list(lists, separator=' or ')} as a file."
        )
    return lists[0] if lists else None


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
