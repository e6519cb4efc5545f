"""Schemes of the tags of words, and how character spans become tags.

A scheme says how the tags of words mark entities. In BIO (also called IOB2) the first word of an
entity has B-TYPE and the others I-TYPE. In IOB1 all have I-TYPE, except the first word of an
entity right after another one of its type. IOBES and BILOU also mark the last word (E- or L-) and
entities of one word (S-, U- or W-). All other words have O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ampft.data.sources.spans import EntitySpan
from ampft.decision import BEGIN, INSIDE, OUTSIDE, is_bio
from ampft.errors import quoted
from ampft.text.units import Word


def tag_words(
    words: Sequence[Word], spans: Sequence[EntitySpan], length: int
) -> tuple[list[str], int]:
    """Return the BIO tags of the words of a text, and how many spans were extended to whole words.

    Args:
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
                f"the span {span} begins within the word {quoted(words[first].text)}, which is in "
                "another span; --text_units graphemes divides words into characters"
            )
        extended += words[first].start < span.start or words[last - 1].end > span.end
        tags[first] = f"{BEGIN}-{span.label}"
        tags[first + 1 : last] = [f"{INSIDE}-{span.label}"] * (last - first - 1)
    return tags, extended


BIO, IOB1, IOBES, PLAIN = "BIO", "IOB1", "IOBES or BILOU", "plain"

# Tags of entities in other spellings: B_PER, b-per, PER-B.
_MISSPELLED = re.compile(r"[BIESMLU]_.+|[bi][-_].+|.+[-_][BIESMLU]", re.DOTALL)
_PREFIXED = re.compile(r"([BIMELSUW])-(.+)", re.DOTALL)
_BEGINS = frozenset("BSUW")
_ENDS = frozenset("ELSUW")
_MARKS_OF_ENDS = frozenset("ELSUWM")  # prefixes that BIO and IOB1 do not have


class TagError(ValueError):
    """A tag that its scheme does not allow there; `word` is the index in its sentence."""

    def __init__(self, word: int, problem: str) -> None:
        super().__init__(word, problem)  # both, so that a copy in another process is whole
        self.word, self._problem = word, problem

    def __str__(self) -> str:
        return self._problem


@dataclass(frozen=True)
class Tag:
    """A tag: its prefix (empty for O) and the type of the entity."""

    prefix: str
    type: str

    @classmethod
    def parse(cls, text: str) -> Tag | None:
        """Return the tag, or None if it is not O and has no prefix."""
        if text == OUTSIDE:
            return cls("", "")
        match = _PREFIXED.fullmatch(text)
        return None if match is None else cls(match[1], match[2])


def find_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """Return the scheme that the tags of the training sentences follow.

    If most tags have no prefix (such as parts of speech), it is `plain`; otherwise `as_bio` refuses
    those without one. A prefix for the end of an entity makes it IOBES or BILOU. Otherwise it is
    IOB1 if some entity begins with I- and every B- follows an entity of the same type, as IOB1
    demands. All others are BIO, in which `as_bio` refuses an entity that begins with I-.
    """
    marks_ends = begins_inside = begins_outright = False
    prefixed = plain = 0
    for sentence in sentences:
        last = Tag("", "")
        for text in sentence:
            tag = Tag.parse(text)
            if tag is None:
                plain += 1
                last = Tag("", "")
                continue
            prefixed += bool(tag.prefix)
            marks_ends |= tag.prefix in _MARKS_OF_ENDS
            if tag.type != last.type:
                begins_inside |= tag.prefix == INSIDE
                begins_outright |= tag.prefix == BEGIN
            last = tag
    if plain and plain >= prefixed:
        return PLAIN
    if marks_ends:
        return IOBES
    return IOB1 if begins_inside and not begins_outright else BIO


def use_other_bio_spelling(names: Sequence[str]) -> bool:
    """Return whether tags of entities have another spelling, such as B_PER, PER-B, or 0 for O."""
    if OUTSIDE not in names and [Tag.parse(name) for name in names].count(None) == 1 < len(names):
        return True  # such as 0 for O
    others = [name for name in names if name.upper() != OUTSIDE]
    has_outside = len(others) < len(names)
    return has_outside and bool(others) and all(map(_MISSPELLED.fullmatch, others))


def as_bio(tags: Sequence[str], scheme: str) -> list[str]:
    """Return the tags of a sentence in BIO; plain tags are returned as they are.

    Raises:
        TagError: A tag is not allowed by the scheme.
    """
    if scheme == PLAIN:
        return list(tags)
    result = []
    last = Tag("", "")
    is_open = False  # whether the last word belongs to an entity that may continue
    for word, text in enumerate(tags):
        tag = Tag.parse(text)
        if tag is None or (tag.prefix in _MARKS_OF_ENDS and scheme != IOBES):
            raise TagError(word, f"{quoted(text)} is not a tag of the scheme")
        continues = is_open and tag.type == last.type and tag.prefix not in _BEGINS
        if tag.prefix and not continues and tag.prefix not in _BEGINS and scheme != IOB1:
            raise TagError(word, f"{quoted(text)} begins an entity")
        place = INSIDE if continues else BEGIN
        result.append(f"{place}-{tag.type}" if tag.prefix else OUTSIDE)
        is_open = bool(tag.prefix) and tag.prefix not in _ENDS
        last = tag
    return result


def entity_types(tags: Iterable[str]) -> tuple[str, ...]:
    """Return the types of the entities; with plain tags, all tags.

    Args:
        tags: All tags, either from `bio_tags` or plain.
    """
    names = tuple(tags)
    return tuple(name[2:] for name in names[1::2]) if is_bio(names) else names
