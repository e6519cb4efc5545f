"""Text files as tables, row by row: CSV and TSV, JSON Lines and JSON."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TextIO

from ampft.data.columns import DELIMITERS, USUAL_NAMES, normalized_name
from ampft.data.extension_points import JSON_OBJECTS
from ampft.data.sources.source_table import (
    BYTE_ORDER_MARK,
    SAMPLE_ROWS,
    NamedColumns,
    Row,
    SourceTable,
)
from ampft.errors import EncodingError, InputError, quoted, quoted_list
from ampft.text.numbers import counted

Quoting = Literal[0, 3]  # csv.QUOTE_MINIMAL, csv.QUOTE_NONE
NAMED_DELIMITER = re.compile(r'"?sep=([^\w\s"\']|\t)"?[,;\t]*\r?\n', re.IGNORECASE)  # of Excel
MAX_FIELD_LENGTH = 16 * 2**20  # characters; csv's default of 131,072 is too few for long documents


def read_csv(path: Path, *, encoding: str) -> SourceTable:
    """Open a comma-separated file (RFC 4180: fields may be quoted, quotes doubled inside).

    Some spreadsheets write semicolons or tabs instead of commas, or name the separator in a first
    line `sep=;`; a note says so.
    """
    with opened_text(path, encoding) as file:
        named = NAMED_DELIMITER.fullmatch(file.readline())
    delimiter = None if named is None else named[1]
    note = f"{path}: the fields are separated by {quoted(delimiter)}, as its first line says."
    if delimiter is None:
        delimiter = _detect_delimiter(path, encoding)
        note = f"{path}: the fields are separated by {DELIMITERS[delimiter]}, not by commas."
    table = _read_delimited(path, encoding=encoding, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL)
    return table if delimiter == "," else replace(table, notes=(note, *table.notes))


def read_tsv(path: Path, *, encoding: str) -> SourceTable:
    """Open a tab-separated file.

    By IANA's definition nothing is quoted, and a quote is a plain character. Many programs quote as
    in CSV: that is how the file is read if its cells show it, and a note says so.
    """
    quoting, note = _quoting_of_tsv(path, encoding)
    table = _read_delimited(path, encoding=encoding, delimiter="\t", quoting=quoting)
    return replace(table, notes=(*note, *table.notes))


def _quoting_of_tsv(path: Path, encoding: str) -> tuple[Quoting, tuple[str, ...]]:
    """Return how the cells of a .tsv file are quoted, and a note if some have quotes around them.

    They are quoted as in CSV if only that gives every row the same number of cells, or if no cell
    has a quote that CSV would have doubled, and quotes are doubled or surround a whole column.
    """
    with path.open("rb") as file:
        if not any(b'"' in line for line in file):
            return csv.QUOTE_NONE, ()
    plain = _QuotesOfTsv.of(path, encoding, csv.QUOTE_NONE)
    as_csv = _QuotesOfTsv.of(path, encoding, csv.QUOTE_MINIMAL)
    if plain.rows and as_csv.rows not in (0, plain.rows):
        raise InputError(
            f"{path}: has {plain.rows} rows if quotes are plain characters, and {as_csv.rows} if"
            " they surround texts. If they surround texts with tabs or line breaks, save the file"
            " as .csv; otherwise replace the quotes."
        )
    note = f"{path}: its cells are quoted as in CSV, so their outer quotes are removed."
    if as_csv.rows and (
        not plain.rows or (not plain.bare and (as_csv.inside or plain.whole_columns))
    ):
        return csv.QUOTE_MINIMAL, (note,)
    kept = f"{path}: {counted(plain.around, 'cell')} with quotes around the text, which are kept."
    return csv.QUOTE_NONE, (kept,) if plain.around else ()


@dataclass(frozen=True)
class _QuotesOfTsv:
    """The quotes in the cells of a .tsv file, read in one of two ways."""

    rows: int = 0  # Number of rows; 0 if they have unequal numbers of cells, or cannot be read.
    around: int = 0  # Number of cells with quotes around them.
    inside: int = 0  # Number of cells with other quotes.
    bare: int = 0  # Number of cells with quotes that CSV would have doubled or surrounded.
    whole_columns: bool = False  # Whether all cells of a column have quotes around them.

    @classmethod
    def of(cls, path: Path, encoding: str, quoting: Quoting) -> _QuotesOfTsv:
        """Read the file."""
        around = inside = bare = length = rows = 0
        whole: list[bool] = []
        try:
            for _, cells in _numbered_rows(
                path, encoding=encoding, delimiter="\t", quoting=quoting
            ):
                rows += 1
                length = length or len(cells)
                if len(cells) != length:
                    return cls(around=around, inside=inside, bare=bare)
                surrounded = [len(c) > 1 and c[0] == c[-1] == '"' for c in cells]
                whole = [a and b for a, b in zip(whole or surrounded, surrounded, strict=True)]
                for cell, is_surrounded in zip(cells, surrounded, strict=True):
                    if '"' not in cell:
                        continue
                    around += is_surrounded
                    inner = cell[1:-1] if is_surrounded else cell
                    inside += '"' in inner
                    bare += not is_surrounded or '"' in inner.replace('""', "")
        except InputError:  # whoever reads the rows reports it
            return cls(around=around, inside=inside, bare=bare)
        return cls(rows, around, inside, bare, any(whole))


def _read_delimited(path: Path, *, encoding: str, delimiter: str, quoting: Quoting) -> SourceTable:
    """Read the header and return the table.

    A byte-order mark, CRLF and blank lines are allowed. Columns without a name are not read, except
    the first one, in which pandas writes an index.

    Raises:
        InputError: The file is empty, or two columns have the same name. Reading a row raises it
            for bytes that the encoding does not have, a row with too few or too many fields,
            an unclosed quote, and NUL; the message names file and line.
    """
    rows = partial(_numbered_rows, path, encoding=encoding, delimiter=delimiter, quoting=quoting)
    header = next(rows(), None)
    if header is None:
        raise InputError(f"{path}: the file is empty. Its first line must be a header.")
    # A file that was saved twice with a mark has two, and `opened_text` removes one.
    names = [name.removeprefix(BYTE_ORDER_MARK) for name in header[1]]
    columns = NamedColumns.of(names, str(path))
    separators = DELIMITERS.get(delimiter, f"{delimiter!r}")
    hint = f"A text with {separators} must be in double quotes."
    if columns.count == 1:
        hint = "Is the first line the header? Remove lines above it."
    if quoting == csv.QUOTE_NONE:
        hint = (
            "In a .tsv file quotes are plain characters, and a text has neither tabs nor line"
            " breaks. If the fields are quoted, save the file as .csv."
        )

    def read(names: Sequence[str]) -> Iterator[Row]:
        indices = [columns.places[name] for name in names]
        for line, values in islice(rows(), 1, None):
            if len(values) != columns.count:
                raise InputError(
                    f"{path}, line {line}: {len(values)} fields, but the header has"
                    f" {columns.count}. {hint}"
                )
            yield line, [values[index] for index in indices]

    notes = columns.unread_note(str(path), (values for _, values in islice(rows(), 1, None)))
    return SourceTable(columns.names, read, unit="line", origin=str(path), notes=notes)


def _detect_delimiter(path: Path, encoding: str) -> str:
    """Return the delimiter that divides the header and the first 1,000 rows of a CSV file.

    It must give at least two columns, and either usual names or the same number of fields in every
    row, or if that does not fit any, in every row up to one that cannot be read, such as one of
    another encoding, which whoever reads the rows then reports. It is a comma if none does.
    """

    def fit(delimiter: str) -> tuple[int, int, bool]:
        rows = _numbered_rows(
            path, encoding=encoding, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL
        )
        header: list[str] = []
        try:
            _, header = next(rows, (0, []))
            if len(header) < 2:
                return 0, 0, False
            sample = islice(rows, SAMPLE_ROWS)
            constant = 2 * all(len(fields) == len(header) for _, fields in sample)
        except InputError:
            if not header:
                return 0, 0, False
            constant = 1
        usual = sum(normalized_name(name) in USUAL_NAMES for name in header)
        return constant, usual, delimiter == ","

    fits = {delimiter: fit(delimiter) for delimiter in DELIMITERS}
    best = max(fits, key=lambda delimiter: fits[delimiter])
    return best if any(fits[best]) else ","


def _order_of_utf16(path: Path) -> str | None:
    """Return the encoding of a file of UTF-16 without a mark; None if it is not one."""
    with path.open("rb") as file:
        start = file.read(4096)
    for order, zeros in (("utf-16-le", start[1::2]), ("utf-16-be", start[::2])):
        if 2 * zeros.count(0) > len(zeros):
            return order
    return None


def _numbered_rows(
    path: Path, *, encoding: str, delimiter: str, quoting: Quoting
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line on which the row starts, fields) for all rows, including the header."""

    def lines() -> Iterator[str]:
        for line, content in enumerate(file, start=1):
            if "\0" in content:
                order = _order_of_utf16(path)
                if order is not None:
                    raise EncodingError(
                        f"{path}, line {line}: a NUL character. The file seems to be UTF-16: pass "
                        f"--encoding {order}.",
                        problem=f"{path}, line {line}: a NUL character, as in UTF-16",
                        likely=order,
                    )
                raise InputError(
                    f"{path}, line {line}: a NUL character. The file is damaged: remove it, or "
                    "copy the file again."
                )
            is_instruction = line == 1 and NAMED_DELIMITER.fullmatch(content)
            yield "\n" if is_instruction else content

    with opened_text(path, encoding, newline="") as file, long_csv_fields_allowed():
        reader = csv.reader(lines(), delimiter=delimiter, quoting=quoting, strict=True)
        start = 1
        try:
            for fields in reader:
                if fields:
                    yield start, fields
                start = reader.line_num + 1
        except csv.Error as error:
            if "field limit" in str(error):
                raise InputError(
                    f"{path}, line {start}: a cell is longer than {MAX_FIELD_LENGTH:,} characters."
                    " Shorten the text, or close the quote if one is open."
                ) from None
            raise InputError(
                f"{path}, line {start}: not a valid CSV row ({error}). Is a quote not closed, or"
                f' not doubled? Quotes after \\: sed \'s/\\\\"/""/g\' {path} > NEW. In a .tsv file'
                " quotes are plain characters."
            ) from None


@contextmanager
def long_csv_fields_allowed() -> Iterator[None]:
    """Let csv read long documents; its limit belongs to the process and is restored."""
    before = csv.field_size_limit(MAX_FIELD_LENGTH)
    try:
        yield
    finally:
        csv.field_size_limit(before)


@contextmanager
def opened_text(path: Path, encoding: str, newline: str | None = None) -> Iterator[TextIO]:
    """Open a text file; in UTF-8, a byte-order mark is skipped.

    Raises:
        EncodingError: The encoding does not have the bytes that are read in the context; the
            message names the line, if it is known.
        InputError: The encoding is unknown.
    """
    is_utf8 = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    try:
        with path.open(encoding="utf-8-sig" if is_utf8 else encoding, newline=newline) as file:
            yield file
    except UnicodeError as error:
        problem = _undecodable_byte(path, encoding) or f": not {encoding} ({error})"
        raise EncodingError(
            f"{path}{problem}. Pass the file's encoding, for example --encoding cp1252 (Windows),"
            " --encoding latin-1 or utf-16, or convert it:"
            f" iconv -f cp1252 -t utf-8 {path.name} > new{path.suffix}",
            problem=f"{path}{problem}",
            likely="cp1252",
        ) from None
    except LookupError:
        raise InputError(
            f"--encoding: received {encoding!r}; it must be the name of a Python codec, such as"
            " utf-8 or latin-1."
        ) from None


def _undecodable_byte(path: Path, encoding: str) -> str | None:
    """Return the location of the first undecodable byte, if line breaks are encoded as in ASCII."""
    try:
        if "\n".encode(encoding) != b"\n":
            return None
    except UnicodeError:  # `undefined` encodes nothing
        return None
    with path.open("rb") as file:
        for line, content in enumerate(file, start=1):
            try:
                content.decode(encoding)
            except UnicodeDecodeError as error:
                return f", line {line}: byte 0x{content[error.start]:02x} is not {encoding}"
    return None


CHARACTERS_AT_A_TIME = 2**20
BLANKS = " \t\r\n"
EXPECTED = "The file must hold one object per line, or one array of objects."


def read_json(path: Path, *, encoding: str) -> SourceTable:
    """Open a file that has one JSON object per line, or one array of objects.

    Other objects that hold rows, such as `{"data": [...]}`, are read with a note. The columns are
    the keys of the first 1,000 objects. A key that an object lacks is a missing cell.

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
    other = None if is_array else _other_rows(path, encoding)
    unit = "row" if is_array or other is not None else "line"

    def objects() -> Iterator[tuple[int, dict[str, Any]]]:
        with opened_text(path, encoding) as file:
            numbered: Iterable[tuple[int, Any]]
            if unit == "row":
                rows = _decode(file.read(), path) if other is None else other[0]
                numbered = enumerate(rows, start=1)
            else:
                lines = ((n, text) for n, text in enumerate(file, start=1) if text.strip(BLANKS))
                numbered = ((number, _decode(text, path, number)) for number, text in lines)
            for number, item in numbered:
                if isinstance(item, list) and len(item) == 2 and isinstance(item[1], dict):
                    item = {"text": item[0], **item[1]}
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

    notes = () if other is None else (other[1],)
    return SourceTable(columns=columns, read=read, unit=unit, origin=str(path), notes=notes)


def _other_rows(path: Path, encoding: str) -> tuple[list[Any], str] | None:
    """Return the rows of a file that is one object or several, and a note; None for JSON Lines."""
    others = JSON_OBJECTS.get()
    with opened_text(path, encoding) as file:
        lines = (line for line in file if line.strip(BLANKS))
        try:
            items, is_whole = [_decode(next(lines, ""), path, 1)], next(lines, None) is None
        except InputError:  # an object may span several lines
            file.seek(0)
            several = None if others is None else others.consecutive_objects(file.read(), DECODER)
            items, is_whole = several or [], True
    if others is None or not items or not is_whole or not isinstance(items[0], dict):
        return None  # whoever reads the lines reports what is wrong
    if len(items) > 1:
        return items, f"{path}: {len(items):,} objects, which span several lines."
    return others.rows_of_object(items[0], path)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; for duplicate keys, json would silently use the last value."""
    item = dict(pairs)
    if len(item) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        duplicates = sorted(key for key, count in counts.items() if count > 1)
        raise KeyError(quoted_list(duplicates))
    return item


DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys)


def _decode(content: str, path: Path, line: int | None = None) -> Any:
    """Return the value of a JSON text, which starts on a line or is the whole file."""
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
