"""A comparison as text for a terminal: the table of modes, the stamps and the verdicts."""

from __future__ import annotations

from collections.abc import Sequence

from ampft.comparison.findings import ArmResult, Comparison
from ampft.comparison.report.cells import (
    difference_cell,
    flips_cell,
    metric_cell,
    peak_cell,
    ratio_cell,
    step_cell,
    without_incomplete_medians,
)
from ampft.comparison.verdict_text import verdict_texts
from ampft.text.escaping import display_width, inert
from ampft.text.numbers import (
    PLUS_MINUS,
    count_range,
    level,
    seed_list,
)

WIDTH = 96  # columns; fits into a window of 100


def terminal_text(comparison: Comparison) -> str:
    """Return the table of modes, the stamps and the verdicts, at most `WIDTH` columns wide.

    Long text wraps. The table exceeds `WIDTH` only if the name of a mode does. Control and
    direction characters are shown as escapes.

    Args:
        comparison: Comparison; empty `verdicts` are computed.

    Returns:
        Lines, each with a trailing newline.
    """
    verdicts = comparison.verdicts or verdict_texts(comparison)
    comparison = without_incomplete_medians(comparison)
    parts = [
        _wrapped(heading(comparison)),
        mode_table(comparison),
        _wrapped(legend(comparison)),
        "\n".join(_wrapped(stamp, "! ") for stamp in comparison.stamps),
        *(_wrapped(verdict) for verdict in verdicts),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def heading(comparison: Comparison) -> str:
    """Return title, metric, split, number of examples and seeds in one line."""
    return (
        f"{comparison.title}: {comparison.units.title} on {comparison.split}, "
        f"{comparison.examples:,} examples, {seed_list(comparison.seeds)}"
    )


def mode_table(comparison: Comparison) -> str:
    """Return one row per arm below two header rows; the inner columns are right-aligned."""
    levels = [arm.difference.level95 for arm in comparison.arms if arm.difference is not None]
    header = [
        ("", "mode"),
        (comparison.units.title, "%" if comparison.units.is_share else ""),
        (
            f"difference{comparison.units.difference_suffix}",
            f"({level(levels[0])} CI)" if levels else "",
        ),
        ("changed", f"of {comparison.examples:,}"),
        ("speed-", "up"),
        ("step", "ms"),
        ("peak", "MiB"),
        ("skipped", "steps"),
        ("", ""),
    ]
    rows = [tuple(pair[line] for pair in header) for line in (0, 1)]
    rows += [_row(comparison, arm) for arm in comparison.arms]
    return _aligned(rows)


def legend(comparison: Comparison) -> str:
    """Return explanations of the columns, and reasons why modes are not faster."""
    base = comparison.baseline.name
    parts = [
        f"{PLUS_MINUS} is the standard deviation over seeds. Changed predictions and speed-up are "
        f"relative to {base}."
    ]
    if any(arm.is_placebo for arm in comparison.arms):
        parts.append(
            f"The placebo is {base} trained again from initial weights changed by one unit in the "
            "last place."
        )
    parts += [
        f"{arm.name}: {arm.speed.reason.rstrip('.')}."
        for arm in comparison.arms
        if arm.speed is not None and arm.speed.reason
    ]
    return " ".join(parts)


def _row(comparison: Comparison, arm: ArmResult) -> tuple[str, ...]:
    return (
        arm.name,
        metric_cell(comparison, arm),
        difference_cell(comparison, arm) if arm.status == "complete" else arm.status_words,
        flips_cell(comparison, arm),
        ratio_cell(comparison, arm),
        step_cell(arm),
        peak_cell(arm),
        count_range(arm.skipped_steps),
        arm.execution,
    )


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    cells = [[inert(cell) for cell in row] for row in rows]
    widths = [max(map(display_width, column)) for column in zip(*cells, strict=True)]
    lines = []
    for row in cells:
        padded = [
            cell + gap if index in (0, len(row) - 1) else gap + cell
            for index, cell in enumerate(row)
            for gap in (" " * (widths[index] - display_width(cell)),)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


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
