"""Tables: what every reader returns, with named columns and numbered rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING
from uuid import UUID

from ampft.errors import MAX_LISTED, InputError, listed, quoted, quoted_list
from ampft.text.numbers import counted

if TYPE_CHECKING:
    from datasets import Dataset

SAMPLE_ROWS = 1000  # in which the different values of a column are counted
MISSING = ("NAType", "NaTType")  # types of pandas's missing values
BYTE_ORDER_MARK = "\ufeff"
MAX_NUMBERS_SHOWN = 10
POSITION = "position"  # unit of data sets and data in memory, which Python counts from 0

Row = tuple[int, Sequence[object]]


@dataclass(frozen=True)
class SourceTable:
    """The columns of a file or of a split of a data set, and a way to read its rows."""

    columns: tuple[str, ...]  # Names in their order, each once.
    # Function of some names of `columns` that yields (number, values in their order) for each row.
    # Numbers are in `unit`. Each call reads the rows again.
    read: Callable[[Sequence[str]], Iterator[Row]]
    # `line` if numbers are lines of the file, `row` if they count examples from 1, or `POSITION`.
    unit: str
    origin: str  # The file as the user named it, or the data set and its split.
    notes: tuple[str, ...] = ()  # Sentences about how the file is read, for the user.
    # Names of the classes of columns that hold class indices.
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Labels of all rows of a data frame, by position; empty if it has none.
    index: Sequence[str] = ()
    dataset: Dataset | None = None  # The split of a data set; None for a file.
    # Whether each word of a row has its own line, as in CoNLL files.
    has_line_per_word: bool = False

    def place(self, *numbers: int) -> str:
        """Return where the rows with these numbers are, for a message."""
        return location(self.origin, self.unit, numbers, self.index)

    def renamed(self, names: Mapping[str, str], note: str) -> SourceTable:
        """Return the table with new names for some columns, and a note that says so."""
        old = {names.get(column, column): column for column in self.columns}
        return replace(
            self,
            columns=tuple(old),
            read=lambda wanted: self.read([old[name] for name in wanted]),
            notes=(*self.notes, note),
            classes={names.get(name, name): of for name, of in self.classes.items()},
            dataset=None if self.dataset is None else self.dataset.rename_columns(dict(names)),
        )


def location(origin: str, unit: str, numbers: Sequence[int], index: Sequence[str] = ()) -> str:
    """Return an origin with line or row numbers: the first ten, and how many more there are.

    Args:
        origin: The file, or the data set and its split.
        unit: What the numbers count, `line`, `row` or `POSITION`.
        index: Labels of all rows of a data frame, by position; empty if it has none.
    """
    plural = unit if len(numbers) == 1 else f"{unit}s"
    place = f"{origin}, {plural} {listed([*map(str, numbers)], limit=MAX_NUMBERS_SHOWN)}"
    if unit == POSITION:
        shown = numbers[:MAX_NUMBERS_SHOWN]
        listing = ", ".join(str(index[number]) for number in shown) if len(index) else ""
        labels = f"; index {listing}" if listing else ""
        place += f" (from 0{labels})"
    return place


@dataclass(frozen=True)
class NamedColumns:
    """The columns of a header that have a name, and the first one, which may be an index."""

    names: tuple[str, ...]
    places: Mapping[str, int]  # Index of each in a row.
    unnamed: tuple[int, ...]  # Indices of the others.
    count: int  # Number of all columns.

    @classmethod
    def of(cls, header: Sequence[str], origin: str) -> NamedColumns:
        """Return the columns of a header.

        Raises:
            InputError: Two have the same name, or none has one.
        """
        places = [i for i, name in enumerate(header) if name.strip() or i == 0]
        names = tuple(header[i] for i in places)
        refuse_duplicates(names, origin)
        if not any(name.strip() for name in names):
            raise InputError(f"{origin}: no column has a name. The first row must name them.")
        others = tuple(sorted({*range(len(header))} - {*places}))
        return cls(names, dict(zip(names, places, strict=True)), others, len(header))

    def unread_note(
        self, origin: str, rows: Iterable[Sequence[object]], width: int = 0
    ) -> tuple[str, ...]:
        """Return a note if columns without a name have values, which are not read.

        Args:
            rows: Values of all columns of each row; a row may be shorter or longer than the header.
            width: Length of the longest row, if it can be longer than the header.
        """
        unnamed = [*self.unnamed, *range(self.count, width)]
        if not unnamed:
            return ()
        found: Counter[int] = Counter()
        for row in rows:
            found.update(i for i in unnamed if i < len(row) and row[i] not in (None, ""))
        if not found:
            return ()
        columns = listed([f"{i + 1} ({counted(n, 'row')})" for i, n in sorted(found.items())])
        return (
            f"{origin}: columns without a name are not read, though they have values: {columns}.",
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

    The strings `None`, `NA` and `null` are texts. Numbers and booleans are spelled as in Python,
    dates and times as in ISO 8601. Bytes are UTF-8.

    Args:
        location: File and line, for the messages.

    Raises:
        InputError: The cell holds a list or an object, which is neither a text nor a label, or
            bytes that are not UTF-8.
    """
    is_nan = isinstance(value, Real | Decimal) and value != value
    if value is None or is_nan or type(value).__name__ in MISSING:
        return None
    if isinstance(value, bytes):
        value = _decoded(value, location, column)
    if isinstance(value, str):
        refuse_surrogates(value, location)
        return value if value and not value.isspace() else None
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, Real | timedelta | UUID):  # also numbers of numpy
        return str(value)
    hint = ""
    if isinstance(value, dict):
        hint = " pandas.json_normalize(ROWS) writes each part of it into a column of its own."
    raise InputError(
        f"{location}: column {quoted(column)} holds a nested value ({type(value).__name__}"
        f" {quoted(value)}), but a cell must be a text or a single value. Write it as one"
        f" string, or pass another column.{hint}"
    )


def _decoded(value: bytes, location: str, column: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{location}: column {quoted(column)} holds bytes that are not UTF-8 text (byte"
            f" 0x{value[error.start]:02x}). Write it as texts, or name the column of images or"
            " sounds with --image_column_name or --audio_column_name."
        ) from None


def refuse_surrogates(value: str, location: str) -> None:
    """Raise InputError for half of a surrogate pair, which JSON can hold but UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        character = ascii(value[error.start])
        raise InputError(
            f"{location}: {character} is half of a surrogate pair, not a character. Remove it."
        ) from None


def described_columns(table: SourceTable) -> str:
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
