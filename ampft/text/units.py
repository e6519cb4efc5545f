"""One function from a text to its units: what a model of words labels, with their places.

A run stores its `TextUnits`, and each prediction from a text splits it by them, as in training. No
kind but `characters` divides a grapheme cluster (what a reader sees as one character, see Unicode
Standard Annex 29). The package `regex` finds these.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import regex

# Scripts without spaces between words, in which each grapheme is a unit.
UNSPACED = (
    *("Han", "Hiragana", "Katakana", "Bopomofo", "Yi", "Thai", "Lao", "Khmer", "Myanmar"),
    *("Tai_Tham", "Tai_Le", "New_Tai_Lue", "Tai_Viet", "Javanese", "Balinese"),
)
NUMBERS = "Number"  # stands for the digits of every script in `TextUnits.by_grapheme`
TIE = "\u02cd"  # stands for the joiner in an emoji where a tokenizer would remove it
MARKS_OF_LENGTH = "\u30fc\uff70"  # Japanese, of several scripts
WORDS, GRAPHEMES, SPACES, BLANKS, GIVEN = "words", "graphemes", "spaces", "blanks", "given"
CHARACTERS = "characters"
# Punctuation that is a separate word at either end of a part between spaces, besides brackets,
# typographic quotation marks, and what ends a sentence or a clause in any script.
_OPENING = regex.compile(r"[\p{Ps}\p{Pi}\"'<\u00bf\u00a1]")
_CLOSING = regex.compile(r"[\p{Pe}\p{Pf}\p{Terminal_Punctuation}\"'>\u2026]")
_GRAPHEME = regex.compile(r"\X")
_BLANKS = regex.compile(r"\S+")


@dataclass(frozen=True)
class Word:
    """A unit and its place in the text: characters `start` to `end`, exclusive."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class TextUnits:
    """How texts are divided into units."""

    # `words`: runs of letters, marks and digits, and single other graphemes, also those of
    # `UNSPACED` scripts. `graphemes`: every grapheme. `characters`: every code point, for corpora
    # that hold vowel signs by themselves. `spaces`: parts between spaces, with punctuation at both
    # ends split off. `blanks`: parts between spaces. `given`: as `blanks`, but the words of a
    # script without spaces cannot be found in a text.
    kind: str = SPACES
    by_grapheme: tuple[str, ...] = ()  # Other scripts whose graphemes are units, with `words`.
    joiner: str = " "  # Between the words of a list, where their text is shown.
    longest: int = 0  # Graphemes of the longest word in training, with `given`.

    def __post_init__(self) -> None:
        """Check the kind, and make a tuple of a list that was read from JSON."""
        if self.kind not in KINDS:
            raise ValueError(
                f"the units {self.kind!r} are not known to this version of ampft, which has"
                f" {', '.join(KINDS)}"
            )
        object.__setattr__(self, "by_grapheme", tuple(self.by_grapheme))

    def split(self, text: str) -> list[Word]:
        """Return the units of a text, in order; blanks belong to none.

        Raises:
            ValueError: The units are words of a script without spaces, which no rule finds.
        """
        if self.kind == SPACES:
            return _split_at_spaces(text)
        found = _pattern(self.kind, self.by_grapheme).finditer(text)
        units = [Word(each[0], *each.span()) for each in found if not each[0].isspace()]
        if self.kind == GIVEN:
            for unit in units:
                if unspaced_graphemes(unit.text) > self.longest:
                    raise ValueError(
                        "the model was trained on words of a script without spaces, which cannot be"
                        f" found in a text: {unit.text[:20]!r} is longer than its longest word"
                        f" ({self.longest} characters). Pass lists of words, or a text with spaces"
                        " between its words"
                    )
        return units

    def tokenizer_pattern(self) -> str | None:
        """Return the pattern of units for the library `tokenizers`; None for other kinds."""
        if self.kind == GRAPHEMES:
            return rf"\X(?:{TIE}\X)*"
        if self.kind != WORDS:
            return None
        names = (*UNSPACED, *self.by_grapheme)  # its engine has no extensions of scripts
        single = "".join(rf"\p{{{'N' if name == NUMBERS else name}}}" for name in names)
        run = rf"(?=[\p{{L}}\p{{N}}\p{{M}}&&[^{single}{MARKS_OF_LENGTH}]])\X"
        return rf"{run}(?:\p{{Cf}}*{run})*|\X(?:{TIE}\X)*"

    def joined(self, words: Sequence[str]) -> tuple[str, list[Word]]:
        """Return the text of a list of words, and the words with their places in it."""
        result, start = [], 0
        for text in words:
            result.append(Word(text, start, start + len(text)))
            start += len(text) + len(self.joiner)
        return self.joiner.join(words), result


_PATTERNS: dict[str, Any] = {
    GRAPHEMES: _GRAPHEME,
    CHARACTERS: re.compile(r"\S"),
    BLANKS: _BLANKS,
    GIVEN: _BLANKS,
}
KINDS = (WORDS, SPACES, *_PATTERNS)


@lru_cache
def _pattern(kind: str, by_grapheme: tuple[str, ...]) -> Any:
    """Return the compiled pattern of units; matches of white space are none."""
    if kind != WORDS:
        return _PATTERNS[kind]
    # A run of graphemes that begin with a letter, mark or digit; format characters may be inside.
    run = rf"(?=[[\p{{L}}\p{{N}}\p{{M}}]--[{_scripts(*UNSPACED, *by_grapheme)}]])\X"
    return regex.compile(rf"{run}(?:\p{{Cf}}*{run})*|\X", regex.V1)


def _scripts(*names: str) -> str:
    """Return classes of the characters of scripts; extensions, as the Japanese mark for length."""
    return "".join(
        r"\p{N}" if name == NUMBERS else rf"\p{{Script_Extensions={name}}}" for name in names
    )


_UNSPACED = regex.compile(rf"(?=[{_scripts(*UNSPACED)}])\X")


def unspaced_graphemes(text: str) -> int:
    """Return how many graphemes of a text are of scripts without spaces between words."""
    return len(_UNSPACED.findall(text))


def graphemes(text: str) -> list[str]:
    """Return the grapheme clusters of a text, blanks included."""
    return _GRAPHEME.findall(text)


def _split_at_spaces(text: str) -> list[Word]:
    """Split a text at spaces, and split punctuation off both ends.

    It resembles how corpora of words are split, which keep `don't`, `@user` and `10:30` whole.
    """
    words: list[Word] = []
    for match in _BLANKS.finditer(text):
        start, end = match.span()
        cuts = _ends_of_graphemes(text, start, end)
        while start + 1 < end and start + 1 in cuts and _OPENING.match(text, start):
            words.append(Word(text[start], start, start + 1))
            start += 1
        closing: list[Word] = []
        while start + 1 < end and end - 1 in cuts and _CLOSING.match(text, end - 1):
            closing.append(Word(text[end - 1], end - 1, end))
            end -= 1
        words += [Word(text[start:end], start, end), *reversed(closing)]
    return words


def _ends_of_graphemes(text: str, start: int, end: int) -> range | set[int]:
    if text[start:end].isascii():
        return range(start + 1, end + 1)
    return {match.end() for match in _GRAPHEME.finditer(text, start, end)}
