"""Training rows whose inputs occur in an earlier row with another label."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ampft.data.labelled_rows import LabelledRows
from ampft.text.numbers import counted


def contradiction_notes(train: LabelledRows, digests: npt.NDArray[np.uint64]) -> list[str]:
    """Return a note on rows with equal inputs and different labels; none without such rows.

    Args:
        digests: (n,) digests of the inputs, equal for inputs that count as equal.
    """
    _, first, distinct = np.unique(digests, return_index=True, return_inverse=True)
    earliest = first[distinct]  # (n,) the first row with the same inputs
    repeated = np.flatnonzero(earliest < np.arange(len(digests)))
    contradicted = [
        row for row in repeated.tolist() if train.names_of(row) != train.names_of(earliest[row])
    ]
    if not contradicted:
        return []
    repeat = "repeats" if len(contradicted) == 1 else "repeat"
    return [
        f"{counted(len(contradicted), 'training row')} {repeat} the inputs of an earlier row with "
        f"a different label: {train.location(np.array(contradicted))}. A model gives equal inputs "
        "one answer."
    ]
