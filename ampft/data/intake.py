"""What is taken of a source's rows, and what is refused, row by row."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from datasets import Dataset

from ampft.data.row_labels import IntArray, RowLabels
from ampft.errors import InputError

PLACES_SHOWN = 10
# What datasets and losses write for "no label": as a class it would be a phantom
NO_LABEL = frozenset({"-1", "-100", "-1.0", "-100.0"})


@dataclass(frozen=True)
class LabelledRows:
    """One split as its source gives it.

    Attributes:
        inputs: The input columns.
        labels: The labels of the n rows; codes are indices into `names`.
        names: Labels in the order in which they first appear.
        numbers: (n,) where each row stands in `origin`, from 1, in `unit`.
        origin: The file, or the dataset and its split.
        unit: `line` or `row`.
        declared: The classes in the order that the source declares, if it does.
        notes: What was dropped.
    """

    inputs: Dataset
    labels: RowLabels
    names: tuple[str, ...]
    numbers: IntArray
    origin: str
    unit: str
    declared: tuple[str, ...] | None
    notes: tuple[str, ...]

    def names_of(self, row: int) -> frozenset[str]:
        """Return the labels of a row, given by its index."""
        return frozenset(self.names[code] for code in self.labels.of_row(row))

    def places(self, rows: IntArray) -> str:
        """Return where rows, given by their indices, stand: `file, lines 3, 7`."""
        return places(self.origin, self.unit, self.numbers[rows].tolist())


def places(origin: str, unit: str, numbers: Sequence[int]) -> str:
    """Return an origin with line or row numbers, the first ten of them and how many more."""
    listed = ", ".join(map(str, numbers[:PLACES_SHOWN]))
    more = len(numbers) - PLACES_SHOWN
    plural = unit if len(numbers) == 1 else f"{unit}s"
    return f"{origin}, {plural} {listed}" + (f" and {more} more" if more > 0 else "")


class Intake:
    """Collects labels row by row, and every row that is refused, so that one message names all.

    Args:
        origin: The file, or the dataset and its split.
        unit: `line` or `row`.
        inputs: The input columns, as the messages call them.
        labels: The label columns, likewise.
        drop_missing_text: Rows with a missing text are counted and left out, not refused.
        ignore_labels: Rows with these labels are counted and left out.
    """

    def __init__(
        self,
        *,
        origin: str,
        unit: str,
        inputs: tuple[str, ...],
        labels: tuple[str, ...],
        drop_missing_text: bool,
        ignore_labels: Sequence[str],
    ) -> None:
        self._origin, self._unit = origin, unit
        self._inputs, self._label = inputs, ", ".join(labels)
        self._drop = drop_missing_text
        self._ignored = frozenset(ignore_labels)
        self._index: dict[str, int] = {}
        self._codes, self._counts, self._numbers = array("q"), array("q"), array("q")
        self._no_text, self._no_label, self._phantom = array("q"), array("q"), array("q")
        self._left_out: Counter[str] = Counter()

    def take(self, number: int, inputs: Sequence[object], labels: Collection[str] | None) -> bool:
        """Return whether the row is kept, and remember its labels or what is wrong with it.

        Args:
            number: Line or row.
            inputs: The row's inputs; None where one is missing.
            labels: The row's distinct labels; None where the row does not say.
        """
        if labels is None:
            self._no_label.append(number)
            return False
        if ignored := self._ignored.intersection(labels):
            self._left_out[min(ignored)] += 1
            return False
        if not NO_LABEL.isdisjoint(labels):
            self._phantom.append(number)
            return False
        if any(value is None for value in inputs):
            self._no_text.append(number)
            return False
        self._codes.extend(self._index.setdefault(name, len(self._index)) for name in labels)
        self._counts.append(len(labels))
        self._numbers.append(number)
        return True

    def finish(self, inputs: Dataset, *, declared: tuple[str, ...] | None = None) -> LabelledRows:
        """Return the rows taken.

        Args:
            inputs: The inputs of the rows for which `take` returned true, in that order.
            declared: The classes, if the source declares them.

        Raises:
            InputError: For missing labels, labels that say "no label", and missing texts.
        """
        self._refuse()
        return LabelledRows(
            inputs=inputs,
            labels=RowLabels.from_counts(self._codes, self._counts),
            names=tuple(self._index),
            numbers=np.array(self._numbers, dtype=np.int64),
            origin=self._origin,
            unit=self._unit,
            declared=declared,
            notes=self._notes(),
        )

    def _refuse(self) -> None:
        if self._no_label:
            raise InputError(
                f"{self._places(self._no_label)}: no label in column {self._label!r}"
                f" ({len(self._no_label)} of {self._seen} rows). Fill the cells or remove the rows."
            )
        if self._phantom:
            raise InputError(
                f"{self._places(self._phantom)}: the label in column {self._label!r} is -1 or -100,"
                " which stands for no label. Give --ignore_label -1 (or -100) to leave such rows"
                " out, or rename the class."
            )
        if self._no_text and not self._drop:
            named = ", ".join(map(repr, self._inputs))
            raise InputError(
                f"{self._places(self._no_text)}: nothing in column {named}"
                f" ({len(self._no_text)} of {self._seen} rows). Fill the cells, or give"
                " --drop_missing_text to leave such rows out."
            )

    def _notes(self) -> tuple[str, ...]:
        notes = [
            f"{self._origin}: {count} rows with the label {label!r} are left out (--ignore_label)."
            for label, count in sorted(self._left_out.items())
        ]
        if self._no_text:
            notes.append(
                f"{self._places(self._no_text)}: {len(self._no_text)} rows without text are left"
                " out (--drop_missing_text)."
            )
        return tuple(notes)

    def _places(self, numbers: array[int]) -> str:
        return places(self._origin, self._unit, numbers.tolist())

    @property
    def _seen(self) -> int:
        refused = (self._no_text, self._no_label, self._phantom)
        return len(self._numbers) + sum(map(len, refused)) + self._left_out.total()
