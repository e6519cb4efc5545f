"""CoNLL files: a word and its tags per line, and a blank line between sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ampft.data.sources.delimited import opened_text
from ampft.data.sources.table import Row, SourceTable
from ampft.errors import InputError

SUFFIXES = (".conll", ".bio", ".iob", ".iob2")
WORDS, TAGS = "tokens", "ner_tags"
DOCUMENT = "-DOCSTART-"  # first word of a line between documents
SEPARATORS = ("\t", "\n", "\r")  # of cells and lines, which no word can contain


def read_conll(path: Path, *, encoding: str) -> SourceTable:
    """Open a CoNLL file: the first column is the word and the last one its tag.

    Columns are separated by tabs, or by spaces if a line has no tab. A line of only spaces ends a
    sentence. Lines that begin with -DOCSTART- are skipped. A file with one column has no tags. A
    row is a sentence, and its number is the line on which it begins.

    Raises:
        InputError: The file has no words. Reading a row raises it for a line with another number of
            columns than the first one has, or with an empty cell; the message names file and line.
    """
    first = next(sentences(path, encoding), None)
    if first is None:
        raise InputError(f"{path}: the file has no words. Each line must have a word and its tag.")
    columns = (WORDS,) if len(first[1][0]) == 1 else (WORDS, TAGS)

    def read(names: Sequence[str]) -> Iterator[Row]:
        for number, lines in sentences(path, encoding):
            cells = {WORDS: [line[0] for line in lines], TAGS: [line[-1] for line in lines]}
            yield number, [cells[name] for name in names]

    return SourceTable(
        columns=columns, read=read, unit="line", origin=str(path), has_line_per_word=True
    )


def read_other(path: Path, *, encoding: str) -> SourceTable:
    """Open a file with an extension that no other reader has; a note says that it is CoNLL."""
    note = f"{path}: read as CoNLL, a word and its tag per line."
    return replace(read_conll(path, encoding=encoding), notes=(note,))


def sentences(path: Path, encoding: str) -> Iterator[tuple[int, list[list[str]]]]:
    """Yield the number of the first line and the cells of all lines of each sentence."""
    start, lines, expected = 0, list[list[str]](), 0
    with opened_text(path, encoding) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                if lines:
                    yield start, lines
                lines = []
                continue
            cells = split_line(line)
            if cells[0] == DOCUMENT:
                continue
            if not expected:
                expected = len(cells)
            elif len(cells) != expected:
                raise InputError(
                    f"{path}, line {number}: the number of columns is {len(cells)}, but the first"
                    f" line has {expected}. Every line needs a word and its tag, separated by a tab"
                    " or spaces, and a blank line ends a sentence."
                )
            if not all(cells):
                raise InputError(
                    f"{path}, line {number}: a cell is empty. Every line needs a word and its tag."
                )
            if not lines:
                start = number
            lines.append(cells)
    if lines:
        yield start, lines


def split_line(line: str) -> list[str]:
    """Return the cells of a line, which tabs separate, or spaces if it has no tab."""
    text = line.strip("\r\n")
    if "\t" in text:
        return [cell.strip(" ") for cell in text.split("\t")]
    return [cell for cell in text.split(" ") if cell]
