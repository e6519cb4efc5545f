"""Foreign text in Markdown and in YAML, where it may neither act nor break the layout."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ampft.text.escaping import inert

# In a code span nothing acts; these would end the span or the table cell, or, where a page shows
# the source as it is, open an element.
_ENDS_A_SPAN = re.compile(r"[`|<>]")

# What acts anywhere in a line of prose; what GitHub's renderer makes an address of; what opens a
# list, a heading or a rule at the start of a line.
_ACTS_ANYWHERE = r"[\\`*_\[\]|~&]"
_MAKES_AN_ADDRESS = r":(?=/)|(?<=www)\."
_ACTS_AT_THE_START = r"^\s*[-+=#]|(?<=^\d)[.)]|(?<=^\d\d)[.)]"
_ACTS = re.compile(f"({_ACTS_ANYWHERE}|{_MAKES_AN_ADDRESS}|{_ACTS_AT_THE_START})", re.IGNORECASE)

_ACTS_IN_METADATA = re.compile(r"[`|<>\[\]@]|(?<=:)/|(?<=www)\.", re.IGNORECASE)


def code(text: str) -> str:
    """Return a code span that shows `text` on one line; ends of spans and cells as escapes."""
    shown = _ENDS_A_SPAN.sub(_escaped, inert(text))
    return f"`{shown}`" if shown.strip() else "(blank)"


def prose(text: str) -> str:
    """Return `text` such that Markdown shows it and does nothing else."""
    # An @ between words becomes an address even with a backslash before it.
    plain = _ACTS.sub(r"\\\1", inert(text.strip()).replace("@", " at "))
    return plain.replace("<", "&lt;").replace(">", "&gt;")


def metadata_text(text: str) -> str:
    """Return `text` for a value of the card's YAML, inert where the YAML is shown as Markdown."""
    return _ACTS_IN_METADATA.sub(_escaped, inert(text))


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
