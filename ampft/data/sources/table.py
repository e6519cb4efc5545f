"""What file readers share: named columns, and rows with their line or row numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ampft.errors import MAX_LISTED, InputError, quoted, quoted_list

SAMPLE_ROWS = 1000  # in which the different values of a column are counted

Row = tuple[int, Sequence[object]]


@dataclass(frozen=True)
class Table:
    """A file's columns and a way to read its rows.

    Attributes:
        columns: Names in the file's order, each once.
        read: Function of some names of `columns` that yields (number, values in their order) for
            each row. Numbers count from 1, in `unit`. Each call reads the file again.
        unit: `line` if numbers are lines of the file, `row` if they count examples.
        origin: The file as the user named it.
        notes: Sentences about how the file is read, for the user.
    """

    columns: tuple[str, ...]
    read: Callable[[Sequence[str]], Iterator[Row]]
    unit: str
    origin: str
    notes: tuple[str, ...] = ()

    def renamed(self, names: Mapping[str, str], notes: tuple[str, ...]) -> Table:
        """Return the table with new names for some columns, and notes that say so."""
        old = {names.get(column, column): column for column in self.columns}
        return replace(
            self,
            columns=tuple(old),
            read=lambda wanted: self.read([old[name] for name in wanted]),
            notes=(*self.notes, *notes),
        )


def refuse_duplicates(columns: Sequence[str], origin: str) -> None:
    """Raise InputError when two columns have the same name."""
    duplicates = sorted(name for name, count in Counter(columns).items() if count > 1)
    if duplicates:
        raise InputError(
            f"{origin}: more than one column is called {quoted_list(duplicates)}."
            " Rename or remove all but one."
        )


def as_text(value: object, location: str, column: str) -> str | None:
    """Return a cell as a string, or None if it is missing: null, NaN or only white space.

    The strings `None`, `NA` and `null` are texts. Numbers and booleans are spelled as in Python.

    Args:
        value: The cell.
        location: File and line, for the messages.
        column: Name of the column, for the messages.

    Raises:
        InputError: The cell holds a list or an object, which is neither a text nor a label.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        refuse_surrogates(value, location)
        return value if value and not value.isspace() else None
    if isinstance(value, bool | int | float):
        return str(value)
    raise InputError(
        f"{location}: column {quoted(column)} holds a nested value ({type(value).__name__}"
        f" {quoted(value)}), but a cell must be a text or a single value. Write it as one"
        " string, or name another column."
    )


def refuse_surrogates(value: str, location: str) -> None:
    """Raise InputError for half of a surrogate pair, which JSON can hold but UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        character = ascii(value[error.start])
        raise InputError(
            f"{location}: {character} is half of a surrogate pair, not a character. Remove it."
        ) from None


def described_columns(table: Table) -> str:
    """Return the columns with the number of different values that each has in the first rows."""
    shown = table.columns[:MAX_LISTED]
    values: list[set[str]] = [set() for _ in shown]
    count = 0
    for count, (_, row) in enumerate(table.read(shown), start=1):
        for seen, value in zip(values, row, strict=True):
            seen.add(str(value))
        if count == SAMPLE_ROWS:
            break
    described = [
        f"{quoted(name)} ({len(seen)} different)" for name, seen in zip(shown, values, strict=True)
    ]
    more = len(table.columns) - len(shown)
    others = f" and {more} more" if more else ""
    return f"{', '.join(described)}{others}; counted in the first {count} rows"
