"""Escapes untrusted text for Markdown and YAML, so that it is shown literally."""

from __future__ import annotations

import re

from ampft.text.escaping import inert

# Characters that end a code span or a table cell, or open an HTML element where a page shows the
# source unrendered. Nothing else is special in a code span.
_SPECIAL_IN_CODE = re.compile(r"[`|<>]")

# In prose: characters that are special anywhere; those from which GitHub's renderer makes a link;
# those that open a list, a heading or a rule at the start of a line.
_SPECIAL_ANYWHERE = r"[\\`*_\[\]|~&]"
_MAKES_A_LINK = r":(?=/)|(?<=www)\."
_SPECIAL_AT_START = r"^\s*[-+=#]|(?<=^\d)[.)]|(?<=^\d\d)[.)]"
_SPECIAL = re.compile(f"({_SPECIAL_ANYWHERE}|{_MAKES_A_LINK}|{_SPECIAL_AT_START})", re.IGNORECASE)

_SPECIAL_IN_METADATA = re.compile(r"[`|<>\[\]@]|(?<=:)/|(?<=www)\.", re.IGNORECASE)


def code(text: str) -> str:
    """Return a code span that shows `text` on one line, with special characters escaped."""
    escaped = _SPECIAL_IN_CODE.sub(_escaped, inert(text))
    return f"`{escaped}`" if escaped.strip() else "(blank)"


def prose(text: str) -> str:
    """Return `text` escaped such that Markdown shows it literally."""
    # An @ between words becomes an e-mail link even after a backslash.
    plain = _SPECIAL.sub(r"\\\1", inert(text.strip()).replace("@", " at "))
    return plain.replace("<", "&lt;").replace(">", "&gt;")


def metadata_text(text: str) -> str:
    """Return `text` for a value of the card's YAML, escaped in case that is shown as Markdown."""
    return _SPECIAL_IN_METADATA.sub(_escaped, inert(text))


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
