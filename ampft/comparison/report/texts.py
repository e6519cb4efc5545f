"""A comparison as text: for a terminal, and in Markdown for a pull request."""

from __future__ import annotations

from ampft.comparison.answer import answer_text
from ampft.comparison.findings import Comparison
from ampft.comparison.remarks import remark_text, remark_texts
from ampft.comparison.report.sections import Section, sections
from ampft.comparison.report.tables import (
    arm_columns,
    executed,
    modes,
    scope,
    settings,
    without_incomplete_medians,
)
from ampft.comparison.verdict_text import verdict_texts
from ampft.text.escaping import display_width, inert, prose
from ampft.text.tables import Table, markdown_table, terminal_table

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


MAX_CLASSES = 50  # keeps the report below the 65,536 characters of a GitHub comment


def markdown_text(comparison: Comparison) -> str:
    """Return the comparison as Markdown with a trailing newline.

    The verdicts, the stamps and the table of modes come first. All other sections are in
    `<details>`, the only HTML elements. Names, labels and texts are inert.

    Args:
        comparison: Comparison to show.
    """
    verdicts = verdict_texts(comparison)
    comparison = without_incomplete_medians(comparison)
    differing = settings(comparison)
    parts = [
        f"## {comparison.heading}: {prose(comparison.title)}",
        f"**{prose(answer_text(comparison))}**" if answer_text(comparison) else "",
        _list(verdicts),
        "\\\n".join(f"> **Note:** {prose(text)}" for text in remark_texts(comparison.stamps)),
        "" if differing is None else markdown_table(differing),
        markdown_table(modes(comparison)),
    ]
    measured = executed(comparison)
    if measured:
        parts.append(f"Precision measured in the first step:\n\n{_list(measured)}")
    parts += [_details(each) for each in sections(comparison, max_classes=MAX_CLASSES)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _details(section: Section) -> str:
    heading = section.heading + " (exploratory)" * section.is_exploratory
    parts = [*map(prose, section.paragraphs), *map(markdown_table, section.tables)]
    if section.items:
        parts.append(_list(section.items))
    body = "\n\n".join(parts)
    return f"<details>\n<summary>{heading}</summary>\n\n{body}\n\n</details>"


def _list(items: tuple[str, ...]) -> str:
    return "\n".join(f"- {prose(item)}" for item in items)
