"""Escapes untrusted text, so that it cannot affect how the text around it is displayed."""

from __future__ import annotations

import re
import unicodedata

# Control, format (including right-to-left marks), surrogate, line and paragraph separator.
HOSTILE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Persian and the Indic scripts use these two to spell words.
SPELLING_JOINERS = frozenset("\u200c\u200d")
_SPACES = re.compile(r"[ \t\r\n\f\v]+")

# pathlib joins the two slashes.
_URL_CREDENTIALS = re.compile(r"(\w\w:/{1,2})[^/\s@]+@")
_URL_SECRET = re.compile(
    r"(?<=[?&])([\w.-]*(?:token|secret|password|passwd|key|signature|sig|credential|auth))=[^&\s#]+",
    re.IGNORECASE,
)


def is_hostile(character: str) -> bool:
    """Return whether a character moves, hides or reverses the text around it."""
    return (
        character not in SPELLING_JOINERS and unicodedata.category(character) in HOSTILE_CATEGORIES
    )


def inert(text: str) -> str:
    """Return `text` on one line, with control and direction characters escaped."""
    return "".join(_escaped(c) if is_hostile(c) else c for c in text)


def inert_lines(text: str) -> str:
    """Return `text` with each of its lines made inert."""
    return "\n".join(map(inert, text.split("\n")))


def without_credentials(text: str) -> str:
    """Return `text` without the passwords and tokens of the URLs in it."""
    return _URL_SECRET.sub(r"\1=REDACTED", _URL_CREDENTIALS.sub(r"\1", text))


def one_line(text: str) -> str:
    """Return `text` inert, with every run of spaces and line breaks as one space."""
    return inert(_SPACES.sub(" ", text).strip())


def display_width(text: str) -> int:
    """Return the columns of `text` on a terminal: 2 for wide and 0 for combining characters."""
    wide = {"W": 2, "F": 2}
    return sum(
        0
        if unicodedata.combining(c) or c in SPELLING_JOINERS
        else wide.get(unicodedata.east_asian_width(c), 1)
        for c in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
