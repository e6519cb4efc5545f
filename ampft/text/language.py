"""Reports in other languages: finished English texts, translated with a catalogue of patterns.

Reports are written in English throughout. What is not in the catalogue, such as names and numbers,
stays as it is.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from ampft.text.tables import Cell, Quote, Table

ENGLISH = "en"
HTML_NAMES = {"zh": "zh-CN"}  # also the languages that have a catalogue
LANGUAGES = (ENGLISH, *HTML_NAMES)

SEMICOLON = "\N{FULLWIDTH SEMICOLON}"
NO_BREAK = "\N{NO-BREAK SPACE}"
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_NUMBER = re.compile(r"n\d*")
_SENTENCES = re.compile(r"(?<=[.!?]) ")
_OUTER_BLANKS = re.compile(r"(\s*).*?(\s*)", re.DOTALL)
_TAGS = re.compile(r"(<[^>]*>)")
_NO_TRANSLATION = re.compile(r"<(\w+)[^>]* translate=\"no\"|<(style)\b|<(code)\b")


def translated(text: str, language: str) -> str:
    """Return a text in a language; whatever is not in its catalogue stays English.

    Args:
        text: Text of a report: a word, a clause or sentences.
        language: One of `LANGUAGES`.
    """
    if language == ENGLISH:
        return text
    found = _find(text.replace(NO_BREAK, " ").strip(), language)
    return text if found is None else found


def translated_table(table: Table, language: str) -> Table:
    """Return a table whose title, header, cells and note are translated, but not its names."""

    def cell(value: Cell) -> Cell:
        if isinstance(value, Quote):
            return Quote(translated(value.text, language))
        return translated(value, language) if isinstance(value, str) else value

    return replace(
        table,
        title=translated(table.title, language),
        note=translated(table.note, language),
        header=tuple(map(cell, table.header)),
        rows=[tuple(map(cell, row)) for row in table.rows],
    )


def translated_html(page: str, language: str) -> str:
    """Return a page whose texts are translated, except in elements with `translate="no"`."""
    if language == ENGLISH:
        return page
    parts, closing, depth = _TAGS.split(page), "", 0
    for index, part in enumerate(parts):
        if index % 2:  # a tag
            name = part.strip("</>").split()[0] if part.strip("</>") else ""
            if not depth and (match := _NO_TRANSLATION.match(part)):
                closing, depth = next(filter(None, match.groups())), 1
            elif depth and name == closing:
                depth += -1 if part.startswith("</") else 1
        elif not depth and part.strip():
            found = _find(" ".join(html.unescape(part).split()), language)
            if found is not None:
                start, end = _OUTER_BLANKS.fullmatch(part).groups()  # type: ignore[union-attr]
                parts[index] = f"{start}{html.escape(found, quote=False)}{end}"
    return "".join(parts).replace('lang="en"', f'lang="{HTML_NAMES[language]}"', 1)


def _find(text: str, language: str) -> str | None:
    """Return the translation of a text, or None if it has none."""
    sentences = _SENTENCES.split(text)
    if len(sentences) > 1:
        found = [_find(sentence, language) for sentence in sentences]
        if any(found):
            pairs = zip(found, sentences, strict=True)
            return "".join(other or f" {english} " for other, english in pairs).strip()
    if (exact := _catalogue(language).get(text)) is not None:
        return exact
    clauses = text.split("; ")
    found = [_find(clause, language) for clause in clauses] if len(clauses) > 1 else [None]
    if all(found):
        return SEMICOLON.join(filter(None, found))
    for pattern, translation in _patterns(language):
        if match := pattern.fullmatch(text):
            groups = {k: translated(v, language) for k, v in match.groupdict().items()}
            return translation.format(**groups)
    return None


@cache
def _catalogue(language: str) -> Mapping[str, str]:
    """Return the translations of a language by English text."""
    import yaml

    path = Path(__file__).with_name(f"{language}.yaml")
    catalogue: dict[str, str] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return catalogue


@cache
def _patterns(language: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return the entries with placeholders as expressions, in the order of the catalogue."""
    return tuple(
        (re.compile(_expression(english)), translation)
        for english, translation in _catalogue(language).items()
        if _PLACEHOLDER.search(english)
    )


def _expression(english: str) -> str:
    """Return the expression of a pattern; `n`, `n1`, ... stand for numbers."""
    parts = _PLACEHOLDER.split(english)
    return "".join(
        re.escape(part)
        if index % 2 == 0
        else rf"(?P<{part}>[\d.,+\u2212\-]+)"
        if _NUMBER.fullmatch(part)
        else rf"(?P<{part}>.+?)"
        for index, part in enumerate(parts)
    )
