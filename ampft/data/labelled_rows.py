"""The usable rows of one split of a source, with their labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from datasets import Dataset

from ampft.data.row_labels import IntArray, RowLabels
from ampft.data.sources.source_table import SourceTable
from ampft.errors import listed

MAX_FILES_SHOWN = 3


@dataclass(frozen=True)
class LabelledRows:
    """The usable rows of one split of a source."""

    inputs: Dataset  # The input columns.
    labels: RowLabels  # The labels of the n rows; codes are indices into `names`.
    names: tuple[str, ...]  # Labels in the order in which they first appear.
    numbers: IntArray  # (n,) number of each row in its table.
    table: SourceTable  # Where they were read.
    # The classes in the order that the source declares; None if it declares none.
    declared: tuple[str, ...] | None = None
    ignored: frozenset[str] = frozenset()  # Labels whose rows were left out.
    notes: tuple[str, ...] = ()  # Sentences about rows that were left out.
    # Files and their numbers of rows in order, if there are several.
    files: tuple[tuple[SourceTable, int], ...] = ()

    @property
    def origin(self) -> str:
        """The file or files, or the data set and its split."""
        return self.table.origin

    @property
    def left_out_by_label(self) -> str:
        """Which rows `--ignore_label` left out; empty if none."""
        return " ".join(self.notes) if self.ignored else ""

    def names_of(self, row: int) -> frozenset[str]:
        """Return the labels of the row with index `row`."""
        return frozenset(self.names[code] for code in self.labels.row_codes(row))

    def location(self, rows: IntArray) -> str:
        """Return the location of the rows with these indices: `file, lines 3, 7`."""
        files = self.files or ((self.table, len(self.labels)),)
        file_of = np.searchsorted(np.cumsum([count for _, count in files]), rows, "right")
        places = [
            files[file][0].place(*self.numbers[rows[file_of == file]].tolist())
            for file in np.unique(file_of)
        ]
        more = " files" if len(places) > MAX_FILES_SHOWN else ""
        return listed(places, limit=MAX_FILES_SHOWN, separator="; ") + more
