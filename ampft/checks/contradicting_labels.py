"""Training rows that repeat the inputs of another one with another label."""

from __future__ import annotations

from itertools import islice

import numpy as np

from ampft.data.dataset import cells
from ampft.data.row_collector import LabelledRows
from ampft.text.numbers import counted

MOST_ROWS = 100_000  # rows that are examined


def contradiction_notes(train: LabelledRows, inputs: tuple[str, ...]) -> list[str]:
    """Return a note on equal inputs with several labels, of which a model can learn only one.

    Args:
        inputs: Columns of the texts.
    """
    first_row: dict[tuple[str, ...], int] = {}
    contradicted = []
    for row, texts in enumerate(islice(cells(train.inputs, inputs), MOST_ROWS)):
        first = first_row.setdefault(tuple(texts), row)
        if first != row and train.names_of(first) != train.names_of(row):
            contradicted.append(row)
    if not contradicted:
        return []
    repeat = "repeats" if len(contradicted) == 1 else "repeat"
    return [
        f"{counted(len(contradicted), 'training row')} {repeat} the inputs of an earlier one with "
        f"a different label: {train.location(np.array(contradicted))}. No model predicts both."
    ]
