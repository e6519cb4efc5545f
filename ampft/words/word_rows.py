"""Tables with a row per word and a column that says which words form a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

from ampft.data.columns import normalized_name
from ampft.data.sources.source_table import SAMPLE_ROWS, Row, SourceTable, as_text
from ampft.data.sources.text_lists import list_or_cell
from ampft.errors import InputError, quoted
from ampft.words.word_columns import TAG_COLUMNS, WORD_COLUMNS

# Names in data sets of words, such as Kaggle's ner_dataset.csv, without case.
SENTENCES = (
    *("sentence #", "sentence_id", "sentence id", "sentence_idx", "sentence_number", "sent_id"),
    *("sent_idx", "sentence_nr", "sentence no", "sentence"),
)
WORDS = ("word", "token", *WORD_COLUMNS)
TAGS = ("tag", "ner_tag", "ner", "label", *TAG_COLUMNS)


def with_row_per_sentence(table: SourceTable, named_tags: Sequence[str] = ()) -> SourceTable:
    """Return a table with a row per sentence, if it has one per word; otherwise the table itself.

    The columns of sentences, words and tags are found by their names. A sentence goes on while its
    cell is empty or the same. Each cell becomes the list of its words' cells, and words and tags
    are also called by their usual names.

    Args:
        named_tags: Columns of tags that the user named.
    """
    if table.has_line_per_word:
        return table
    sentence, word, tag = (_named(table.columns, names) for names in (SENTENCES, WORDS, TAGS))
    if sentence is None or word is None or word == sentence:
        return table
    found = (name for name in (sentence, word, tag) if name is not None)
    rows = [cells for _, cells in islice(table.read([*found]), SAMPLE_ROWS)]
    of_rows = (cell for row in rows for cell in row)
    if any(isinstance(list_or_cell(cell), list | tuple | dict) for cell in of_rows):
        return table
    if all(_begins(row[0], last[0]) for last, row in pairwise(rows)):  # a sentence in each row
        return table
    aliases = {WORD_COLUMNS[0]: word}
    if tag is not None:
        aliases["tags"] = tag
    aliases = {name: of for name, of in aliases.items() if name not in table.columns}

    def read(wanted: Sequence[str]) -> Iterator[Row]:
        sources = [aliases.get(name, name) for name in wanted]
        start, lines, current = 0, list[Sequence[Any]](), None
        for number, (identity, *cells) in table.read((sentence, *sources)):
            if lines and _begins(identity, current):
                yield start, _joined(lines, wanted)
                lines = []
            if not lines:
                start = number
            current = identity if as_text(identity, "", sentence) is not None else current
            _refuse_line_breaks(cells, sources, word, table.place(number))
            lines.append(cells)
        if lines:
            yield start, _joined(lines, wanted)

    def _joined(lines: Sequence[Sequence[Any]], wanted: Sequence[str]) -> list[Any]:
        of_words = {word, tag, *aliases, *named_tags}
        columns = zip(wanted, zip(*lines, strict=True), strict=True)
        return [list(cells) if name in of_words else cells[0] for name, cells in columns]

    note = f"{table.origin}: a row per word; {quoted(sentence)} says which form a sentence."
    return replace(
        table,
        columns=(*table.columns, *aliases),
        read=read,
        notes=(*table.notes, note),
        classes={
            **table.classes,
            **{name: table.classes[of] for name, of in aliases.items() if of in table.classes},
        },
        dataset=None,
    )


def _refuse_line_breaks(
    cells: Sequence[Any], columns: Sequence[str], word: str, place: str
) -> None:
    """Raise InputError for a word that spans lines: a quote in the column of words is not doubled.

    CSV reads all rows up to the next quote as one word.
    """
    for cell, column in zip(cells, columns, strict=True):
        if column == word and isinstance(cell, str) and "\n" in cell.strip():
            raise InputError(
                f"{place}: the word {quoted(cell)} spans lines. If a quote is a word, write it as"
                ' """" (in quotes, and doubled).'
            )


def _named(columns: Sequence[str], names: Sequence[str]) -> str | None:
    folded = {normalized_name(column): column for column in columns}
    return next((folded[name] for name in names if name in folded), None)


def _begins(identity: Any, current: Any) -> bool:
    """Return whether a row with this cell begins another sentence than the one before."""
    text = as_text(identity, "", "")
    return text is not None and text != as_text(current, "", "")
