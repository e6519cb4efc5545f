"""Which classes are taken for which: one matrix per arm, or the largest confusions of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampft.comparison.findings import ArmResult

MOST_CLASSES = 30  # of a matrix that can be read
LARGEST = 25  # confusions in the table that takes its place
SHADES = 8


@dataclass(frozen=True)
class Cell:
    """A count and its shade: 0 is blank; those on the diagonal are right."""

    count: int
    shade: int
    is_right: bool


@dataclass(frozen=True)
class Confusion:
    """One kind of mistake; `counts` has an entry per arm."""

    label: str
    predicted: str
    counts: tuple[int, ...]


def matrix_cells(arm: ArmResult) -> tuple[tuple[Cell, ...], ...]:
    """Return the cells of a matrix; the shade is the share of the row, on a square-root scale.

    Mistakes are few beside what is right: the root lets them be seen.
    """
    return tuple(
        tuple(
            Cell(count, _shade(count, sum(row)), column == index)
            for column, count in enumerate(row)
        )
        for index, row in enumerate(arm.confusion)
    )


def largest_confusions(
    arms: Sequence[ArmResult], label_names: Sequence[str]
) -> tuple[Confusion, ...]:
    """Return the mistakes that any arm makes most often, most frequent first."""
    matrices = [arm.confusion for arm in arms]
    pairs = [
        (label, predicted)
        for label in range(len(label_names))
        for predicted in range(len(label_names))
        if label != predicted and any(m[label][predicted] for m in matrices)
    ]
    pairs.sort(key=lambda pair: (-max(m[pair[0]][pair[1]] for m in matrices), pair))
    return tuple(
        Confusion(
            label_names[label],
            label_names[predicted],
            tuple(m[label][predicted] for m in matrices),
        )
        for label, predicted in pairs[:LARGEST]
    )


def _shade(count: int, total: int) -> int:
    return 0 if not count else max(1, round(SHADES * (count / total) ** 0.5))
