"""CSV and TSV files, row by row, with the line where each row begins."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TextIO

from ampft.data.sources.table import Row, Table, refuse_duplicates
from ampft.errors import InputError

Quoting = Literal[0, 3]  # csv.QUOTE_MINIMAL, csv.QUOTE_NONE
LONGEST_FIELD = 16 * 2**20  # characters; csv's own limit of 131,072 is less than long documents


def read_csv(path: Path, *, encoding: str) -> Table:
    """Open a comma-separated file (RFC 4180: fields may be quoted, quotes doubled inside)."""
    return read_delimited(path, encoding=encoding, delimiter=",", quoting=csv.QUOTE_MINIMAL)


def read_tsv(path: Path, *, encoding: str) -> Table:
    """Open a tab-separated file (IANA's definition: no quoting, a quote is a plain character)."""
    return read_delimited(path, encoding=encoding, delimiter="\t", quoting=csv.QUOTE_NONE)


def read_delimited(path: Path, *, encoding: str, delimiter: str, quoting: Quoting) -> Table:
    """Read the header and return the table.

    A byte-order mark, CRLF and blank lines are read over.

    Raises:
        InputError: For an empty file and two columns of one name at once; while rows are read, for
            bytes that are not of the encoding, a row with too few or too many fields, a quote left
            open, and NUL, each with file and line.
    """

    def rows() -> Iterator[tuple[int, list[str]]]:
        with path.open(encoding=with_mark(encoding), newline="") as file, long_fields():
            yield from parsed(file, path, delimiter=delimiter, quoting=quoting)

    header = next(guarded(rows(), path, encoding), None)
    if header is None:
        raise InputError(f"{path}: the file is empty. A header with the columns' names is wanted.")
    columns = tuple(header[1])
    refuse_duplicates(columns, str(path))

    def read(names: Sequence[str]) -> Iterator[Row]:
        places = [columns.index(name) for name in names]
        numbered = guarded(rows(), path, encoding)
        next(numbered)
        for line, values in numbered:
            if len(values) != len(columns):
                raise InputError(ragged(path, line, len(values), len(columns), delimiter))
            yield line, [values[place] for place in places]

    return Table(columns=columns, read=read, unit="line", origin=str(path))


def with_mark(encoding: str) -> str:
    """Return the encoding that reads over a byte-order mark, where there is one."""
    return "utf-8-sig" if encoding.lower().replace("_", "-") in ("utf-8", "utf8") else encoding


@contextmanager
def long_fields() -> Iterator[None]:
    """Let csv read long documents; its limit belongs to the process and is put back."""
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def parsed(
    file: TextIO, path: Path, *, delimiter: str, quoting: Quoting
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line where the row begins, fields) for all rows, the header among them."""

    def without_nul() -> Iterator[str]:
        for line, content in enumerate(file, start=1):
            if "\0" in content:
                raise InputError(
                    f"{path}, line {line}: a NUL character. The file is damaged, or is UTF-16:"
                    " then give --encoding utf-16."
                )
            yield content

    reader = csv.reader(without_nul(), delimiter=delimiter, quoting=quoting, strict=True)
    begins = 1
    try:
        for fields in reader:
            if fields:
                yield begins, fields
            begins = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}, line {begins}: this row does not end as a CSV row should ({error}). Is a"
            " quote left open or not doubled? In a .tsv file quotes are plain characters."
        ) from None


def guarded(
    rows: Iterator[tuple[int, list[str]]], path: Path, encoding: str
) -> Iterator[tuple[int, list[str]]]:
    """Pass rows on and turn a decoding error into one that names the line."""
    try:
        yield from rows
    except UnicodeError as error:
        raise InputError(undecodable(path, encoding, error)) from None
    except LookupError:
        raise InputError(
            f"--encoding: got {encoding!r}; a codec of Python is wanted, such as utf-8 or latin-1."
        ) from None


def undecodable(path: Path, encoding: str, error: UnicodeError) -> str:
    """Say on which line the first byte stands that the encoding does not have."""
    return (
        f"{path}{bad_byte(path, encoding) or f': not {encoding} ({error})'}. Say what the file is"
        " in, for example --encoding latin-1 (or cp1252, or utf-16), or convert it:"
        f" iconv -f latin1 -t utf-8 {path.name} > new{path.suffix}"
    )


def bad_byte(path: Path, encoding: str) -> str | None:
    """Return where the first undecodable byte is, if the encoding has line breaks as ASCII has."""
    if "\n".encode(encoding) != b"\n":
        return None
    with path.open("rb") as file:
        for line, content in enumerate(file, start=1):
            try:
                content.decode(encoding)
            except UnicodeDecodeError as found:
                return f", line {line}: byte 0x{content[found.start]:02x} is not {encoding}"
    return None


def ragged(path: Path, line: int, found: int, wanted: int, delimiter: str) -> str:
    """Say that a row has another number of fields than the header."""
    reason = (
        "In a .tsv file quotes are plain characters and a text has neither tabs nor line breaks;"
        " save it as .csv if its fields are quoted."
        if delimiter == "\t"
        else "A text with a comma has to stand in double quotes."
    )
    return f"{path}, line {line}: {found} fields where the header has {wanted}. {reason}"
