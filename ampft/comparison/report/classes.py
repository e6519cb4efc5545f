"""What the arms do class by class: differences that moved most, and confusions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ampft.comparison.findings import ArmResult
from ampft.comparison.report.arm_styles import Look
from ampft.comparison.report.drawing import Axis, shown
from ampft.comparison.report.strips import class_axis, class_strip, points_head

MOST = 30  # classes that are shown before the rest is folded


@dataclass(frozen=True)
class ClassRow:
    """One class; `differences` as the strip shows them, None where an arm has no mean."""

    name: str
    support: int
    baseline_f1: float
    differences: tuple[float | None, ...]
    strip: Markup


@dataclass(frozen=True)
class ClassTable:
    """All classes: `first` is shown, `folded` stands below; `arms` are the columns."""

    arms: tuple[Look, ...]
    head: Markup
    first: tuple[ClassRow, ...]
    folded: tuple[ClassRow, ...]


def class_rows(arms: Sequence[ArmResult], looks: Sequence[Look]) -> ClassTable | None:
    """Return the table; None where the baseline or all others have no figures per class."""
    others = [(a, look) for a, look in zip(arms[1:], looks[1:], strict=True) if a.classes]
    if not arms[0].classes or not others:
        return None
    axis = class_axis(row for arm, _ in others for row in arm.classes)
    rows = [_row(index, arms[0], others, axis) for index in range(len(arms[0].classes))]
    if len(rows) > MOST:
        rows.sort(key=lambda row: -max(abs(d or 0.0) for d in row.differences))
    columns = tuple(look for _, look in others)
    return ClassTable(columns, points_head(axis), tuple(rows[:MOST]), tuple(rows[MOST:]))


def _row(
    index: int, base: ArmResult, others: Sequence[tuple[ArmResult, Look]], axis: Axis
) -> ClassRow:
    own = base.classes[index]
    found = [(look, arm.classes[index].f1_difference) for arm, look in others]
    drawn = [(look, value) for look, value in found if value is not None]
    return ClassRow(
        name=own.name,
        support=own.support,
        baseline_f1=own.f1,
        differences=tuple(value for _, value in found),
        strip=class_strip(shown(own.name) or "blank", drawn, axis),
    )


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
