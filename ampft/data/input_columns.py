"""The input columns of a table. Several can be joined into one text: `title+body`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from ampft.data.sources.table import as_text

JOIN = "+"
BLANK = " "  # between the parts of a joined text


@dataclass(frozen=True)
class InputColumns:
    """The input columns, and the columns of the table that each consists of.

    Attributes:
        names: Names of the inputs, such as `title+body`.
        parts: Columns of each input, in the order in which they are joined.
    """

    names: tuple[str, ...]
    parts: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, names: Sequence[str], available: Sequence[str]) -> InputColumns:
        """Return the columns of each name; a column that has a name exactly is not split.

        Args:
            names: Names of the inputs.
            available: Columns of the table.
        """
        present = frozenset(available)
        parts = tuple((name,) if name in present else joined_parts(name) for name in names)
        return cls(tuple(names), parts)

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The columns to read, each once."""
        return tuple(dict.fromkeys(chain.from_iterable(self.parts)))

    def renamed(self, names: Mapping[str, str]) -> InputColumns:
        """Return the inputs with other names for the columns of the table."""
        return InputColumns(
            self.names, tuple(tuple(names.get(n, n) for n in part) for part in self.parts)
        )

    def texts(self, values: Sequence[object], location: str) -> list[str | None]:
        """Return the text of each input, or None if none of its columns has one.

        Args:
            values: Cells of `sources`.
            location: File and line, for the messages.

        Raises:
            InputError: A cell holds a list or an object.
        """
        cells = {
            name: as_text(value, location, name)
            for name, value in zip(self.sources, values, strict=True)
        }
        return [joined(cells[name] for name in part) for part in self.parts]


def joined_parts(name: str) -> tuple[str, ...]:
    """Return the columns of `title+body`; a name without two of them is one column."""
    parts = tuple(part.strip() for part in name.split(JOIN))
    return parts if len(parts) > 1 and all(parts) else (name,)


def joined(texts: Iterable[str | None]) -> str | None:
    """Return the texts that exist with a space between them; None if none exists."""
    return BLANK.join(text for text in texts if text is not None) or None
