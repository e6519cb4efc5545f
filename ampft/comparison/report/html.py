"""comparison.html: a single, deterministic file without scripts or network access."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ampft.comparison.answer import answer_text
from ampft.comparison.findings import ArmResult, Comparison
from ampft.comparison.remarks import remark_texts
from ampft.comparison.report import strips, tables
from ampft.comparison.report.arm_styles import arm_styles
from ampft.comparison.report.calibration_charts import MIN_COUNT, calibration_panels
from ampft.comparison.report.curve_charts import (
    loss_chart,
    loss_difference_chart,
    scale_chart,
    validation_chart,
)
from ampft.comparison.report.headline import cards, condition, headline
from ampft.comparison.report.sections import sections
from ampft.comparison.verdict_text import trainings
from ampft.text.numbers import signed
from ampft.text.page import page_text
from ampft.text.tables import Cell, Name, Table, isolated, plain

TEMPLATE = Path(__file__).with_name("comparison.html.j2")
MAX_MATRIX_CLASSES = 30  # a matrix of more classes is not readable
SHADES = 8


def html_text(comparison: Comparison) -> str:
    """Return the report as one HTML document, in which every string of the comparison is inert."""
    return page_text(TEMPLATE, **_context(comparison))


def _context(comparison: Comparison) -> dict[str, Any]:
    comparison = tables.without_incomplete_medians(comparison)
    arms = comparison.arms
    styles = arm_styles(arms)
    answer = answer_text(comparison)
    keys = {arm.name: style.key() for arm, style in zip(arms, styles, strict=True)}
    strip_of = {each.name: each for each in strips.columns(comparison, styles)}
    flipped = [
        (arm, shown)
        for arm in arms
        if arm.flips and (shown := [each for each in arm.flips.examples if each.shown])
    ]
    has_many = len(comparison.label_names) > MAX_MATRIX_CLASSES
    return {
        "c": comparison,
        "units": comparison.units,
        "headline": headline(comparison),
        "answer": answer,
        "condition": condition(comparison),
        "stamps": remark_texts(comparison.stamps),
        "has_placebo": any(arm.is_placebo and arm.difference for arm in arms),
        "cards": cards(comparison, styles),
        "seeds": trainings(comparison),
        "modes": _with_graphics(tables.modes(comparison), keys, strip_of["modes"]),
        "settings": tables.settings(comparison),
        "executed": tables.executed(comparison),
        "sections": tuple(
            replace(
                section,
                tables=tuple(
                    _with_graphics(table, keys, None if index else strip_of.get(section.name))
                    for index, table in enumerate(section.tables)
                ),
            )
            for section in sections(comparison)
        ),
        "loss": loss_chart(comparison, styles),
        "loss_difference": loss_difference_chart(comparison, styles),
        "validation": validation_chart(comparison, styles),
        "scale": scale_chart(comparison, styles),
        "matrices": ()
        if has_many
        else tuple(
            (style, matrix_cells(arm, None if arm is arms[0] else arms[0]))
            for arm, style in zip(arms, styles, strict=True)
            if arm.confusion
        ),
        "flipped": flipped,
        "has_media": bool(flipped),
        "panels": calibration_panels(arms, styles),
        "has_broken_arm": any(arm.status != "complete" for arm in arms),
        "min_count": MIN_COUNT,
    }


def _with_graphics(
    table: Table, keys: Mapping[str, Markup], column: strips.Column | None = None
) -> Table:
    """Return a table with the line styles of the arms next to their names, and a strip per row."""

    def with_key(cell: Cell) -> Cell:
        key = None
        if isinstance(cell, Name):
            key = keys[cell.text] if cell.kind == "arm" else None
        elif column is not None and isinstance(cell, str):
            key = column.keys.get(cell)
        return Markup("{} {}").format(key, isolated(plain(cell))) if key else cell

    header = tuple(with_key(cell) for cell in table.header)
    rows = [(with_key(row[0]), *row[1:]) for row in table.rows]
    if column is None:
        return replace(table, header=header, rows=rows)
    names = [plain(row[0]) for row in table.rows]
    strip = Markup('<div class="strip">{}</div>')
    return replace(
        table,
        header=(header[0], Markup("{} {}").format(column.heading, column.scale), *header[1:]),
        rows=[
            (row[0], strip.format(column.strips.get(name, "")), *row[1:])
            for name, row in zip(names, rows, strict=True)
        ],
        note=f"{column.explanation} {table.note}".strip(),
        left=table.left + 1,
    )


@dataclass(frozen=True)
class MatrixCell:
    """A cell as text, and its shade (0 is blank); cells on the diagonal are correct."""

    text: str
    shade: int
    is_correct: bool


def matrix_cells(arm: ArmResult, base: ArmResult | None) -> tuple[tuple[MatrixCell, ...], ...]:
    """Return the cells of a matrix, shaded by the share of the row on a square-root scale.

    The square root makes errors visible, which are few compared with correct predictions.

    Args:
        arm: Arm whose matrix is shown.
        base: Baseline, from which only the differences are shown; None shows the matrix.
    """
    others = base.confusion if base else [[0] * len(row) for row in arm.confusion]
    return tuple(
        tuple(
            MatrixCell(
                signed(count - other, 0) if base else f"{count}",
                _shade(abs(count - other), sum(row)),
                column == index,
            )
            for column, (count, other) in enumerate(zip(row, other_row, strict=True))
        )
        for index, (row, other_row) in enumerate(zip(arm.confusion, others, strict=True))
    )


def _shade(count: int, total: int) -> int:
    return 0 if not count else max(1, min(SHADES, round(SHADES * (count / total) ** 0.5)))
