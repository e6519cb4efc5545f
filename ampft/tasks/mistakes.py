"""What an outcome says about its mistakes: how they are ranked, and which classes are confused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Confused = Callable[[int, int], npt.NDArray[np.generic]]


def no_details(case: int) -> str:
    """Return nothing: a case has one label."""
    del case
    return ""


@dataclass(frozen=True, kw_only=True)
class OutcomeMistakes:
    """The mistakes of an outcome with n cases and K classes.

    Attributes:
        scores: (n,) float64 number by which wrong cases are ranked, largest first: the probability
            of the wrong answer, 0 to 1, or another share.
        names: Names of the K classes.
        support: Number of cases or units of each class.
        counts: Number of mistakes by (label, prediction), as indices of `names`.
        confused: Function that returns for a label and a prediction how often each case has this
            mistake, (n,) booleans or counts.
        unit: What `support` and `counts` count, in the plural.
        details: Function that returns which labels or words of a case are wrong, if it has several.
        heading: Heading of the ranked cases.
        ranking: Sentences about the order of the cases.
        has_labels: Whether a mistake is a label taken for another; otherwise the text of the
            prediction says how good it is.
    """

    scores: npt.NDArray[np.float64]
    names: Sequence[str]
    support: Sequence[int]
    counts: Mapping[tuple[int, int], int]
    confused: Confused
    unit: str = "examples"
    details: Callable[[int], str] = no_details
    heading: str = "Most confident errors"
    ranking: str = "The number is the probability that the model gave to the wrong answer."
    has_labels: bool = True


def off_diagonal(matrix: npt.NDArray[np.int64] | None) -> dict[tuple[int, int], int]:
    """Return the counts of a (K, K) confusion matrix that are mistakes, without zeros."""
    if matrix is None:
        return {}
    cells = np.argwhere(np.asarray(matrix) > 0).tolist()
    return {(row, column): int(matrix[row, column]) for row, column in cells if row != column}
