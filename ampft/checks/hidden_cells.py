"""What a sheet hides or has not computed: rows, columns and sheets that its user does not see."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ampft.errors import InputError, listed, quoted_list
from ampft.text.numbers import counted

_ROW = re.compile(rb'<(?:\w+:)?row\b[^>]*?\br="(\d+)"[^>]*>')
_HIDDEN = re.compile(rb'\bhidden="(?:1|true)"')
_COLUMN = re.compile(rb'<(?:\w+:)?col\b[^>]*?\bmin="(\d+)"[^>]*?\bmax="(\d+)"[^>]*>')
_COLUMN_ENDS_FIRST = re.compile(rb'<(?:\w+:)?col\b[^>]*?\bmax="(\d+)"[^>]*?\bmin="(\d+)"[^>]*>')
# A cell with a formula and without the value that Excel would have stored.
_NOT_COMPUTED = re.compile(
    rb'<(?:\w+:)?c r="([A-Z]+\d+)"[^>]*>\s*<(?:\w+:)?f\b[^>]*(?:/>|>[^<]*</(?:\w+:)?f>)\s*'
    rb"(?:<(?:\w+:)?v\s*/>|<(?:\w+:)?v></(?:\w+:)?v>)?\s*</(?:\w+:)?c>"
)
_AT_A_TIME = 2**20
SHOWN = 6


def hidden_notes(
    worksheet: Any, columns: Mapping[str, int], path: Path, sheets: Sequence[str]
) -> tuple[str, ...]:
    """Return notes on hidden rows and columns of a sheet, which are read, and on hidden sheets.

    Args:
        worksheet: Sheet of openpyxl in a workbook that is only read.
        columns: Index of each column that has a name.
        sheets: Names of hidden sheets, which are not read.

    Raises:
        InputError: A cell has a formula without a stored value.
    """
    rows, hidden, pending = list[int](), set[int](), list[str]()
    for part in _parts(worksheet):
        pending += [cell.decode() for cell in _NOT_COMPUTED.findall(part)]
        rows += [int(m[1]) for m in _ROW.finditer(part) if _HIDDEN.search(m[0])]
        for found, first in ((_COLUMN, 1), (_COLUMN_ENDS_FIRST, 2)):
            for match in found.finditer(part):
                if _HIDDEN.search(match[0]):
                    hidden.update(range(int(match[first]), int(match[3 - first]) + 1))
    if pending:
        raise InputError(
            f"{path}: the formulas of {listed(pending, limit=SHOWN)} have no values, because the "
            "program that wrote them computed none. Open the workbook in Excel and save it."
        )
    names = [name for name, index in columns.items() if index + 1 in hidden and name.strip()]
    notes = []
    if rows:
        shown = listed([str(row) for row in rows], limit=SHOWN)
        notes.append(f"{path}: {counted(len(rows), 'hidden row')} are read too: {shown}.")
    if names:
        notes.append(f"{path}: hidden columns can be read: {quoted_list(names)}.")
    if sheets:
        notes.append(f"{path}: hidden sheets are not read: {quoted_list(sheets)} (--sheet_name).")
    return tuple(notes)


def _parts(worksheet: Any) -> Iterator[bytes]:
    """Yield the XML of a sheet in parts that end with a row."""
    rest = b""
    with worksheet.parent._archive.open(worksheet._worksheet_path) as file:
        while chunk := file.read(_AT_A_TIME):
            whole, end, rest = (rest + chunk).rpartition(b"</row>")
            yield whole + end
    yield rest
