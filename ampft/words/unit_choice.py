"""Which units a data set of words or of character spans has, as a text is split in prediction.

Files of words show it by their words, and character spans by where they begin and end.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import islice

import regex

from ampft.data.sources.spans import EntitySpan
from ampft.errors import listed, quoted
from ampft.text.numbers import counted
from ampft.text.units import (
    BLANKS,
    CHARACTERS,
    GIVEN,
    GRAPHEMES,
    NUMBERS,
    SPACES,
    UNSPACED,
    WORDS,
    TextUnits,
    Word,
    graphemes,
    unspaced_graphemes,
)

MOST_SENTENCES = 5000  # of words that are examined
LEAST_RECOVERED = 0.95  # share of the words of files that a rule must find in their text
# Share of the spans beside a script that begin or end within its words. Above it, the words are
# divided; below, the spans count as slips and are extended.
MOST_SLIPS = 0.05
_PUNCTUATION = frozenset(".,;:!?")


def units_of_words(sentences: Iterable[Sequence[str]]) -> tuple[TextUnits, str]:
    """Return the units of sentences of words, and a note on them.

    If most words have one grapheme, or are of scripts without spaces, it is the rule that finds the
    words in the text without spaces. Otherwise texts are split at spaces, and punctuation is split
    off if it is in the sentences.
    """
    sample = list(islice(sentences, MOST_SENTENCES))
    words = [word for sentence in sample for word in sentence]
    lengths = [len(graphemes(word)) for word in words]
    letters = sum(map(unspaced_graphemes, words))
    unspaced = letters > sum(lengths) / 2
    if unspaced or lengths.count(1) > len(words) / 2:
        shares = {kind: _recovered(kind, sample) for kind in (GRAPHEMES, WORDS, CHARACTERS)}
        best = max(shares, key=lambda kind: shares[kind])
        if shares[best] >= LEAST_RECOVERED:
            return TextUnits(best, joiner=""), (
                f"Units: the words of the data, which are {_OF_FILES[best]}; texts are split like"
                " this in prediction."
            )
    if unspaced:
        return TextUnits(GIVEN, longest=max(map(unspaced_graphemes, words))), (
            "Units: the words of the data. No rule finds them in a text without spaces, so predict"
            " from lists of words, or from texts with spaces between words."
        )
    ends = Counter(
        len(word) == 1 for word in words if word[-1] in _PUNCTUATION and not word.isdigit()
    )
    if ends[False] > ends[True]:
        return TextUnits(BLANKS), (
            "Units: the words of the data, with punctuation at their ends; texts are split at"
            " spaces in prediction."
        )
    return TextUnits(SPACES), (
        "Units: the words of the data; texts are split at spaces, and punctuation at both ends of a"
        " word is split off, in prediction."
    )


_OF_FILES = {
    GRAPHEMES: "single characters",
    WORDS: "runs of letters and digits, and single characters of scripts without spaces",
    CHARACTERS: "single code points",
}


def _recovered(kind: str, sentences: Sequence[Sequence[str]]) -> float:
    """Return the share of words that a rule finds in the text of all without spaces."""
    found = total = 0
    units = TextUnits(kind, joiner="")
    for sentence in sentences:
        text, words = units.joined(sentence)
        total += len(words)
        found += len({*words} & {*units.split(text)})
    return found / max(total, 1)


def shifted_spans(rows: Iterable[tuple[str, Sequence[EntitySpan]]]) -> str | None:
    """Return how the places of spans seem to be counted, if not as characters from 0; None if so.

    Most spans then begin or end within words, and nearly all fit words if the places are converted.
    """
    fitting: Counter[str] = Counter()
    total = 0
    for text, spans in rows:
        words = TextUnits(WORDS).split(text) if spans else []
        starts, ends = {word.start for word in words}, {word.end for word in words}
        for span in spans:
            if span.says is not None:  # the source has the words of the span, to check its place
                continue
            total += 1
            for name, convert in _COUNTS.items():
                start, end = convert(text, span.start, span.end)
                fitting[name] += start in starts and end in ends
    if not total or fitting[""] > total / 2:
        return None
    name, count = max(fitting.items(), key=lambda item: item[1])
    if count < LEAST_RECOVERED * total:
        return None
    cut = f"{total - fitting['']:,} of {counted(total, 'span')}"
    return f"{cut} begin or end within a word, and {name}"


def _including_end(text: str, start: int, end: int) -> tuple[int, int]:
    # In scripts without case, such as Korean, particles of one letter follow words.
    is_cased = end < len(text) and text[end].lower() != text[end].upper()
    return start, end + is_cased


def _of_encoding(encoding: str, size: int) -> Callable[[str, int, int], tuple[int, int]]:
    def convert(text: str, start: int, end: int) -> tuple[int, int]:
        content = text.encode(encoding)
        try:
            before, until = content[: size * start], content[: size * end]
            return len(before.decode(encoding)), len(until.decode(encoding))
        except UnicodeDecodeError:  # within a character
            return -1, -1

    return convert


# Ways to count places, as what holds if a source uses them, and how to convert start and end.
_COUNTS: dict[str, Callable[[str, int, int], tuple[int, int]]] = {
    "": lambda text, start, end: (start, end),
    "their ends seem to be included": _including_end,
    "they seem to be counted in bytes of UTF-8": _of_encoding("utf-8", 1),
    "they seem to be counted in units of UTF-16, as JavaScript does": _of_encoding("utf-16-le", 2),
    "they seem to be counted from 1": lambda text, start, end: (start - 1, end - 1),
}


def units_of_spans(rows: Iterable[tuple[str, Sequence[EntitySpan]]]) -> tuple[TextUnits, str]:
    """Return the units of texts with spans, and a note on them.

    The units are words. In scripts in which spans begin or end within words, such as Korean with
    its particles, they are graphemes.
    """
    units = TextUnits(WORDS)
    beside, unspaced = Counter[str](), Counter[str]()
    within = Counter[frozenset[str]]()  # By the scripts before and after a border within a word.
    examples: dict[frozenset[str], str] = {}
    for text, spans in rows:
        if not text.isascii():
            unspaced.update(name for name in map(script_of, text) if name in UNSPACED)
        words = units.split(text) if spans else []
        starts = [word.start for word in words]
        for span in spans if words else ():
            near = text[max(0, span.start - 1) : span.start + 1] + text[span.end - 1 : span.end + 1]
            beside.update({*map(script_of, near)})
            cut = dict[frozenset[str], str]()
            for place in (span.start, span.end):
                word = words[max(0, bisect_left(starts, place) - 1)]
                if word.start < place < word.end:
                    cut[_scripts_at(word, place)] = word.text
            within.update(cut.keys())
            for scripts, whole in cut.items():
                part = quoted(text[span.start : span.end])
                examples.setdefault(scripts, f"{part} in {quoted(whole)}")
    note = "Units: words (runs of letters and digits)"
    if unspaced:
        note += f"; single characters in {listed(sorted(unspaced))}"
    divided: dict[str, None] = {}
    for scripts, count in sorted(within.items(), key=lambda item: len(item[0])):
        spans_there = min((beside[name] for name in scripts), default=0)
        if not divided.keys() & scripts and count > MOST_SLIPS * spans_there > 0:
            # Of two, the digits, so that `5km` has a border without one within `km`.
            name = min(scripts, key=lambda name: (name != NUMBERS, name == "Latin", name))
            divided[name] = None
            note += (
                f"; single {'digits' if name == NUMBERS else f'characters in {name}'}, as"
                f" {count:,} of {counted(spans_there, 'span')} begin or end within a word, such as"
                f" {examples[scripts]}"
            )
    return TextUnits(WORDS, tuple(divided)), f"{note}."


def _scripts_at(word: Word, place: int) -> frozenset[str]:
    """Return the scripts before and after a place in a word; none within a grapheme."""
    start = word.start
    before = ""
    for grapheme in graphemes(word.text):
        if start == place:
            return frozenset({script_of(before), script_of(grapheme[0])} - {""})
        start, before = start + len(grapheme), grapheme[0]
    return frozenset()


@lru_cache(maxsize=10_000)
def script_of(character: str) -> str:
    """Return the script of a letter, `NUMBERS` for a digit, and otherwise an empty string."""
    if unicodedata.category(character).startswith("N"):
        return NUMBERS
    parts = unicodedata.name(character, "").split()  # such as HANGUL SYLLABLE GA
    if parts[:1] == ["CJK"]:
        return "Han"
    for count in (3, 2, 1):
        name = "_".join(part.capitalize() for part in parts[:count])
        try:
            if regex.match(rf"(?=\p{{L}})\p{{Script={name}}}", character):
                return name
        except regex.error:
            continue
    return ""
