"""The report of predictions on rows whose labels are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampft.data.columns import LABEL_FLAG, LABELS, folded, require
from ampft.data.label_parser import LabelParser
from ampft.data.sources.table import Table, described_columns
from ampft.errors import InputError
from ampft.runs.predictor import Predictions
from ampft.runs.record import RunRecord
from ampft.runs.show import report_with_heading
from ampft.tasks import TASKS
from ampft.tasks.outcome import Problem


def find_labels(
    table: Table, inputs: Sequence[str], record: RunRecord, requested: str | None
) -> LabelParser | None:
    """Return where the labels of the rows are; None if the file has none.

    Args:
        table: The file.
        inputs: Its input columns.
        record: Record of the training, whose label column is looked for.
        requested: Label column that the user named, or None.

    Raises:
        InputError: The requested column is missing.
    """
    several = TASKS[record.task].several_labels
    named = requested or record.arguments.get("label_column_name")
    columns = tuple(part.strip() for part in named.split(",")) if named and several else (named,)
    if requested:
        names = tuple(name for name in columns if name is not None)
        describe = lambda: described_columns(table)  # noqa: E731
        require(names, table.columns, LABEL_FLAG, origin=table.origin, describe=describe)
    elif named is None or not set(columns) <= set(table.columns):
        usual = [c for c in table.columns if folded(c) in LABELS and c not in inputs]
        usual = [c for c in usual if c == "label"] or usual
        if len(usual) != 1:
            return None
        columns = (usual[0],)
    separator = str(record.arguments.get("label_separator", ","))
    return LabelParser(tuple(map(str, columns)), several, separator)


class Scores:
    """Collects the predictions of rows with labels that the model knows."""

    def __init__(self, parser: LabelParser, problem: Problem, *, required: bool) -> None:
        """Collect nothing yet.

        Args:
            parser: Where the labels are.
            problem: Problem of the model.
            required: Whether a label that cannot be read is an error; otherwise nothing is scored.
        """
        self.parser = parser
        self._problem = problem
        self._required = required
        self._index = {name: number for number, name in enumerate(problem.label_names)}
        self._truth: list[tuple[int, ...]] = []
        self._parts: list[dict[str, Any]] = []
        self._unknown = self._missing = 0
        self._unreadable: str | None = None

    def add(
        self, cells: Sequence[Sequence[object]], places: Sequence[str], predictions: Predictions
    ) -> None:
        """Add the label cells of rows, with their places in the file for messages."""
        if self._unreadable:
            return
        rows = []
        for row, (values, place) in enumerate(zip(cells, places, strict=True)):
            try:
                labels = self.parser.parse(values, place)
            except InputError as error:
                if self._required:
                    raise
                self._unreadable = str(error)
                return
            if labels is None:
                self._missing += 1
            elif not self._index.keys() >= set(labels):
                self._unknown += 1
            else:
                rows.append(row)
                self._truth.append(tuple(self._index[name] for name in labels))
        self._parts.append({name: array[rows] for name, array in predictions.decoded.items()})

    def text(self) -> str:
        """Return the report, or why there is none."""
        column = ", ".join(self.parser.columns)
        if self._unreadable:
            return f"not scored: {self._unreadable}"
        if not self._truth:
            return f"not scored: no row has a label of the model in column {column!r}"
        decoded = {n: np.concatenate([p[n] for p in self._parts]) for n in self._parts[0]}
        outcome = self._problem.outcome("file", self._targets(), decoded)
        left_out = {
            "labels that the model does not know": self._unknown,
            "no label": self._missing,
        }
        notes = [
            f"{count} rows with {what} are left out" for what, count in left_out.items() if count
        ]
        heading = f"labels from column {column!r}{''.join(f'; {note}' for note in notes)}"
        return f"{heading}\n{report_with_heading(outcome.report(), selected=False)}"

    def _targets(self) -> Any:
        if not self.parser.several:
            return np.array([label for (label,) in self._truth], dtype=np.int64)
        matrix = np.zeros((len(self._truth), len(self._index)), dtype=bool)
        for row, labels in enumerate(self._truth):
            matrix[row, list(labels)] = True
        return matrix
