"""How the cells of a row become its labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampft.data.sources.table import as_text, shown
from ampft.errors import InputError

YES = frozenset({"1", "1.0", "true"})
NO = frozenset({"0", "0.0", "false"})


@dataclass(frozen=True)
class LabelCells:
    """Where the labels of a row are, and how they are written there.

    Attributes:
        columns: One column of labels; or one column of 0 and 1 for each label.
        several: Whether a row can have any number of labels; otherwise it has exactly one.
        separator: What stands between the labels of a cell.
        declared: Names of the classes that a cell holds as indices; None where it holds names.
    """

    columns: tuple[str, ...]
    several: bool = False
    separator: str = ","
    declared: tuple[str, ...] | None = None

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes in the order that the source declares; None where it declares none."""
        return self.columns if len(self.columns) > 1 else self.declared

    def read(self, cells: Sequence[object], place: str) -> tuple[str, ...] | None:
        """Return the distinct labels of a row; None where one is missing.

        Args:
            cells: Values of `columns`.
            place: File and line, for the messages.

        Raises:
            InputError: A cell holds what is neither a label nor, in a column of its own, 0 or 1.
        """
        if len(self.columns) > 1:
            pairs = zip(self.columns, cells, strict=True)
            return tuple(name for name, cell in pairs if self._is_yes(name, cell, place))
        (cell,) = cells
        if not self.several:
            name = self._name(cell, place)
            return None if name is None else (name,)
        if cell is None:
            return ()
        parts = cell.split(self.separator) if isinstance(cell, str) else cell
        if not isinstance(parts, list | tuple):
            parts = [parts]
        names = [name for part in parts if (name := self._name(part, place)) is not None]
        return tuple(dict.fromkeys(name.strip() for name in names))

    def _name(self, cell: object, place: str) -> str | None:
        """Return a label as a string; a class's index becomes its name, a missing label is -1."""
        if self.declared is not None and isinstance(cell, int) and cell >= 0:
            return self.declared[cell]
        if isinstance(cell, list | tuple) and not self.several:
            raise InputError(
                f"{place}: found several labels, {shown(str(cell))}. Add --task multi-label, or "
                "keep one label per row."
            )
        return as_text(cell, place)

    @staticmethod
    def _is_yes(name: str, cell: object, place: str) -> bool:
        found = (as_text(cell, place) or "").strip().lower()
        if found not in YES | NO:
            raise InputError(
                f"{place}: column {name!r} must be 0 or 1, and is {shown(found)}. A column per "
                "label says whether the row has it; for one column of labels, name only that one."
            )
        return found in YES
