"""How the cells of rows become labels: one each, any number, or one for each unit, as a word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ampft.data.sources.source_table import as_text
from ampft.data.sources.spans import is_span
from ampft.data.sources.text_lists import list_in_text, list_or_cell, seems_to_be_list
from ampft.errors import InputError, quoted, quoted_list

IntArray = npt.NDArray[np.int64]

WEIGHT_COLUMN = "ampft_weight"  # of a split, float64, where the user named a column of weights


@dataclass(frozen=True)
class RowLabels:
    """The labels of n rows."""

    codes: IntArray  # (m,) int64 indices into the label names, row after row.
    rows: IntArray  # (m,) int64 row of each code, ascending.
    count: int  # Number of rows, n; a row can have no label.

    @classmethod
    def from_counts(
        cls, codes: Sequence[int] | IntArray, counts: Sequence[int] | IntArray
    ) -> RowLabels:
        """Return the labels of rows; row i has the next `counts[i]` codes."""
        per_row = np.asarray(counts, dtype=np.int64)
        rows = np.repeat(np.arange(len(per_row)), per_row)
        return cls(np.asarray(codes, dtype=np.int64), rows, len(per_row))

    def __len__(self) -> int:
        """Number of rows, n."""
        return self.count

    @property
    def counts(self) -> IntArray:
        """(n,) number of labels of each row."""
        return np.bincount(self.rows, minlength=self.count).astype(np.int64)

    def rows_with(self, codes: Sequence[int]) -> IntArray:
        """Return the indices of the rows that have any of `codes`, ascending."""
        return np.unique(self.rows[np.isin(self.codes, codes)])

    def row_codes(self, row: int) -> frozenset[int]:
        start, stop = np.searchsorted(self.rows, [row, row + 1])
        return frozenset(self.codes[start:stop].tolist())

    def strata(self) -> IntArray:
        """Return the (n,) stratum of each row: its rarest label.

        If labels are equally rare, it is the lowest code. Rows without a label have the stratum -1.
        """
        strata = np.full(self.count, -1, dtype=np.int64)
        rarity = np.bincount(self.codes)[self.codes]
        # Assigned from the most frequent label to the rarest, so that the rarest remains.
        order = np.lexsort((-self.codes, -rarity))
        strata[self.rows[order]] = self.codes[order]
        return strata

    def matrix(self, labels: int) -> npt.NDArray[np.bool_]:
        """Return (n, labels) booleans: whether a row has a label."""
        matrix = np.zeros((self.count, labels), dtype=bool)
        matrix[self.rows, self.codes] = True
        return matrix


@dataclass(frozen=True, eq=False)
class UnitLabels:
    """The labels of n examples of several units each, such as the words of sentences.

    Indexing with the ids of examples returns the labels of their units, one example after another.
    Converting it to an array returns `padded(codes, counts)`.
    """

    codes: IntArray  # (m,) int64 indices into the label names, example after example.
    counts: IntArray  # (n,) int64 number of units of each example, at least 1.

    def __len__(self) -> int:
        """Number of examples, n."""
        return len(self.counts)

    def __getitem__(self, ids: IntArray) -> IntArray:
        """Return the labels of the units of the examples `ids`."""
        return self.codes[unit_indices(self.counts, ids)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return `padded(codes, counts)`."""
        del copy  # it is always a new array
        return padded_codes(self.codes, self.counts).astype(dtype or np.int32, copy=False)


class Masks(Protocol):
    """Labels per pixel of n images, which are decoded on request."""

    @property
    def classes(self) -> Any:
        """Their names, values and colours."""

    @property
    def counts(self) -> IntArray:
        """(n, K) number of pixels of each class in each image."""

    def __len__(self) -> int: ...

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> IntArray: ...

    def __getitem__(self, ids: IntArray) -> IntArray: ...

    def decoded(self, ids: IntArray) -> Any:
        """Return the masks of some images."""

    def subset(self, ids: IntArray) -> Masks:
        """Return the labels of some images."""


# (n,) classes or numbers, or (n, K) booleans, or labels of units, or masks.
Targets = npt.NDArray[Any] | UnitLabels | Masks


def unit_indices(counts: IntArray, ids: IntArray) -> IntArray:
    """Return the indices of some examples' units among the units of all examples, in order.

    Args:
        counts: (n,) number of units of each example.
    """
    chosen = counts[ids]
    starts = np.cumsum(counts) - counts
    first = np.cumsum(chosen) - chosen  # of each example in the result
    return np.repeat(starts[ids] - first, chosen) + np.arange(chosen.sum())


def padded_codes(codes: npt.NDArray[np.integer[Any]], counts: IntArray) -> npt.NDArray[np.int32]:
    """Return (n, L) int32 codes of the units of each example, -1 after its last one."""
    result = np.full((len(counts), int(counts.max(initial=0))), -1, dtype=np.int32)
    result[np.arange(result.shape[1]) < counts[:, None]] = codes
    return result


NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Sort label names: first numbers by value, then other names by characters."""

    def key(name: str) -> tuple[bool, float, str]:
        is_number = NUMBER.fullmatch(name.strip()) is not None
        return (not is_number, float(name) if is_number else 0.0, name)

    return tuple(sorted(names, key=key))


def as_number(text: str, location: str, column: str) -> str:
    """Return the text of a label that is a finite number, as Python writes it.

    Args:
        text: The label.
        location: File and line, for the message.
        column: Its column, for the message.

    Raises:
        InputError: It is not one.
    """
    stripped = text.strip()
    if NUMBER.fullmatch(stripped) and np.isfinite(float(stripped)):
        return repr(float(stripped))
    hint = ""
    if NUMBER.fullmatch(stripped.replace(",", ".")):
        hint = (
            " Write a point instead of the comma; pandas.read_csv(FILE, sep=';', decimal=',') reads"
            " a whole table."
        )
    raise InputError(
        f"{location}: the label in column {quoted(column)} is {quoted(text)}, and --task "
        f"regression needs finite numbers.{hint} Correct the cell, or remove the flag to predict "
        "classes."
    )


# What loss functions use for "no label"; as a class it would be meaningless.
NO_LABEL = -100
# What `datasets` uses for it beside the names of classes, and others among several labels.
# Otherwise it is a class: scikit-learn knows -1 and 1, and surveys -2 to 2.
UNLABELLED = -1
YES = frozenset({"1", "1.0", "true"})
NO = frozenset({"0", "0.0", "false"})


@dataclass(frozen=True)
class LabelParser:
    """Where the labels of a row are, and how they are written."""

    columns: tuple[str, ...]  # One column of labels, or one column of 0 and 1 per label.
    # Whether a row can have any number of labels; otherwise it has exactly one.
    several: bool = False
    separator: str = ","  # Text between the labels of a cell.
    # Names of the classes of each column whose cells hold class indices; others hold names.
    declared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Whether each unit of a row, such as a word, has a label; these keep their order.
    per_unit: bool = False
    numbers: bool = False  # Whether labels are numbers.
    # Whether each column holds its own labels, which become `column=value`.
    of_columns: bool = False

    @property
    def title(self) -> str:
        """Names of the columns."""
        return ", ".join(self.columns)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The classes in the order that the source declares; None if it declares none."""
        if self.of_columns:
            return None
        return self.columns if len(self.columns) > 1 else self.declared.get(self.columns[0])

    @cached_property
    def no_label(self) -> frozenset[str]:
        """The labels that stand for no label."""
        if self.numbers:
            return frozenset()
        found = set[str]()
        for column in self.columns:
            is_unlabelled = column in self.declared or (self.several and not self.of_columns)
            for code in (NO_LABEL, UNLABELLED) if is_unlabelled else (NO_LABEL,):
                texts = (str(code), f"{code}.0")
                found.update(f"{column}={text}" if self.of_columns else text for text in texts)
        return frozenset(found)

    def parse(self, cells: Sequence[object], location: str) -> tuple[str, ...] | None:
        """Return the labels of a row, as often as a cell names them; None if its label is missing.

        Args:
            cells: Values of `columns`.
            location: File and line, for the messages.

        Raises:
            InputError: A cell does not hold a label or, with one column per label, 0 or 1; or it
                holds a list of 0 and 1, whose places have no names.
        """
        if self.of_columns:
            of_cells = zip(self.columns, cells, strict=True)
            texts = [
                (name, self._declared_name(name, cell, location) or as_text(cell, location, name))
                for name, cell in of_cells
            ]
            if any(text is None for _, text in texts):
                return None
            return tuple(f"{name}={text}" for name, text in texts)
        if len(self.columns) > 1:
            pairs = zip(self.columns, cells, strict=True)
            return tuple(name for name, cell in pairs if self._is_yes(name, cell, location))
        (cell,) = cells
        if self.numbers:
            text = as_text(cell, location, self.columns[0])
            return None if text is None else (as_number(text, location, self.columns[0]),)
        if not self.several:
            name = self._name(cell, location)
            return None if name is None else (name,)
        if cell is None:
            return ()
        parts = self._parts(cell, location)
        names = [name for part in parts if (name := self._name(part, location)) is not None]
        return tuple(name.strip() for name in names)

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
            dtype = np.float64 if self.numbers else np.int64
            return np.array([label for (label,) in rows], dtype=dtype)
        matrix = np.zeros((len(rows), classes), dtype=bool)
        for row, labels in enumerate(rows):
            matrix[row, list(labels)] = True
        return matrix

    def _parts(self, cell: object, location: str) -> Sequence[object]:
        """Return the labels of a cell, which is a list, the text of a list, or separated labels."""
        parts: Any = list_or_cell(cell) if isinstance(cell, dict) else cell
        if isinstance(cell, str):
            parts = list_in_text(cell)
            if parts is None and seems_to_be_list(cell):
                raise InputError(
                    f"{location}: column {quoted(self.columns[0])} holds {quoted(cell)}, which"
                    " seems to be a list and cannot be read as one. Write its names without"
                    f" brackets (anger{self.separator}joy), or as JSON ("
                    '["anger", "joy"]).'
                )
            parts = cell.split(self.separator) if parts is None else parts
        if not isinstance(parts, list | tuple):
            return [parts]
        self._refuse_spans(parts, location)
        codes = {str(part).strip().lower() for part in parts}
        if len(codes) < len(parts) and codes <= YES | NO:
            raise InputError(
                f"{location}: the label {quoted(cell)} is a list of 0 and 1, one for each label,"
                " and the labels have no names. Write the names of the labels, or one column of 0"
                " and 1 per label and pass --task multi-label --label_column_name a,b,c."
            )
        return parts

    def _name(self, cell: object, location: str) -> str | None:
        """Return a label as a string: the class name for an index, None if it is missing."""
        if declared := self._declared_name(self.columns[0], cell, location):
            return declared
        values = list_or_cell(cell)
        self._refuse_spans(values, location)
        if not self.several and isinstance(values, list | tuple) and len(values) < 2:
            return self._name(values[0], location) if values else None
        is_list = isinstance(cell, list | tuple | dict) and isinstance(values, list | tuple)
        if not self.several and (is_list or (isinstance(cell, str) and list_in_text(cell))):
            self._parts(cell, location)  # refuses lists of 0 and 1
            raise InputError(
                f"{location}: several labels, {quoted(cell)}. Add --task multi-label, or keep"
                " one label per row."
            )
        return as_text(cell, location, self.columns[0])

    def _declared_name(self, column: str, cell: object, location: str) -> str | None:
        """Return the class of a cell with an index; None if it holds a name, or no label."""
        names = self.declared.get(column)
        if names is None or not isinstance(cell, int) or cell in (NO_LABEL, UNLABELLED):
            return None
        if not 0 <= cell < len(names):
            raise InputError(
                f"{location}: column {quoted(column)} holds {cell}, but the source declares"
                f" {len(names)} classes, numbered 0 to {len(names) - 1}: {quoted_list(names)}."
                " Correct the value, or declare all classes."
            )
        return names[cell]

    def _refuse_spans(self, cell: object, location: str) -> None:
        if isinstance(cell, list | tuple) and any(map(is_span, cell)):
            raise InputError(
                f"{location}: column {quoted(self.columns[0])} holds spans of characters,"
                f" {quoted(cell)}. Add --task tokens, and name the column of the texts with"
                " --text_column_names."
            )

    @staticmethod
    def _is_yes(name: str, cell: object, location: str) -> bool:
        value = (as_text(cell, location, name) or "").strip().lower()
        if value not in YES | NO:
            raise InputError(
                f"{location}: column {quoted(name)} must be 0 or 1, received {quoted(value)}. With"
                " several label columns, each one says whether the row has that label. If one"
                " column holds the labels, pass only that one; if each holds its own, pass --task"
                " columns."
            )
        return value in YES
