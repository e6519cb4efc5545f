"""comparison.html: a single, deterministic file without scripts or network access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from markupsafe import Markup

from ampft.comparison.answer import answer_sentences
from ampft.comparison.findings import (
    BROKEN,
    INFERENCE,
    TRAINING,
    ArmResult,
    Comparison,
)
from ampft.comparison.remarks import remark_texts
from ampft.comparison.report import strips, tables
from ampft.comparison.report.charts import (
    MIN_COUNT,
    ArmStyle,
    arm_styles,
    calibration_panels,
    loss_chart,
    loss_difference_chart,
    scale_chart,
    validation_chart,
)
from ampft.comparison.report.sections import sections
from ampft.comparison.report.tables import cost_columns
from ampft.comparison.statistics.verdict import BETTER, EQUIVALENT, UNDECIDED, WORSE
from ampft.comparison.verdict_text import seeds_text, verdict_text
from ampft.text.charts import Axis
from ampft.text.numbers import (
    NOT_MEASURED,
    confidence_percent,
    counted,
    mean_count,
    signed_number,
)
from ampft.text.page import page_text
from ampft.text.tables import Cell, Name, Table, cell_text, isolated

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
    headline, *answer = answer_sentences(comparison) or ["Nothing was compared"]
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
        "headline": headline.removesuffix("."),
        "answer": " ".join(answer),
        "condition": recommendation_condition(comparison),
        "intervals": [confidence_percent(1 - sides * comparison.alpha) for sides in (1, 2)]
        if any(arm.difference for arm in arms)
        else (),
        "stamps": remark_texts(comparison.stamps),
        "has_placebo": any(arm.is_placebo and arm.difference for arm in arms),
        "cards": cards(comparison, styles),
        "seeds": seeds_text(comparison),
        "modes": _with_graphics(tables.modes(comparison), keys, strip_of["modes"]),
        "settings": tables.settings(comparison),
        "executed": tables.executed_precisions(comparison),
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
        return Markup("{} {}").format(key, isolated(cell_text(cell))) if key else cell

    header = tuple(with_key(cell) for cell in table.header)
    rows = [(with_key(row[0]), *row[1:]) for row in table.rows]
    if column is None:
        return replace(table, header=header, rows=rows)
    names = [cell_text(row[0]) for row in table.rows]
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
                signed_number(count - other, 0) if base else f"{count}",
                _shade(abs(count - other), sum(row)),
                column == index,
            )
            for column, (count, other) in enumerate(zip(row, other_row, strict=True))
        )
        for index, (row, other_row) in enumerate(zip(arm.confusion, others, strict=True))
    )


def _shade(count: int, total: int) -> int:
    return 0 if not count else max(1, min(SHADES, round(SHADES * (count / total) ** 0.5)))


# Kind of a verdict -> CSS class of its chip.
CHIPS = {EQUIVALENT: "good", BETTER: "good", WORSE: "bad", UNDECIDED: "open"}


@dataclass(frozen=True)
class ArmCard:
    """The card of an arm at the top of the page."""

    style: ArmStyle  # Style of the arm in charts.
    chip: str  # Its verdict, or what it is.
    chip_class: str  # CSS class of the chip.
    value: str  # Primary metric.
    difference: str  # Difference to the baseline with its interval; empty for the baseline.
    strip: Markup  # Chart of the difference.
    # Names and values: changed predictions, speed, memory or size.
    facts: tuple[tuple[str, str], ...]
    sentence: str  # Verdict in sentences; empty for the baseline and the placebo.


def recommendation_condition(comparison: Comparison) -> str:
    """Return what the recommendation depends on; empty without a verdict."""
    units = comparison.units
    if not any(arm.outcome in CHIPS for arm in comparison.arms[1:]):
        return ""
    seeds = len(comparison.seeds)
    noun = "examples" if comparison.groups is None else "groups of examples"
    cases = f"{comparison.groups or comparison.examples:,} {noun} of {comparison.split}"
    if comparison.kind == INFERENCE:
        evidence = f"{counted(seeds, 'trained model')} and {cases}"
    elif comparison.has_one_model_each:
        evidence = f"one model per {comparison.noun} and {cases}"
    else:
        evidence = f"{counted(seeds, 'seed')} and {cases}"
    on_machine = comparison.kind in (TRAINING, INFERENCE) and not comparison.has_one_model_each
    machine = ", on this machine" * on_machine
    return (
        f"This holds if differences of up to {units.margin_with_unit} in {units.title} do not "
        f"matter to you. It rests on {evidence}{machine}."
    )


def cards(comparison: Comparison, styles: Sequence[ArmStyle]) -> tuple[ArmCard, ...]:
    """Return a card for each arm: the compared ones, then placebo and baseline."""
    axis = strips.difference_axis(comparison)
    pairs = list(zip(comparison.arms, styles, strict=True))
    ordered = [pair for pair in pairs[1:] if not pair[0].is_placebo]
    ordered += [pair for pair in pairs[1:] if pair[0].is_placebo]
    return tuple(_card(comparison, arm, style, axis) for arm, style in [*ordered, pairs[0]])


def _card(comparison: Comparison, arm: ArmResult, style: ArmStyle, axis: Axis) -> ArmCard:
    units, is_baseline = comparison.units, arm is comparison.baseline
    values = arm.metrics.get(comparison.metric)
    word = arm.outcome
    chip, chip_class = (arm.difference.verdict if arm.difference else None) or "no verdict", "open"
    if is_baseline or arm.is_placebo:
        chip, chip_class = ("baseline" if is_baseline else "placebo"), "none"
    elif word == BROKEN:
        chip, chip_class = arm.status_words, "bad"
    elif not word:
        chip = "no verdict"
    else:
        chip_class = CHIPS[word]
    difference = ""
    if arm.difference is not None:
        difference = (
            f"{units.difference_with_unit(arm.difference.estimate)}, "
            f"{confidence_percent(arm.difference.level95)} CI "
            f"{units.interval(arm.difference.interval95)}"
        )
    facts = [(f"--{name}", value) for name, value in arm.settings.items()]
    facts += [("execution", arm.execution)] * (arm.execution == "emulated")
    if arm.flips is not None:
        changed = f"{mean_count(arm.flips.mean)} of {comparison.examples:,}"
        facts.append(("changed predictions", changed))
    facts += [
        (column.heading, cell_text(cell))
        for column in cost_columns(comparison)
        if (cell := column.cell(arm)) not in ("", NOT_MEASURED)
    ]
    strip = Markup("")
    if not is_baseline and arm.difference is not None:
        drawn = strips.difference_strip(comparison, arm, style, axis)
        strip = Markup('{}<div class="strip">{}</div>').format(
            strips.difference_scale(axis, units), drawn
        )
    return ArmCard(
        style=style,
        chip=chip,
        chip_class=chip_class,
        value="" if values is None else units.value(values.mean) + " %" * units.is_share,
        difference=difference,
        strip=strip,
        facts=tuple(facts),
        sentence="" if is_baseline or arm.is_placebo else verdict_text(comparison, arm),
    )
