"""Escapes untrusted text: for any display, and for Markdown and YAML."""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import unquote

# Control, format (including right-to-left marks), surrogate, line and paragraph separator.
HOSTILE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Persian and the Indic scripts use these two to spell words.
SPELLING_JOINERS = frozenset("\u200c\u200d")
_SPACES = re.compile(r"[ \t\r\n\f\v]+")

# A password can contain "@", so that everything up to the last one before the path is removed.
# pathlib joins the two slashes.
_URL_CREDENTIALS = re.compile(r"(\w\w:/{1,2})[^/\s]*@")
_URL_PARAMETER = re.compile(r"(?<=[?&#;])([^?=&#;\s]+)=([^&#\s]+)")
_SECRET_KEY = re.compile(
    r"(token|secret|password|passwd|passphrase|pwd|key|jwt|bearer|signature|credentials?|auth"
    r"|authorization|session(_?id)?|(^|[_.-])(pass|pw|sas|sid|sig|code))$",
    re.IGNORECASE,
)
# Tokens of Hugging Face, GitHub, GitLab, Slack, AWS, Google, OpenAI and Anthropic, npm, PyPI; JWTs.
REPLACEMENT = "REDACTED"  # of secrets
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|api_org_[A-Za-z0-9]{20,}|gh[a-z]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w-]{20,}|xox[a-z]-[\w-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}"
    r"|AIza[\w-]{30,}|sk-(?:proj-|ant-|svcacct-)?[A-Za-z0-9_]{20,}[\w-]*|npm_[A-Za-z0-9]{30,}"
    r"|pypi-[\w-]{30,}|eyJ[\w-]{5,}\.[\w-]+\.[\w-]*"
    # The beginning of one that was cut for a message.
    r"|(?:hf_|api_org_|gh[a-z]_|github_pat_|glpat-|npm_|pypi-)\w{6,}(?=\.\.\.))"
)


def is_hostile(character: str) -> bool:
    """Return whether a character moves, hides or reverses the text around it."""
    return (
        character not in SPELLING_JOINERS and unicodedata.category(character) in HOSTILE_CATEGORIES
    )


def inert(text: str) -> str:
    """Return `text` on one line, with control and direction characters escaped."""
    return "".join(
        c.encode("unicode_escape", "surrogatepass").decode("ascii") if is_hostile(c) else c
        for c in text
    )


def inert_lines(text: str) -> str:
    """Return `text` with each of its lines made inert."""
    return "\n".join(map(inert, text.split("\n")))


def without_credentials(text: str) -> str:
    """Return `text` without the passwords and tokens of its URLs, and without known tokens.

    A query or fragment of a URL loses the values of keys such as `token`, `pwd` or `jwt`.
    """
    text = _URL_PARAMETER.sub(_parameter, _URL_CREDENTIALS.sub(r"\1", text))
    return _TOKEN.sub(REPLACEMENT, text)


def _parameter(match: re.Match[str]) -> str:
    is_secret = _SECRET_KEY.search(unquote(match[1]))
    return f"{match[1]}={REPLACEMENT if is_secret else _URL_PARAMETER.sub(_parameter, match[2])}"


def printable(text: str) -> str:
    """Return `text` for a terminal or a log: without passwords and tokens, each line inert."""
    return inert_lines(without_credentials(text))


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
    escaped = _SPECIAL_IN_CODE.sub(_escaped_markdown, inert(text))
    return f"`{escaped}`" if escaped.strip() else "(blank)"


def prose(text: str) -> str:
    """Return `text` escaped such that Markdown shows it literally."""
    # An @ between words becomes an e-mail link even after a backslash.
    plain = _SPECIAL.sub(r"\\\1", inert(text.strip()).replace("@", " at "))
    return plain.replace("<", "&lt;").replace(">", "&gt;")


def metadata_text(text: str) -> str:
    """Return `text` for a value of the card's YAML, escaped in case that is shown as Markdown."""
    return _SPECIAL_IN_METADATA.sub(_escaped_markdown, inert(text))


def _escaped_markdown(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
