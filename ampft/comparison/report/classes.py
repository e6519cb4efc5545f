"""Tables per class: differences in F1, confusion matrices and largest confusions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from ampft.comparison.findings import ArmResult
from ampft.comparison.report.arm_styles import ArmStyle
from ampft.comparison.report.drawing import Axis, one_line
from ampft.comparison.report.strips import class_axis, class_strip, points_head

MAX_CLASS_ROWS = 30  # further classes are folded


@dataclass(frozen=True)
class ClassRow:
    """One class; `differences` in the order of the arms, None if an arm has no mean."""

    name: str
    support: int
    baseline_f1: float
    differences: tuple[float | None, ...]
    strip: Markup


@dataclass(frozen=True)
class ClassTable:
    """All classes: `first` are visible, `folded` are hidden below; `arms` are the columns."""

    arms: tuple[ArmStyle, ...]
    head: Markup
    first: tuple[ClassRow, ...]
    folded: tuple[ClassRow, ...]


def class_rows(arms: Sequence[ArmResult], styles: Sequence[ArmStyle]) -> ClassTable | None:
    """Return the table; None if the baseline or all other arms have no figures per class."""
    others = [(a, style) for a, style in zip(arms[1:], styles[1:], strict=True) if a.classes]
    if not arms[0].classes or not others:
        return None
    axis = class_axis(row for arm, _ in others for row in arm.classes)
    rows = [_row(index, arms[0], others, axis) for index in range(len(arms[0].classes))]
    if len(rows) > MAX_CLASS_ROWS:
        rows.sort(key=lambda row: -max(abs(d or 0.0) for d in row.differences))
    columns = tuple(style for _, style in others)
    return ClassTable(
        columns, points_head(axis), tuple(rows[:MAX_CLASS_ROWS]), tuple(rows[MAX_CLASS_ROWS:])
    )


def _row(
    index: int, base: ArmResult, others: Sequence[tuple[ArmResult, ArmStyle]], axis: Axis
) -> ClassRow:
    base_class = base.classes[index]
    differences = [(style, arm.classes[index].f1_difference) for arm, style in others]
    drawn = [(style, value) for style, value in differences if value is not None]
    return ClassRow(
        name=base_class.name,
        support=base_class.support,
        baseline_f1=base_class.f1,
        differences=tuple(value for _, value in differences),
        strip=class_strip(one_line(base_class.name) or "blank", drawn, axis),
    )


MAX_MATRIX_CLASSES = 30  # a matrix of more classes is not readable
MAX_CONFUSIONS = 25  # in the table that replaces it
SHADES = 8


@dataclass(frozen=True)
class Cell:
    """A count and its shade (0 is blank); counts on the diagonal are correct."""

    count: int
    shade: int
    is_correct: bool


@dataclass(frozen=True)
class Confusion:
    """One kind of error; `counts` has an entry per arm."""

    label: str
    predicted: str
    counts: tuple[int, ...]


def matrix_cells(arm: ArmResult) -> tuple[tuple[Cell, ...], ...]:
    """Return the cells of a matrix, shaded by the share of the row on a square-root scale.

    The square root makes errors visible, which are few compared with correct predictions.
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
    """Return the most frequent errors of any arm, the most frequent first."""
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
        for label, predicted in pairs[:MAX_CONFUSIONS]
    )


def _shade(count: int, total: int) -> int:
    return 0 if not count else max(1, round(SHADES * (count / total) ** 0.5))
