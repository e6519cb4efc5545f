"""CSV and TSV files, row by row, with the line on which each row starts."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, TextIO

from ampft.data.columns import DELIMITERS, USUAL_NAMES, folded
from ampft.data.sources.table import SAMPLE_ROWS, Row, SourceTable, refuse_duplicates
from ampft.errors import InputError

Quoting = Literal[0, 3]  # csv.QUOTE_MINIMAL, csv.QUOTE_NONE
MAX_FIELD_LENGTH = 16 * 2**20  # characters; csv's default of 131,072 is too few for long documents


def read_csv(path: Path, *, encoding: str) -> SourceTable:
    """Open a comma-separated file (RFC 4180: fields may be quoted, quotes doubled inside).

    Some spreadsheets write semicolons or tabs instead of commas; a note says so.
    """
    delimiter = detect_delimiter(path, encoding)
    table = read_delimited(path, encoding=encoding, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL)
    if delimiter == ",":
        return table
    note = f"{path}: the fields are separated by {DELIMITERS[delimiter]}, not by commas."
    return replace(table, notes=(note,))


def read_tsv(path: Path, *, encoding: str) -> SourceTable:
    """Open a tab-separated file (IANA's definition: no quoting, a quote is a plain character)."""
    return read_delimited(path, encoding=encoding, delimiter="\t", quoting=csv.QUOTE_NONE)


def read_delimited(path: Path, *, encoding: str, delimiter: str, quoting: Quoting) -> SourceTable:
    """Read the header and return the table.

    A byte-order mark, CRLF and blank lines are allowed.

    Raises:
        InputError: The file is empty, or two columns have the same name. Reading a row raises it
            for bytes that the encoding does not have, a row with too few or too many fields,
            an unclosed quote, and NUL; the message names file and line.
    """
    rows = partial(numbered_rows, path, encoding=encoding, delimiter=delimiter, quoting=quoting)
    header = next(rows(), None)
    if header is None:
        raise InputError(f"{path}: the file is empty. Its first line must be a header.")
    columns = tuple(header[1])
    refuse_duplicates(columns, str(path))
    hint = f"A text with {DELIMITERS[delimiter]} must be in double quotes."
    if quoting == csv.QUOTE_NONE:
        hint = (
            "In a .tsv file quotes are plain characters, and a text has neither tabs nor line"
            " breaks. If the fields are quoted, save the file as .csv."
        )

    def read(names: Sequence[str]) -> Iterator[Row]:
        indices = [columns.index(name) for name in names]
        for line, values in islice(rows(), 1, None):
            if len(values) != len(columns):
                raise InputError(
                    f"{path}, line {line}: {len(values)} fields, but the header has {len(columns)}."
                    f" {hint}"
                )
            yield line, [values[index] for index in indices]

    return SourceTable(columns=columns, read=read, unit="line", origin=str(path))


def detect_delimiter(path: Path, encoding: str) -> str:
    """Return the delimiter that divides the header and the first 1,000 rows of a CSV file.

    It must give at least two columns, and either usual names or the same number of fields in every
    row. It is a comma if none does.
    """

    def fit(delimiter: str) -> tuple[bool, int, bool]:
        rows = numbered_rows(
            path, encoding=encoding, delimiter=delimiter, quoting=csv.QUOTE_MINIMAL
        )
        try:
            _, header = next(rows, (0, []))
            if len(header) < 2:
                return False, 0, False
            sample = islice(rows, SAMPLE_ROWS)
            constant = all(len(fields) == len(header) for _, fields in sample)
        except InputError:  # whoever reads the rows reports it
            return False, 0, False
        usual = sum(folded(name) in USUAL_NAMES for name in header)
        return constant, usual, delimiter == ","

    fits = {delimiter: fit(delimiter) for delimiter in DELIMITERS}
    best = max(fits, key=lambda delimiter: fits[delimiter])
    return best if any(fits[best]) else ","


def numbered_rows(
    path: Path, *, encoding: str, delimiter: str, quoting: Quoting
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line on which the row starts, fields) for all rows, including the header."""

    def without_nul() -> Iterator[str]:
        for line, content in enumerate(file, start=1):
            if "\0" in content:
                raise InputError(
                    f"{path}, line {line}: a NUL character. The file is damaged, or it is UTF-16:"
                    " in that case pass --encoding utf-16."
                )
            yield content

    with opened_text(path, encoding, newline="") as file, long_fields():
        reader = csv.reader(without_nul(), delimiter=delimiter, quoting=quoting, strict=True)
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
                " not doubled? In a .tsv file quotes are plain characters."
            ) from None


@contextmanager
def long_fields() -> Iterator[None]:
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
        InputError: The encoding is unknown, or it does not have the bytes that are read in the
            context; the message names the line, if it is known.
    """
    is_utf8 = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    try:
        with path.open(encoding="utf-8-sig" if is_utf8 else encoding, newline=newline) as file:
            yield file
    except UnicodeError as error:
        problem = undecodable_byte(path, encoding) or f": not {encoding} ({error})"
        raise InputError(
            f"{path}{problem}. Pass the file's encoding, for example --encoding latin-1 (or cp1252,"
            f" or utf-16), or convert it: iconv -f latin1 -t utf-8 {path.name} > new{path.suffix}"
        ) from None
    except LookupError:
        raise InputError(
            f"--encoding: received {encoding!r}; it must be the name of a Python codec, such as"
            " utf-8 or latin-1."
        ) from None


def undecodable_byte(path: Path, encoding: str) -> str | None:
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
