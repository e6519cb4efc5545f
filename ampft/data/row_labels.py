"""The labels of rows: one each, any number of them, or one for each unit, such as a word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.data.masks import Masks

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowLabels:
    """The labels of n rows.

    Attributes:
        codes: (m,) int64 indices into the label names, row after row.
        rows: (m,) int64 row of each code, ascending.
        count: Number of rows, n; a row can have no label.
    """

    codes: IntArray
    rows: IntArray
    count: int

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
        """Return the codes of one row."""
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

    Attributes:
        codes: (m,) int64 indices into the label names, example after example.
        counts: (n,) int64 number of units of each example, at least 1.
    """

    codes: IntArray
    counts: IntArray

    def __len__(self) -> int:
        """Number of examples, n."""
        return len(self.counts)

    def __getitem__(self, ids: IntArray) -> IntArray:
        """Return the labels of the units of the examples `ids`."""
        return self.codes[unit_indices(self.counts, ids)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return `padded(codes, counts)`."""
        del copy  # it is always a new array
        return padded(self.codes, self.counts).astype(dtype or np.int32, copy=False)


Targets = npt.NDArray[Any] | UnitLabels | Masks


def unit_indices(counts: IntArray, ids: IntArray) -> IntArray:
    """Return the indices of some examples' units among the units of all examples, in order.

    Args:
        counts: (n,) number of units of each example.
        ids: The examples.
    """
    chosen = counts[ids]
    starts = np.cumsum(counts) - counts
    first = np.cumsum(chosen) - chosen  # of each example in the result
    indices: IntArray = np.repeat(starts[ids] - first, chosen) + np.arange(chosen.sum())
    return indices


def padded(codes: npt.NDArray[np.integer[Any]], counts: IntArray) -> npt.NDArray[np.int32]:
    """Return (n, L) int32 codes of the units of each example, -1 after its last one."""
    result = np.full((len(counts), int(counts.max(initial=0))), -1, dtype=np.int32)
    result[np.arange(result.shape[1]) < counts[:, None]] = codes
    return result
