"""How the cells of a row become its labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.data.sources.table import as_text
from ampft.errors import InputError, quoted

YES = frozenset({"1", "1.0", "true"})
NO = frozenset({"0", "0.0", "false"})


@dataclass(frozen=True)
class LabelParser:
    """Where the labels of a row are, and how they are written.

    Attributes:
        columns: One column of labels, or one column of 0 and 1 per label.
        several: Whether a row can have any number of labels; otherwise it has exactly one.
        separator: Text between the labels of a cell.
        declared: Names of the classes if cells hold class indices; None if they hold names.
        per_unit: Whether each unit of a row, such as a word, has a label; these keep their order.
    """

    columns: tuple[str, ...]
    several: bool = False
    separator: str = ","
    declared: tuple[str, ...] | None = None
    per_unit: bool = False

    @property
    def title(self) -> str:
        """Names of the columns."""
        return ", ".join(self.columns)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes in the order that the source declares; None if it declares none."""
        return self.columns if len(self.columns) > 1 else self.declared

    def parse(self, cells: Sequence[object], location: str) -> tuple[str, ...] | None:
        """Return the distinct labels of a row; None if its label is missing.

        Args:
            cells: Values of `columns`.
            location: File and line, for the messages.

        Raises:
            InputError: A cell does not hold a label or, with one column per label, 0 or 1.
        """
        if len(self.columns) > 1:
            pairs = zip(self.columns, cells, strict=True)
            return tuple(name for name, cell in pairs if self._is_yes(name, cell, location))
        (cell,) = cells
        if not self.several:
            name = self._name(cell, location)
            return None if name is None else (name,)
        if cell is None:
            return ()
        parts = cell.split(self.separator) if isinstance(cell, str) else cell
        if not isinstance(parts, list | tuple):
            parts = [parts]
        names = [name for part in parts if (name := self._name(part, location)) is not None]
        return tuple(dict.fromkeys(name.strip() for name in names))

    def as_trained(self, rows: Sequence[tuple[str, ...]]) -> Sequence[tuple[str, ...]]:
        """Return the labels of rows, which are names already."""
        return rows

    def targets(self, rows: Sequence[tuple[int, ...]], classes: int) -> npt.NDArray[Any]:
        """Return (n,) int64 class indices or, with several labels, (n, classes) booleans.

        Args:
            rows: Indices of the labels of each row.
            classes: Number of classes.
        """
        if not self.several:
            return np.array([label for (label,) in rows], dtype=np.int64)
        matrix = np.zeros((len(rows), classes), dtype=bool)
        for row, labels in enumerate(rows):
            matrix[row, list(labels)] = True
        return matrix

    def _name(self, cell: object, location: str) -> str | None:
        """Return a label as a string: the class name for an index, None if it is missing."""
        if self.declared is not None and isinstance(cell, int) and cell >= 0:
            return self.declared[cell]
        if isinstance(cell, list | tuple) and not self.several:
            raise InputError(
                f"{location}: several labels, {quoted(cell)}. Add --task multi-label, or keep"
                " one label per row."
            )
        return as_text(cell, location, self.columns[0])

    @staticmethod
    def _is_yes(name: str, cell: object, location: str) -> bool:
        value = (as_text(cell, location, name) or "").strip().lower()
        if value not in YES | NO:
            raise InputError(
                f"{location}: column {quoted(name)} must be 0 or 1, received {quoted(value)}. With"
                " several label columns, each one says whether the row has that label. If one"
                " column holds the labels, pass only that one."
            )
        return value in YES
