"""A comparison as text for a terminal: the table of modes, the stamps and the verdicts."""

from __future__ import annotations

from ampft.comparison.answer import answer_text
from ampft.comparison.findings import Comparison
from ampft.comparison.remarks import remark_text, remark_texts
from ampft.comparison.report.tables import (
    arm_columns,
    modes,
    scope,
    settings,
    without_incomplete_medians,
)
from ampft.comparison.verdict_text import verdict_texts
from ampft.text.escaping import display_width, inert
from ampft.text.tables import Table, terminal_table

WIDTH = 96  # columns; fits into a window of 100


def terminal_text(comparison: Comparison) -> str:
    """Return the table of modes, the stamps and the verdicts, at most `WIDTH` columns wide.

    Long text wraps. The table exceeds `WIDTH` only if the name of a mode does. Control and
    direction characters are shown as escapes.

    Args:
        comparison: Comparison to show.

    Returns:
        Lines, each with a trailing newline.
    """
    verdicts = verdict_texts(comparison)
    comparison = without_incomplete_medians(comparison)
    differing = settings(comparison)
    paragraphs = (legend(comparison), answer_text(comparison), *verdicts)
    explained, *concluded = (_wrapped(text) for text in paragraphs)
    parts = [
        _wrapped(f"{comparison.title}: {scope(comparison)}"),
        "" if differing is None else terminal_table(differing),
        mode_table(comparison),
        explained,
        "\n".join(_wrapped(text, "! ") for text in remark_texts(comparison.stamps)),
        *concluded,
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def mode_table(comparison: Comparison) -> str:
    """Return one row per arm below two header rows."""
    columns = [column for column in arm_columns(comparison) if column.short is not None]
    upper, lower = zip(*(column.short for column in columns if column.short), strict=True)
    rows = [
        tuple((column.short_cell or column.cell)(arm) for column in columns)
        for arm in comparison.arms
    ]
    return terminal_table(Table(header=upper, rows=[lower, *rows], left=2))


def legend(comparison: Comparison) -> str:
    """Return explanations of the columns, and reasons why modes are not faster."""
    reasons = [
        f"{arm.name}: {remark_text(arm.speed.reason)}."
        for arm in comparison.arms
        if arm.speed is not None and arm.speed.reason
    ]
    return " ".join([modes(comparison).note, *reasons])


def _wrapped(text: str, mark: str = "") -> str:
    """Wrap at spaces by display columns, breaking words that are wider than a line."""
    lines, line = [], mark
    margin = " " * len(mark)
    for word in inert(text).split():
        start = line if line.strip() in ("", mark.strip()) else f"{line} "
        if start != line and display_width(start + word) > WIDTH:
            lines.append(line)
            start = margin
        line = start
        for character in word:
            if display_width(line + character) > WIDTH:
                lines.append(line)
                line = margin
            line += character
    return "\n".join([*lines, line])
