"""Collect the usable rows of a source, and refuse the others in one message."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from datasets import Dataset, concatenate_datasets

from ampft.data.columns import DataColumns
from ampft.data.labelled_rows import LabelledRows
from ampft.data.request import DataRequest
from ampft.data.row_labels import RowLabels
from ampft.data.sources.source_table import SourceTable
from ampft.errors import InputError, quoted, quoted_list
from ampft.text.numbers import counted


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
        if part.table.unit != first.table.unit:
            raise InputError(
                f"{first.origin} and {part.origin} have different formats, in which rows are"
                " counted differently. Pass files of one format."
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
        table=replace(first.table, origin=origin),
        declared=first.declared,
        ignored=frozenset().union(*(part.ignored for part in parts)),
        notes=tuple(note for part in parts for note in part.notes),
        files=tuple((part.table, len(part.labels)) for part in parts),
    )


class RowCollector:
    """Collects labels row by row, and every unusable row, so that one message names them all.

    Args:
        table: The file or split.
        columns: Columns that are read.
        request: Which labels to ignore, and whether rows without text or label are left out.
    """

    def __init__(self, table: SourceTable, columns: DataColumns, request: DataRequest) -> None:
        self._table, self._columns, self._request = table, columns, request
        self._ignored = frozenset(request.ignored_labels)
        self._index: dict[str, int] = {}
        self._codes, self._counts, self._numbers = array("q"), array("q"), array("q")
        self._no_text, self._no_label = array("q"), array("q")
        self._unlabelled, self._unlabelled_names = array("q"), set[str]()  # rows with -1 or -100
        self._ignored_rows: Counter[str] = Counter()
        self._ignored_found: set[str] = set()
        self._repeated = array("q")  # rows that name a label twice

    def add(self, number: int, inputs: Sequence[object], labels: Collection[str] | None) -> bool:
        """Record the labels of a row, or why it is unusable; return whether it is used.

        Args:
            inputs: The row's inputs; None for a missing one.
            labels: The row's labels; None if the label is missing.
        """
        if labels is None:
            self._no_label.append(number)
            return False
        ignored = self._ignored and self._ignored.intersection(map(str.strip, labels))
        if ignored:
            self._ignored_rows[min(ignored)] += 1
            self._ignored_found |= ignored
            return False
        if unlabelled := self._columns.labels.no_label.intersection(labels):
            self._unlabelled.append(number)
            self._unlabelled_names |= unlabelled
            return False
        if any(value is None for value in inputs):
            self._no_text.append(number)
            return False
        distinct = dict.fromkeys(labels)
        if len(distinct) < len(labels):
            self._repeated.append(number)
        self._codes.extend(self._index.setdefault(name, len(self._index)) for name in distinct)
        self._counts.append(len(distinct))
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
            table=self._table,
            declared=declared,
            ignored=frozenset(self._ignored_found),
            notes=self._notes(),
        )

    def _refuse(self) -> None:
        labels = quoted_list(self._columns.labels.columns)
        unusable = (self._no_text, self._no_label, self._unlabelled)
        total = len(self._numbers) + sum(map(len, unusable)) + self._ignored_rows.total()
        if self._no_label and not self._request.drop_missing_labels:
            raise InputError(
                f"{self._table.place(*self._no_label)}: no label in column {labels}"
                f" ({len(self._no_label)} of {total} rows). Fill the cells, or pass"
                " --drop_missing_labels to leave such rows out."
            )
        if self._unlabelled:
            names = sorted(self._unlabelled_names)
            raise InputError(
                f"{self._table.place(*self._unlabelled)}: the label in column {labels} is"
                f" {' or '.join(names)}, which stands for no label"
                f" ({len(self._unlabelled)} of {total} rows). Pass --ignore_label"
                f" {','.join(names)} to leave such rows out, or give the class another name."
            )
        if self._no_text and not self._request.drop_missing_text:
            raise InputError(
                f"{self._table.place(*self._no_text)}: nothing in column"
                f" {quoted_list(self._columns.inputs)} ({len(self._no_text)} of {total} rows). Fill"
                " the cells, or pass --drop_missing_text to leave such rows out."
            )

    def _notes(self) -> tuple[str, ...]:
        notes = [
            f"{self._table.origin}: {counted(count, 'row')} with the label {quoted(label)} left"
            " out (--ignore_label)."
            for label, count in sorted(self._ignored_rows.items())
        ]
        for numbers, what, flag in (
            (self._no_text, "text", "--drop_missing_text"),
            (self._no_label, "a label", "--drop_missing_labels"),
        ):
            if numbers:
                notes.append(
                    f"{self._table.place(*numbers)}: {counted(len(numbers), 'row')} without"
                    f" {what} left out ({flag})."
                )
        if self._repeated:
            notes.append(
                f"{self._table.place(*self._repeated)}: {counted(len(self._repeated), 'row')} with"
                " a label named twice, which counts once."
            )
        return tuple(notes)
