"""Sentences to predict: where they are, the tags of their words, and the entities of those."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ampft.data.columns import (
    INPUT_FLAGS,
    LABEL_FLAG,
    SPAN_COLUMNS,
    TAG_COLUMNS,
    TEXT,
    TEXT_COLUMNS,
    WORD_COLUMNS,
    DataColumns,
    require,
)
from ampft.data.sources.files import open_table
from ampft.data.sources.table import SourceTable, as_text, refuse_surrogates
from ampft.data.sources.text_files import CONLL_SEPARATORS, CONLL_SUFFIXES, read_as_conll
from ampft.data.token_rows import TagReader, declared_tags
from ampft.data.words import (
    Word,
    entities,
    is_bio,
    joined,
    split_at_spaces,
    split_words,
)
from ampft.errors import InputError, quoted
from ampft.kinds.prediction import InputRows, PredictedRows, PredictRequest, RowOutput, Trained
from ampft.kinds.rows import STANDARD_INPUT, lines_as_table, texts_as_table

ENTITIES = "entities"
ENTITIES_TYPE = pa.list_(  # the first rows may have no entity that shows it
    pa.struct(
        {
            "start": pa.int64(),
            "end": pa.int64(),
            "label": pa.string(),
            "text": pa.string(),
            "confidence": pa.float64(),
        }
    )
)


@dataclass(frozen=True)
class Sentence:
    """A row: its text, or its words with a blank between them, and the places of the words."""

    text: str
    words: tuple[Word, ...]


def sentence_output(request: PredictRequest, config: Any) -> RowOutput:
    """Return words, their tags, the confidence of a sentence, and entities with their offsets."""
    del request, config
    formats = dict.fromkeys(CONLL_SUFFIXES, _conll_text)
    return RowOutput(_columns, {ENTITIES: ENTITIES_TYPE}, formats)


def _columns(rows: Sequence[tuple[Any, ...]], predictions: PredictedRows) -> dict[str, list[Any]]:
    """Return the columns of sentences; entities only if tags form them.

    Args:
        rows: A `Sentence` each.
        predictions: Their predictions, with probabilities (words, K) of each.
    """
    sentences: list[Sentence] = [sentence for (sentence,) in rows]
    probabilities = list(predictions.decoded["probabilities"])
    names = predictions.label_names
    tags = [[names[code] for code in each.argmax(axis=1)] for each in probabilities]
    columns: dict[str, list[Any]] = {
        "words": [[word.text for word in sentence.words] for sentence in sentences],
        "prediction": tags,
        "confidence": [round(value, 6) for value in predictions.confidence],
    }
    if is_bio(names):
        columns[ENTITIES] = [
            _entities(*each) for each in zip(sentences, tags, probabilities, strict=True)
        ]
    return columns


def _entities(
    sentence: Sentence, tags: Sequence[str], probabilities: npt.NDArray[np.float32]
) -> list[dict[str, Any]]:
    """Return the entities of a sentence; their confidence is the mean over their words."""
    best, found = probabilities.max(axis=1), []
    for label, first, end in entities(tags):
        inside = sentence.words[first:end]
        found.append(
            {
                "start": inside[0].start,
                "end": inside[-1].end,
                "label": label,
                "text": sentence.text[inside[0].start : inside[-1].end],
                "confidence": round(float(best[first:end].mean()), 6),
            }
        )
    return found


def _conll_text(cells: Sequence[Any]) -> str:
    """Return a sentence as lines of word and tag, from the new columns of its row."""
    words, tags, *_ = cells
    lines = [f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)]
    return "".join(lines) + "\n"


def open_rows(request: PredictRequest, trained: Trained) -> InputRows:
    """Return rows of sentences: texts, lines of standard input, or a table of words or texts."""
    table, column = _table(request, trained)
    as_conll = Path(request.output_file or "").suffix.lower() in CONLL_SUFFIXES

    def convert(cells: Sequence[Any], place: str) -> tuple[Any, ...] | None:
        try:
            found = sentence_of(cells[0], trained)
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
        words = found.words
        if not words or any(as_text(word.text, place, column) is None for word in words):
            return None
        if as_conll:
            _check_separators(words, place)
        return (found,)

    missing = f"no words, or an empty one, in column {column!r}. Remove the rows."
    return InputRows(table, (column,), convert, missing, _labels(table, column, request, trained))


def rows_in_memory(inputs: Any, trained: Trained) -> list[tuple[Sentence]]:
    """Return the sentences of a text, or of a list of texts or of lists of words.

    Raises:
        InputError: A row has no words.
    """
    rows = [inputs] if isinstance(inputs, str) else list(inputs)
    found = []
    for number, row in enumerate(rows):
        place = f"position {number} (from 0)"
        try:
            each = sentence_of(row, trained)
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
        if not each.words or not all(word.text.strip() for word in each.words):
            raise InputError(
                f"{place}: received {quoted(row)}, which has no words or an empty one."
            )
        refuse_surrogates(each.text, place)
        found.append((each,))
    return found


def sentence_of(cell: Any, trained: Trained) -> Sentence:
    """Return the words of a cell, a list of words or a text, which is split as in training.

    Raises:
        InputError: The cell is neither.
    """
    if isinstance(cell, list | tuple):
        words = [str(word) for word in cell]
        return Sentence(" ".join(words), tuple(joined(words)))
    text = "" if cell is None else cell
    if not isinstance(text, str):
        raise InputError(f"received {quoted(cell)}; a row must be a text or a list of words.")
    split = split_words if trained.input_columns == (TEXT,) else split_at_spaces
    return Sentence(text, tuple(split(text)))


def _table(request: PredictRequest, trained: Trained) -> tuple[SourceTable, str]:
    """Return the rows to predict, and the column of their words or texts."""
    if request.texts:
        return texts_as_table(request.texts, (TEXT,)), TEXT
    if len(request.files) > 1:
        raise InputError(f"FILE: received {len(request.files)} files; give one.")
    (file,) = request.files
    if file == STANDARD_INPUT:
        return lines_as_table((TEXT,)), TEXT
    table = open_table(
        Path(file),
        flag="FILE",
        encoding=request.encoding,
        sheet=request.sheet_name,
        other_reader=read_as_conll,
    )
    named = request.text_column_names
    of_training = trained.arguments.get("text_column_names")
    usual = (*((of_training,) if of_training else ()), *WORD_COLUMNS, *TEXT_COLUMNS)
    column = named or next((name for name in usual if name in table.columns), TEXT)
    require((column,), table.columns, INPUT_FLAGS["token"], origin=table.origin)
    return table, column


def _check_separators(words: Sequence[Word], place: str) -> None:
    """Raise InputError for a word that would be several cells or lines of a CoNLL file."""
    for word in words:
        if any(character in word.text for character in CONLL_SEPARATORS):
            raise InputError(
                f"{place}: the word {quoted(word.text)} has a tab or a line break, which separate"
                " cells and words in a CoNLL file. Remove it from the word, or give a .jsonl or"
                " .parquet file for --output_file."
            )


def _labels(
    table: SourceTable, column: str, request: PredictRequest, trained: Trained
) -> TagReader | None:
    """Return where the tags of words are; None if the rows have none."""
    requested = request.label_column_name
    if requested is not None:
        require((requested,), table.columns, LABEL_FLAG, origin=table.origin)
    are_spans = trained.input_columns == (TEXT,) and column not in WORD_COLUMNS
    named = requested or trained.arguments.get("label_column_name")
    usual = SPAN_COLUMNS if are_spans else TAG_COLUMNS
    names = [name for name in (named, *usual) if name in table.columns]
    if not names:
        return None
    tags = str(names[0])
    columns = DataColumns.of_tokens(column, tags, are_spans=are_spans)
    return TagReader(columns, declared_tags(table, tags))
