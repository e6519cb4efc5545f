"""Words of a text: how it is split into them, and how character spans become tags."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ampft.data.tags import BEGIN, INSIDE, OUTSIDE
from ampft.errors import quoted

_FINE = re.compile(r"\w+|[^\w\s]")
_BLANKS = re.compile(r"\S+")
# Punctuation that is a separate word at either end of a part between spaces, besides brackets and
# typographic quotation marks, which have their own categories in Unicode.
_OPENING = frozenset("\"'<\u00bf\u00a1")
_CLOSING = frozenset("\"'>.,;:!?\u2026")
LABEL_KEYS = ("label", "type", "entity", "entity_group", "entity_type", "tag")  # of a span


@dataclass(frozen=True)
class Word:
    """A word and its place in the text: characters `start` to `end`, exclusive."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class EntitySpan:
    """An entity in a text: characters `start` to `end`, exclusive, and its type."""

    start: int
    end: int
    label: str

    @classmethod
    def of(cls, value: Any) -> EntitySpan:
        """Return the entity of a cell: an object with these keys, or a list of the three values.

        Raises:
            ValueError: A value is missing, or has another type.
        """
        start: Any = None
        end: Any = None
        label: Any = None
        if isinstance(value, Mapping):
            label = next((value[key] for key in LABEL_KEYS if value.get(key) is not None), None)
            start, end = value.get("start"), value.get("end")
        elif isinstance(value, list | tuple) and len(value) == 3:
            start, end, label = value
        is_place = isinstance(start, int) and isinstance(end, int)
        if not (is_place and isinstance(label, str) and label):
            raise ValueError(f"{quoted(value)} is not a span, which needs start, end and label")
        return cls(start, end, label)

    def __str__(self) -> str:
        return f"{self.start} to {self.end} ({quoted(self.label)})"


def split_words(text: str) -> list[Word]:
    """Split a text into runs of letters, digits and underscores, and single other characters.

    Texts with character spans are split like this, so that a span can end within `London-based`.
    """
    return [Word(match[0], match.start(), match.end()) for match in _FINE.finditer(text)]


def split_at_spaces(text: str) -> list[Word]:
    """Split a text at spaces, and split punctuation off both ends.

    It resembles how corpora of words are split, which keep `don't`, `@user` and `10:30` whole.
    """
    words: list[Word] = []
    for match in _BLANKS.finditer(text):
        start, end = match.span()
        while end - start > 1 and _is_one_of(text[start], _OPENING, ("Ps", "Pi")):
            words.append(Word(text[start], start, start + 1))
            start += 1
        closing: list[Word] = []
        while end - start > 1 and _is_one_of(text[end - 1], _CLOSING, ("Pe", "Pf")):
            closing.append(Word(text[end - 1], end - 1, end))
            end -= 1
        words += [Word(text[start:end], start, end), *reversed(closing)]
    return words


def _is_one_of(character: str, listed: frozenset[str], categories: tuple[str, ...]) -> bool:
    return character in listed or unicodedata.category(character) in categories


def joined(words: Sequence[str]) -> list[Word]:
    """Return words with their places in the text that has one space between them."""
    result, start = [], 0
    for text in words:
        result.append(Word(text, start, start + len(text)))
        start += len(text) + 1
    return result


def tag_words(
    words: Sequence[Word], spans: Sequence[EntitySpan], length: int
) -> tuple[list[str], int]:
    """Return the BIO tags of the words of a text, and how many spans were extended to whole words.

    Args:
        words: The words, in order.
        spans: Entities.
        length: Number of characters of the text.

    Raises:
        ValueError: A span is empty, past the text or without a word, or two of them overlap or
            share a word; the message says which.
    """
    ordered = sorted(spans, key=lambda span: (span.start, span.end))
    for span in ordered:
        if not 0 <= span.start < span.end <= length:
            raise ValueError(
                f"the span {span} is outside the text, which has {length} characters"
                if span.start < span.end
                else f"the span {span} is empty"
            )
    for one, other in pairwise(ordered):
        if other.start < one.end:
            raise ValueError(f"the spans {one} and {other} overlap, but a word has one tag")
    tags, extended, position = [OUTSIDE] * len(words), 0, 0
    for span in ordered:
        while position < len(words) and words[position].end <= span.start:
            position += 1
        first = position
        last = first
        while last < len(words) and words[last].start < span.end:
            last += 1
        if first == last:
            raise ValueError(f"the span {span} contains no word")
        if tags[first] != OUTSIDE:
            raise ValueError(
                f"the span {span} begins within the word"
                f" {quoted(words[first].text)}, which is in another span"
            )
        extended += words[first].start < span.start or words[last - 1].end > span.end
        tags[first] = f"{BEGIN}-{span.label}"
        tags[first + 1 : last] = [f"{INSIDE}-{span.label}"] * (last - first - 1)
    return tags, extended
