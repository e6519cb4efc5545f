"""Collect the usable rows of a source, and refuse the others in one message."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from datasets import Dataset, concatenate_datasets

from ampft.data.columns import DataColumns
from ampft.data.request import DataRequest
from ampft.data.row_labels import IntArray, RowLabels
from ampft.errors import InputError, listed, quoted, quoted_list

MAX_NUMBERS_SHOWN = 10
MAX_FILES_SHOWN = 3
POSITION = "position"  # unit of data sets and data in memory, which Python counts from 0
# What `datasets` and loss functions use for "no label"; as a class it would be meaningless.
NO_LABEL = frozenset({"-1", "-100", "-1.0", "-100.0"})


@dataclass(frozen=True)
class LabelledRows:
    """The usable rows of one split of a source.

    Attributes:
        inputs: The input columns.
        labels: The labels of the n rows; codes are indices into `names`.
        names: Labels in the order in which they first appear.
        numbers: (n,) line or row number of each row in `origin`, from 1, or its position from 0.
        origin: The file, or the data set and its split.
        unit: What the numbers count, `line`, `row` or `POSITION`.
        declared: The classes in the order that the source declares; None if it declares none.
        ignored: Labels whose rows were left out.
        notes: Sentences about rows that were left out.
        files: Files and their numbers of rows in order, if there are several.
        index: Labels of all rows of a data frame, by position; empty if it has none.
    """

    inputs: Dataset
    labels: RowLabels
    names: tuple[str, ...]
    numbers: IntArray
    origin: str
    unit: str
    declared: tuple[str, ...] | None
    ignored: frozenset[str]
    notes: tuple[str, ...]
    files: tuple[tuple[str, int], ...] = ()
    index: Sequence[str] = ()

    def names_of(self, row: int) -> frozenset[str]:
        """Return the labels of the row with index `row`."""
        return frozenset(self.names[code] for code in self.labels.row_codes(row))

    def location(self, rows: IntArray) -> str:
        """Return the location of the rows with these indices: `file, lines 3, 7`."""
        if not self.files:
            return location(self.origin, self.unit, self.numbers[rows].tolist(), self.index)
        file_of = np.searchsorted(np.cumsum([count for _, count in self.files]), rows, "right")
        places = [
            location(self.files[file][0], self.unit, self.numbers[rows[file_of == file]].tolist())
            for file in np.unique(file_of)
        ]
        files = " files" if len(places) > MAX_FILES_SHOWN else ""
        return listed(places, limit=MAX_FILES_SHOWN, separator="; ") + files

    def file_names(self) -> list[str]:
        """Return the file of each row; empty if all are in one."""
        return [file for file, count in self.files for _ in range(count)]


def concatenated(parts: Sequence[LabelledRows], origin: str) -> LabelledRows:
    """Join the rows of several files into one split.

    Args:
        parts: The rows of each file, at least one.
        origin: The files as the user named them.

    Raises:
        InputError: Some files count rows and others lines, so that a number would be ambiguous.
    """
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    for part in parts:
        if part.unit != first.unit:
            raise InputError(
                f"{first.origin} and {part.origin} have different formats, in which rows are"
                " counted differently. Name files of one format."
            )
    names = tuple(dict.fromkeys(name for part in parts for name in part.names))
    index = {name: code for code, name in enumerate(names)}
    codes = [
        np.array([index[name] for name in part.names], dtype=np.int64)[part.labels.codes]
        for part in parts
    ]
    return LabelledRows(
        inputs=concatenate_datasets([part.inputs for part in parts]),
        labels=RowLabels.from_counts(
            np.concatenate(codes), np.concatenate([part.labels.counts for part in parts])
        ),
        names=names,
        numbers=np.concatenate([part.numbers for part in parts]),
        origin=origin,
        unit=first.unit,
        declared=first.declared,
        ignored=frozenset().union(*(part.ignored for part in parts)),
        notes=tuple(note for part in parts for note in part.notes),
        files=tuple((part.origin, len(part.labels)) for part in parts),
    )


def location(origin: str, unit: str, numbers: Sequence[int], index: Sequence[str] = ()) -> str:
    """Return an origin with line or row numbers: the first ten, and how many more there are.

    Args:
        origin: The file, or the data set and its split.
        unit: What the numbers count, `line`, `row` or `POSITION`.
        numbers: The numbers.
        index: Labels of all rows of a data frame, by position; empty if it has none.
    """
    shown = numbers[:MAX_NUMBERS_SHOWN]
    plural = unit if len(numbers) == 1 else f"{unit}s"
    place = f"{origin}, {plural} {listed([*map(str, numbers)], limit=MAX_NUMBERS_SHOWN)}"
    if unit == POSITION:
        labels = f"; index {', '.join(index[number] for number in shown)}" if len(index) else ""
        place += f" (from 0{labels})"
    return place


class RowCollector:
    """Collects labels row by row, and every unusable row, so that one message names them all.

    Args:
        origin: The file, or the data set and its split.
        unit: What row numbers count, `line`, `row` or `POSITION`.
        columns: Columns that are read.
        request: Which labels to ignore, and whether rows without text or label are left out.
        index: Labels of all rows of a data frame, by position; empty if it has none.
    """

    def __init__(
        self,
        *,
        origin: str,
        unit: str,
        columns: DataColumns,
        request: DataRequest,
        index: Sequence[str] = (),
    ) -> None:
        self._origin, self._unit, self._labels_of_rows = origin, unit, index
        self._inputs = quoted_list(columns.inputs)
        self._labels = quoted_list(columns.labels.columns)
        self._drop_texts = request.drop_missing_text
        self._drop_labels = request.drop_missing_labels
        self._ignored = frozenset(request.ignore_labels)
        self._index: dict[str, int] = {}
        self._codes, self._counts, self._numbers = array("q"), array("q"), array("q")
        self._no_text, self._no_label, self._negative = array("q"), array("q"), array("q")
        self._ignored_rows: Counter[str] = Counter()
        self._ignored_found: set[str] = set()

    def add(self, number: int, inputs: Sequence[object], labels: Collection[str] | None) -> bool:
        """Record the labels of a row, or why it is unusable; return whether it is used.

        Args:
            number: Line or row number.
            inputs: The row's inputs; None for a missing one.
            labels: The row's distinct labels; None if the label is missing.
        """
        if labels is None:
            self._no_label.append(number)
            return False
        if ignored := self._ignored.intersection(labels):
            self._ignored_rows[min(ignored)] += 1
            self._ignored_found |= ignored
            return False
        if not NO_LABEL.isdisjoint(labels):
            self._negative.append(number)
            return False
        if any(value is None for value in inputs):
            self._no_text.append(number)
            return False
        self._codes.extend(self._index.setdefault(name, len(self._index)) for name in labels)
        self._counts.append(len(labels))
        self._numbers.append(number)
        return True

    def finish(self, inputs: Dataset, *, declared: tuple[str, ...] | None = None) -> LabelledRows:
        """Return the collected rows.

        Args:
            inputs: The inputs of the rows for which `add` returned true, in that order.
            declared: The classes, if the source declares them.

        Raises:
            InputError: A label is missing or stands for "no label", or a text is missing.
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
            ignored=frozenset(self._ignored_found),
            notes=self._notes(),
            index=self._labels_of_rows,
        )

    def _refuse(self) -> None:
        if self._no_label and not self._drop_labels:
            raise InputError(
                f"{self._location(self._no_label)}: no label in column {self._labels}"
                f" ({len(self._no_label)} of {self._total} rows). Fill the cells, or pass"
                " --drop_missing_labels to leave such rows out."
            )
        if self._negative:
            raise InputError(
                f"{self._location(self._negative)}: the label in column {self._labels} is -1 or"
                " -100, which stands for no label. Pass --ignore_label -1 (or -100) to leave such"
                " rows out, or rename the class."
            )
        if self._no_text and not self._drop_texts:
            raise InputError(
                f"{self._location(self._no_text)}: nothing in column {self._inputs}"
                f" ({len(self._no_text)} of {self._total} rows). Fill the cells, or pass"
                " --drop_missing_text to leave such rows out."
            )

    def _notes(self) -> tuple[str, ...]:
        notes = [
            f"{self._origin}: {count} rows with the label {quoted(label)} are left out"
            " (--ignore_label)."
            for label, count in sorted(self._ignored_rows.items())
        ]
        if self._no_text:
            notes.append(
                f"{self._location(self._no_text)}: {len(self._no_text)} rows without text are left"
                " out (--drop_missing_text)."
            )
        if self._no_label:
            notes.append(
                f"{self._location(self._no_label)}: {len(self._no_label)} rows without a label are"
                " left out (--drop_missing_labels)."
            )
        return tuple(notes)

    def _location(self, numbers: array[int]) -> str:
        return location(self._origin, self._unit, numbers.tolist(), self._labels_of_rows)

    @property
    def _total(self) -> int:
        unusable = (self._no_text, self._no_label, self._negative)
        return len(self._numbers) + sum(map(len, unusable)) + self._ignored_rows.total()
