"""Differences per class: those that moved most first, where there are many."""

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
