"""What the readers of files have in common: named columns, and rows that know where they stand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ampft.errors import InputError

LONGEST_NAME_SHOWN = 40
ROWS_LOOKED_AT = 1000  # to say how many different values a column has

Row = tuple[int, Sequence[object]]


@dataclass(frozen=True)
class Table:
    """A file's columns and a way to read its rows.

    Attributes:
        columns: Names in the file's order, each once.
        read: Given names out of `columns`, yields (number, values in the order of those names).
            A number is counted from 1, in the unit below. Each call reads the file anew.
        unit: `line` where numbers are lines of the file, `row` where they count examples.
        origin: The file, as the user named it.
    """

    columns: tuple[str, ...]
    read: Callable[[Sequence[str]], Iterator[Row]]
    unit: str
    origin: str


def shown(name: str) -> str:
    """Return a name in quotes, cut where it is long: a missing header makes names of texts."""
    cut = name if len(name) <= LONGEST_NAME_SHOWN else name[: LONGEST_NAME_SHOWN - 3] + "..."
    return repr(cut)


def refuse_duplicates(columns: Sequence[str], origin: str) -> None:
    """Raise InputError when two columns have one name: which of them is meant is not known."""
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise InputError(
            f"{origin}: more than one column is called {', '.join(map(shown, twice))}."
            " Rename or remove all but one."
        )


def as_text(value: object, place: str) -> str | None:
    """Return a cell as a string, or None where it is missing: null, NaN, nothing but blanks.

    `None`, `NA` and `null` as texts are texts. Numbers and booleans are spelled as Python does.

    Raises:
        InputError: For a list or an object, which is neither a text nor a label.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        refuse_surrogates(value, place)
        return value if value and not value.isspace() else None
    if isinstance(value, bool | int | float):
        return str(value)
    raise InputError(
        f"{place}: a text or a single value is wanted, found {type(value).__name__}"
        f" {shown(str(value))}."
    )


def refuse_surrogates(value: str, place: str) -> None:
    """Raise InputError for half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        found = ascii(value[error.start])
        raise InputError(f"{place}: {found} is half of a surrogate pair, no character.") from None


def described_columns(table: Table) -> str:
    """Return the columns with how many different values each has in the first rows."""
    values: list[set[str]] = [set() for _ in table.columns]
    count = 0
    for count, (_, row) in enumerate(table.read(table.columns), start=1):
        for seen, value in zip(values, row, strict=True):
            seen.add(str(value))
        if count == ROWS_LOOKED_AT:
            break
    listed = ", ".join(
        f"{shown(name)} ({len(seen)} different)"
        for name, seen in zip(table.columns, values, strict=True)
    )
    return f"{listed}; counted in the first {count} rows"
