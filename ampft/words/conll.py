"""CoNLL files: a word per line with its columns, and blank lines between sentences.

Corpora differ in what else a line has. The training file shows it: numbers of words before them
(GermEval, CoNLL-U), comments before a sentence (MultiCoNER, CoNLL-U), two columns of entities, or
tags in brackets (OntoNotes).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from ampft.data.sources.source_table import Row, SourceTable
from ampft.data.sources.text_files import opened_text
from ampft.decision import BEGIN, INSIDE, OUTSIDE
from ampft.errors import InputError
from ampft.text.numbers import counted
from ampft.words.tags import Tag

CONLL_SUFFIXES = (".conll", ".bio", ".iob", ".iob2")
CONLLU_SUFFIX = ".conllu"
WORDS, TAGS = "tokens", "ner_tags"
DOCUMENT = "-DOCSTART-"  # first word of a line between documents
COMMENT = "#"
CONLL_SEPARATORS = ("\t", "\n", "\r")  # of cells and lines, which no word can contain
# Columns of CoNLL-U after the number, https://universaldependencies.org/format.html.
CONLLU = (WORDS, "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
# Of CoNLL-2012 (OntoNotes), https://conll.cemantix.org/2012/data.html: the line before a document,
# the columns before the arguments of predicates, whose number differs by sentence, and the columns
# of words and entities.
DOCUMENT_OF_2012 = "#begin document"
COLUMNS_OF_2012, WORD_OF_2012, TAG_OF_2012 = 11, 3, 10
# A tag in brackets: (PERSON* begins, * continues and *) ends; (GPE) is of one word.
_BRACKET = re.compile(r"(?:\((?P<type>[^()*\s]+))?(?P<star>\*?)(?P<end>[^()*\s]*\))?")
LINES = 1000  # that show whether a file has a line per word
LEAST_WORDS = 4  # of a sentence in which a column with only one value cannot hold the words


@dataclass(frozen=True)
class _Layout:
    """What the columns of a file are."""

    count: int  # Number of columns.
    has_numbers: bool  # Whether the first one numbers the words of each sentence.
    tag: int  # Column of the tags.
    tags: frozenset[str]  # Values of the last column.
    comments: int  # Number of comments.
    has_brackets: bool = False  # Whether the tags are written in brackets.
    is_of_2012: bool = False  # Whether these are the columns of CoNLL-2012.

    @property
    def word(self) -> int:
        """Column of the words: the first one that is neither their number nor their tag."""
        if self.is_of_2012:
            return WORD_OF_2012
        return 1 if self.tag == 0 and self.count > 1 else int(self.has_numbers)

    @property
    def is_conllu(self) -> bool:
        """Whether these are the columns of CoNLL-U."""
        return self.has_numbers and self.count == len(CONLLU) + 1

    @property
    def names(self) -> dict[str, int]:
        if self.is_conllu:
            return {name: i for i, name in enumerate(CONLLU, start=1)}
        if self.count == 1:
            return {WORDS: 0}
        named = {WORDS: self.word, TAGS: self.tag}
        others = sorted({*range(self.word, self.count)} - {*named.values()})
        return named | {f"column_{i + 1}": i for i in others}

    def notes(self, path: Path) -> tuple[str, ...]:
        """Return what the user cannot expect."""
        notes = []
        if self.is_conllu:
            notes.append(f"{path}: read as CoNLL-U, with the columns {', '.join(CONLLU)}.")
        elif self.count > 2 or self.word > self.tag:
            notes.append(
                f"{path}: words are in column {self.word + 1} of {self.count}, tags in column"
                f" {self.tag + 1} ({', '.join(self.names)} for --label_column_name)."
            )
        if self.has_brackets:
            notes.append(f"{path}: tags in brackets, such as (PER* and *), are read as BIO.")
        if self.comments:
            lines = counted(self.comments, "line")
            notes.append(f"{path}: {lines} before sentences begin with # and are comments.")
        return tuple(notes)


@dataclass
class _Survey:
    """What the lines of a file have."""

    count: int = 0  # Number of columns of the first line of a word.
    sentences: int = 0
    longest: int = 0  # Number of words of the longest sentence.
    are_numbered: bool = True  # Whether the first column numbers the words of every sentence.
    is_constant: bool = True  # Whether it has one value in each sentence of at least `LEAST_WORDS`.
    values: list[set[str]] = field(default_factory=list)  # Values of the last two columns.
    # Whether the first column holds tags of entities only.
    begins_with_tags: bool = True

    def add(self, lines: Sequence[Sequence[str]]) -> None:
        first = [line[0] for line in lines]
        ids = [each for each in first if each.isdecimal()]
        start = int(ids[0]) if ids else 0
        # CoNLL-U also numbers parts of words (1-2) and words that are left out (1.1).
        rest_are_parts = all(not each.strip("0123456789.-") for each in first)
        is_numbered = ids == [str(start + i) for i in range(len(ids))] and start in (0, 1)
        self.are_numbered &= bool(ids) and is_numbered and rest_are_parts
        self.begins_with_tags &= all(Tag.parse(each) is not None for each in first)
        if len(lines) >= LEAST_WORDS:
            self.is_constant &= len(set(first)) == 1
        self.sentences += 1
        self.longest = max(self.longest, len(lines))
        self.values = self.values or [set() for _ in lines[0][-2:]]
        for line in lines:
            for found, cell in zip(self.values, line[-2:], strict=False):
                found.add(cell)


def _layout(path: Path, encoding: str) -> _Layout:
    """Return the columns of a file.

    Raises:
        InputError: It has no words, or the first column holds neither words nor their numbers.
    """
    survey = _Survey()
    lines, candidates = list[list[str]](), list[list[str]]()
    for _, cells in _lines(path, encoding):
        if cells is None:
            if lines:
                survey.add(lines)
            lines = []
        elif not lines and cells[0].startswith(COMMENT):
            candidates.append(cells)
        elif not survey.count or len(cells) == survey.count:  # `_sentences` refuses the others
            survey.count = len(cells)
            lines.append(cells)
    if not survey.count and candidates:  # words that begin with the sign
        survey.count = len(candidates[0])
        survey.add(candidates)
    if not survey.count:
        raise InputError(f"{path}: the file has no words. Each line must have a word and its tag.")
    count = survey.count
    is_of_2012 = count == COLUMNS_OF_2012 and [c[:2] for c in candidates[:1]] == [
        DOCUMENT_OF_2012.split()
    ]
    has_numbers = count > 2 and survey.are_numbered and survey.longest + survey.sentences > 2
    if is_of_2012:
        has_numbers = survey.is_constant = False
    if count > 2 and not has_numbers and survey.is_constant and survey.longest >= LEAST_WORDS:
        raise InputError(
            f"{path}: the first column has one value in each sentence, so it does not hold the"
            " words. Keep the columns of words and tags, in this order."
        )
    tag = count - 1
    before, last = survey.values if count > 1 else (set[str](), survey.values[0])
    if has_numbers and count == 4 and _are_nested(before, last):
        tag = count - 2
    if survey.begins_with_tags and count > 1 and any(Tag.parse(cell) is None for cell in last):
        tag = 0
        last = {OUTSIDE}
    tags = frozenset(last)
    comments = sum(_is_comment(cells, count, tags) for cells in candidates)
    return _Layout(
        count, has_numbers, tag, tags, comments, _are_in_brackets(tags) and tag > 0, is_of_2012
    )


def _are_in_brackets(tags: frozenset[str]) -> bool:
    """Return whether tags are written as in OntoNotes: (PERSON*, * and *)."""
    return "*" in tags and any("(" in tag for tag in tags) and all(map(_BRACKET.fullmatch, tags))


def _as_bio(cells: Sequence[str], place: str) -> list[str]:
    """Return the tags of a sentence, which are written in brackets, in BIO.

    Raises:
        InputError: A bracket is opened within another one, or closed without one.
    """
    tags, current = list[str](), ""
    for cell in cells:
        found = _BRACKET.fullmatch(cell)
        begins = "" if found is None else found["type"] or ""
        ends = cell.endswith(")")
        if found is None or (begins and current) or (ends and not (begins or current)):
            raise InputError(
                f"{place}: the tag {cell} does not fit the brackets before it. Each entity begins"
                " with (TYPE*, ends with *), and holds no other one."
            )
        now = begins or current
        prefix = BEGIN if begins else INSIDE
        tags.append(f"{prefix}-{now}" if now else OUTSIDE)
        current = "" if ends else now
    if current:
        raise InputError(f"{place}: the bracket of {current} is not closed in its sentence.")
    return tags


def _are_nested(outer: set[str], inner: set[str]) -> bool:
    """Return whether two columns tag entities, as GermEval's do; phrases (B-NP) are none."""
    tags = [Tag.parse(tag) for tag in outer | inner]
    types = {tag.type for tag in tags if tag}
    return None not in tags and OUTSIDE in outer & inner and "NP" not in types


def _is_comment(cells: Sequence[str], count: int, tags: frozenset[str]) -> bool:
    """Return whether a line before a sentence that begins with # is a comment.

    It is a word if it has as many columns as others, and its tag or more than the sign as its word.
    """
    if len(cells) != count:
        return True
    is_tag = cells[-1] in tags or Tag.parse(cells[-1]) is not None
    return count > 1 and not is_tag and cells[0] == COMMENT


def read_conll(path: Path, *, encoding: str) -> SourceTable:
    """Open a CoNLL file: the first column is the word and the last one its tag.

    Columns are separated by tabs, or by spaces if a line has no tab. A line of only spaces ends a
    sentence. Lines that begin with -DOCSTART- are skipped. A file with one column has no tags. Tags
    in brackets become BIO. A row is a sentence, and its number is the line on which it begins. If
    the first column numbers the words, the second one is the word. Notes say which columns of more
    than two are read.

    Raises:
        InputError: See `_layout`. Reading a row raises it for a line with another number of
            columns than the first one has, or with an empty cell; the message names file and line.
    """
    layout = _layout(path, encoding)
    names = layout.names

    def read(wanted: Sequence[str]) -> Iterator[Row]:
        for number, lines in _sentences(path, encoding, layout):
            if layout.has_brackets:
                place = f"{path}, sentence from line {number}"
                tags = _as_bio([line[layout.tag] for line in lines], place)
                for line, tag in zip(lines, tags, strict=True):
                    line[layout.tag] = tag
            yield number, [[line[names[name]] for line in lines] for name in wanted]

    return SourceTable(
        columns=tuple(names),
        read=read,
        unit="line",
        origin=str(path),
        notes=layout.notes(path),
        has_line_per_word=not layout.is_conllu,
    )


def has_line_per_word(path: Path, encoding: str) -> bool:
    """Return whether the first lines of a file are words with tags, and a blank line ends them."""
    has_tag, words = False, 0
    try:
        for _, cells in islice(_lines(path, encoding), LINES):
            if cells is None and words:
                return has_tag
            if cells is not None and not (words == 0 and cells[0].startswith(COMMENT)):
                words += 1
                has_tag = any(Tag.parse(cell) is not None for cell in cells[1:])
                if not has_tag:
                    return False
    except InputError:  # whoever reads the rows reports it
        pass
    return False


def read_as_conll(path: Path, *, encoding: str) -> SourceTable:
    """Open a file with an extension that no other reader has; a note says that it is CoNLL."""
    note = f"{path}: read as CoNLL, a word and its tag per line."
    table = read_conll(path, encoding=encoding)
    return replace(table, notes=(note, *table.notes))


def _sentences(path: Path, encoding: str, layout: _Layout) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield the number of the first line and the cells of all words of each sentence."""
    start, lines = 0, list[list[str]]()
    for number, cells in _lines(path, encoding):
        if cells is None:
            if lines:
                yield start, lines
            lines = []
            continue
        is_candidate = not lines and cells[0].startswith(COMMENT)
        if is_candidate and _is_comment(cells, layout.count, layout.tags):
            continue
        if len(cells) != layout.count:
            raise InputError(
                f"{path}, line {number}: the number of columns is {len(cells)}, but the first"
                f" line has {layout.count}. Every line needs a word and its tag, separated by a tab"
                " or spaces, and a blank line ends a sentence."
            )
        if not all(cells):
            raise InputError(
                f"{path}, line {number}: a cell is empty. Every line needs a word and its tag."
            )
        if layout.has_numbers and not cells[0].isdecimal():
            continue  # a part of a word, or a word that is left out
        if not lines:
            start = number
        lines.append(cells)


def _lines(path: Path, encoding: str) -> Iterator[tuple[int, list[str] | None]]:
    """Yield number and cells of each line, None for a blank one or a border of documents.

    None follows the last line.
    """
    number, is_of_2012 = 0, False
    with opened_text(path, encoding) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                yield number, None
                continue
            is_of_2012 |= line.startswith(DOCUMENT_OF_2012)
            cells = _split_line(line)
            if cells[0] == DOCUMENT:  # no sentence goes on in another document
                yield number, None
                continue
            yield number, cells[:COLUMNS_OF_2012] if is_of_2012 else cells
    yield number + 1, None


def _split_line(line: str) -> list[str]:
    """Return the cells of a line, which tabs separate, or spaces if it has no tab."""
    text = line.strip("\r\n")
    if "\t" in text:
        return [cell.strip(" ") for cell in text.split("\t")]
    return [cell for cell in text.split(" ") if cell]


READERS = dict.fromkeys((*CONLL_SUFFIXES, CONLLU_SUFFIX), read_conll)
