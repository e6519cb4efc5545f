"""Foreign text in Markdown and in YAML, where it may neither act nor break the layout."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ampft.report.text import inert

# In a code span nothing acts; these would end the span or the table cell, or, where a page shows
# the source as it is, open an element.
_ENDS_A_SPAN = re.compile(r"[`|<>]")
# Escaped in prose, with all that Markdown gives a meaning. An @ between words becomes an address
# in GitHub's renderer even when a backslash stands before it.
_ACTS_IN_PROSE = re.compile(r"([\\`*_{}\[\]()#+!|~:&-])")


def code(text: str) -> str:
    """Return a code span that shows `text` on one line; ends of spans and cells as escapes."""
    shown = _ENDS_A_SPAN.sub(_escaped, inert(text))
    return f"`{shown}`" if shown.strip() else "(blank)"


def prose(text: str) -> str:
    """Return `text` such that Markdown shows it and does nothing else."""
    plain = re.sub(r"[<>@]", _escaped, inert(text))
    return _ACTS_IN_PROSE.sub(r"\\\1", plain)


def metadata_text(text: str) -> str:
    """Return `text` for a value of the card's YAML, inert where the YAML is shown as Markdown."""
    return re.sub(r"[`|<>\[\]]", _escaped, inert(text))


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Return a Markdown table.

    Args:
        header: Column names.
        rows: Cells, made safe by `code` or `prose` where they hold foreign text.
        left: Number of first columns that are aligned left; the others are numbers.
    """
    rule = [":---" if column < left else "---:" for column in range(len(header))]
    lines = [header, rule, *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
