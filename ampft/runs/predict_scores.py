"""The report of predictions on rows whose labels are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.errors import InputError
from ampft.kinds.prediction import LabelReader
from ampft.runs.show import report_with_heading
from ampft.tasks.outcome import Problem


class Scores:
    """Collects the predictions of rows with labels."""

    def __init__(self, reader: LabelReader, problem: Problem, *, required: bool) -> None:
        """Collect nothing yet.

        Args:
            reader: Where the labels are.
            problem: Problem of the model.
            required: Whether a label that cannot be read is an error; otherwise nothing is scored.
        """
        self.reader = reader
        self._problem = problem
        self._required = required
        self._truth: list[tuple[str, ...]] = []
        self._parts: list[dict[str, npt.NDArray[Any]]] = []
        self._missing = 0
        self._unreadable: str | None = None

    def add(
        self,
        cells: Sequence[Sequence[object]],
        places: Sequence[str],
        decoded: Mapping[str, npt.NDArray[Any]],
    ) -> None:
        """Add the label cells of rows, with their places in the file, and their predictions."""
        if self._unreadable:
            return
        labelled = []
        for row, (values, place) in enumerate(zip(cells, places, strict=True)):
            try:
                labels = self.reader.parse(values, place)
            except InputError as error:
                if self._required:
                    raise
                self._unreadable = str(error)
                return
            if labels is None:
                self._missing += 1
            else:
                labelled.append(row)
                self._truth.append(labels)
        self._parts.append({name: array[labelled] for name, array in decoded.items()})

    def text(self) -> str:
        """Return the report, or why there is none.

        Raises:
            InputError: The labels have another form than in training, and are required.
        """
        column = self.reader.title
        if self._unreadable:
            return f"not scored: {self._unreadable}"
        try:
            truth = self.reader.as_trained(self._truth)
        except InputError as error:
            if self._required:
                raise
            return f"not scored: {error}"
        index = {name: number for number, name in enumerate(self._problem.label_names)}
        known = [row for row, labels in enumerate(truth) if index.keys() >= set(labels)]
        if not known:
            return f"not scored: no row has a label of the model in column {column!r}"
        codes = [tuple(index[name] for name in truth[row]) for row in known]
        decoded = {n: np.concatenate([p[n] for p in self._parts])[known] for n in self._parts[0]}
        outcome = self._problem.outcome("file", self.reader.targets(codes, len(index)), decoded)
        left_out = {
            "labels that the model does not know": len(truth) - len(known),
            "no label": self._missing,
        }
        notes = [
            f"{count} rows with {what} are left out" for what, count in left_out.items() if count
        ]
        heading = f"labels from column {column!r}{''.join(f'; {note}' for note in notes)}"
        return f"{heading}\n{report_with_heading(outcome.report(), selected=False)}"
