"""How a case is shown, by kind of data: a tagged sentence, a picture, a sound or masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ampft.data.dataset import ClassificationData

LABEL = "label"
MASK_COLUMN = "predicted_mask"  # of a table of predictions: PNG files of class indices


@dataclass(frozen=True)
class CasePrediction:
    """A prediction of a case."""

    title: str  # Line above it.
    choice: Any  # Entry of `Outcome.choices`.
    path: Path  # Table of predictions that has it, which also has masks.


@dataclass(frozen=True)
class Case:
    """A case that is shown.

    The table of predictions lists the files of images and sounds. Other images, sounds and masks
    are read again from the run's data, which must be unchanged.
    """

    number: int  # Row of the split.
    split: str  # Name of the split.
    label_names: Sequence[str]  # The labels.
    inputs: Mapping[str, str]  # Input columns of the case in the table of predictions.
    truth: Any  # Entry of `Outcome.truth`.
    predictions: Sequence[CasePrediction]  # Predictions to show beside the truth.
    # Function that reads the data again; it returns None if they are not the same.
    data: Callable[[], ClassificationData | None]
    # Function that returns an entry of a table of predictions, by path and column; None if the
    # table lacks the column.
    stored: Callable[[Path, str], Any]

    @property
    def reference(self) -> str:
        """The first input column: a path, or a split and a row."""
        return next(iter(self.inputs.values()), "")
