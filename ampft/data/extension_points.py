"""What add-ons add to reading data: checks of what was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ampft.registry import ExtensionPoint

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ampft.data.columns import DataColumns
    from ampft.data.labelled_rows import LabelledRows


class TextNotes(Protocol):
    """Returns notes on training texts that a program seems to have changed."""

    def __call__(self, train: LabelledRows, columns: DataColumns) -> list[str]: ...


class ContradictionNotes(Protocol):
    """Returns notes on rows with equal inputs and different labels."""

    def __call__(self, train: LabelledRows, digests: npt.NDArray[np.uint64]) -> list[str]: ...


class HiddenCellNotes(Protocol):
    """Returns notes on hidden rows, columns and sheets of a workbook."""

    def __call__(
        self, worksheet: Any, columns: Mapping[str, int], path: Path, sheets: Sequence[str]
    ) -> tuple[str, ...]: ...


TEXT_NOTES = ExtensionPoint[TextNotes]("checks", "finds garbled texts")
CONTRADICTION_NOTES = ExtensionPoint[ContradictionNotes]("checks", "finds contradicting labels")
HIDDEN_CELL_NOTES = ExtensionPoint[HiddenCellNotes]("checks", "finds hidden cells")
