"""Predicts the labels of words with a saved model, and the entities that they form."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ampft.data.columns import LABEL_FLAG, require
from ampft.data.row_collector import location
from ampft.data.row_labels import UnitLabels
from ampft.data.sources import conll
from ampft.data.sources.files import open_table
from ampft.data.sources.table import Row, Table, as_text, refuse_surrogates
from ampft.data.tags import TagError, as_bio, entities, find_scheme, is_bio
from ampft.data.token_columns import (
    SPAN_COLUMNS,
    TAG_COLUMNS,
    TEXT,
    TEXT_COLUMNS,
    WORD_COLUMNS,
    WORDS_FLAG,
    TokenColumns,
)
from ampft.data.token_rows import TokenSource, declared_in_file, read_cells
from ampft.data.words import Word, joined, split_at_spaces, split_words
from ampft.errors import InputError, quoted
from ampft.files import special_or_atomic_path
from ampft.runs.predict_rows import (
    STANDARD_INPUT,
    PredictRequest,
    Write,
    lines_as_table,
    new_names,
    opened_output,
    texts_as_table,
)
from ampft.runs.predictor import Predictor
from ampft.runs.record import RunRecord
from ampft.runs.show import report_with_heading
from ampft.text.escaping import inert_lines
from ampft.text.numbers import counted

SENTENCES_AT_ONCE = 8192
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


def predict_words_file(folder: Path, record: RunRecord, request: PredictRequest) -> None:
    """Write the rows of a request with the labels of their words and the entities.

    If the rows have labels, the report of the predictions is printed.

    Args:
        folder: Output folder of a run.
        record: Its record.
        request: What to predict, and how.

    Raises:
        InputError: The rows cannot be read.
    """
    table, column = _open(request, record)
    labels = _find_labels(table, column, record, request.label_column_name)
    _check_words(table, column, record, as_conll=_is_conll(request.output_file))
    predictor = Predictor(folder, record, request.mixed_precision, request.batch_size)
    scores = None if labels is None else WordScores(labels, table, predictor.problem)
    count = 0
    with predictor.numerics, _output(request.output_file, table, predictor) as write:
        rows = table.read(table.columns)
        while chunk := list(islice(rows, SENTENCES_AT_ONCE)):
            count += len(chunk)
            place = table.columns.index(column)
            cells = [row[place] for _, row in chunk]
            found = predict_sentences(predictor, [sentence(cell, record) for cell in cells])
            if scores is not None:
                scores.add(chunk, table.columns, found.decoded)
            new = found.columns()
            write([(*row, *more) for (_, row), *more in zip(chunk, *new.values(), strict=True)])
    if scores is not None:
        stream = sys.stderr if request.output_file is None else sys.stdout
        print(inert_lines(scores.text()), file=stream)
    if request.output_file is not None:
        print(inert_lines(f"wrote      {request.output_file}: {counted(count, 'row')}"))


@dataclass(frozen=True)
class WordPredictions:
    """Predictions of n sentences.

    Attributes:
        sentences: The sentences.
        tags: Predicted tag of each word of each sentence.
        confidence: Probability of the least certain tag of each sentence.
        probabilities: (words,) probability of each predicted tag, by sentence.
        decoded: Results of `decode`.
        has_entities: Whether tags form entities.
    """

    sentences: Sequence[Sentence]
    tags: Sequence[Sequence[str]]
    confidence: Sequence[float]
    probabilities: Sequence[npt.NDArray[np.float32]]
    decoded: Mapping[str, npt.NDArray[Any]]
    has_entities: bool

    def columns(self) -> dict[str, list[Any]]:
        """Return the columns of the output: words, their tags, and entities with their offsets."""
        columns: dict[str, list[Any]] = {
            "words": [[word.text for word in s.words] for s in self.sentences],
            "prediction": [list(tags) for tags in self.tags],
            "confidence": [round(value, 6) for value in self.confidence],
        }
        if self.has_entities:
            columns[ENTITIES] = [self._entities(number) for number in range(len(self.sentences))]
        return columns

    def _entities(self, number: int) -> list[dict[str, Any]]:
        words, probabilities = self.sentences[number].words, self.probabilities[number]
        found = []
        for label, first, end in entities(self.tags[number]):
            inside = words[first:end]
            found.append(
                {
                    "start": inside[0].start,
                    "end": inside[-1].end,
                    "label": label,
                    "text": self.sentences[number].text[inside[0].start : inside[-1].end],
                    "confidence": round(float(probabilities[first:end].mean()), 6),
                }
            )
        return found


def predict_sentences(predictor: Predictor, sentences: Sequence[Sentence]) -> WordPredictions:
    """Predict the labels of the words of sentences."""
    rows = [[word.text for word in each.words] for each in sentences]
    predictions = predictor([rows])
    names = predictor.problem.label_names
    probabilities = predictions.decoded["probabilities"]
    return WordPredictions(
        sentences,
        [[names[code] for code in words.argmax(axis=1)] for words in probabilities],
        predictions.confidence,
        [words.max(axis=1) for words in probabilities],
        predictions.decoded,
        is_bio(names),
    )


def sentence(cell: Any, record: RunRecord) -> Sentence:
    """Return the words of a cell: those of a list, or of a text, which is split as in training.

    Raises:
        InputError: The cell is neither.
    """
    if isinstance(cell, list | tuple):
        words = [str(word) for word in cell]
        return Sentence(" ".join(words), tuple(joined(words)))
    text = "" if cell is None else cell
    if not isinstance(text, str):
        raise InputError(f"received {quoted(cell)}; a row must be a text or a list of words.")
    split = split_words if tuple(record.data.input_columns) == (TEXT,) else split_at_spaces
    return Sentence(text, tuple(split(text)))


def sentences_in_memory(inputs: Any, record: RunRecord) -> list[Sentence]:
    """Return the sentences of a text, or of a list of texts or of lists of words.

    Raises:
        InputError: A row has no words.
    """
    rows = [inputs] if isinstance(inputs, str) else list(inputs)
    found = []
    for number, row in enumerate(rows):
        place = f"position {number} (from 0)"
        try:
            each = sentence(row, record)
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
        if not each.words or not all(word.text.strip() for word in each.words):
            raise InputError(
                f"{place}: received {quoted(row)}, which has no words or an empty one."
            )
        refuse_surrogates(each.text, place)
        found.append(each)
    if not found:
        raise InputError("the list is empty. Pass at least one row.")
    return found


def _open(request: PredictRequest, record: RunRecord) -> tuple[Table, str]:
    """Return the rows to predict, and the column of their words or texts."""
    if request.texts:
        return texts_as_table(request.texts, (TEXT,)), TEXT
    if len(request.files) > 1:
        raise InputError(f"FILE: received {len(request.files)} files; name one.")
    (file,) = request.files
    if file == STANDARD_INPUT:
        return lines_as_table((TEXT,)), TEXT
    table = open_table(
        Path(file),
        flag="FILE",
        encoding=request.encoding,
        sheet=request.sheet_name,
        other_reader=conll.read_other,
    )
    named = request.text_column_names
    trained = record.arguments.get("text_column_names")
    usual = (*((trained,) if trained else ()), *WORD_COLUMNS, *TEXT_COLUMNS)
    column = named or next((name for name in usual if name in table.columns), TEXT)
    require((column,), table.columns, WORDS_FLAG, origin=table.origin)
    return table, column


def _check_words(table: Table, column: str, record: RunRecord, *, as_conll: bool) -> None:
    """Raise InputError for rows without words, or with words that a CoNLL output cannot hold."""
    missing = []
    for number, (cell,) in table.read((column,)):
        place = f"{table.origin}, {table.unit} {number}"
        try:
            words = sentence(cell, record).words
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
        if not words or any(as_text(word.text, place, column) is None for word in words):
            missing.append(number)
        elif as_conll:
            _check_separators(words, place)
    if missing:
        raise InputError(
            f"{location(table.origin, table.unit, missing)}: no words, or an empty one, in column"
            f" {column!r}. Remove the rows."
        )


def _check_separators(words: Sequence[Word], place: str) -> None:
    """Raise InputError for a word that would be several cells or lines of a CoNLL file."""
    for word in words:
        if any(character in word.text for character in conll.SEPARATORS):
            raise InputError(
                f"{place}: the word {quoted(word.text)} has a tab or a line break, which separate"
                " cells and words in a CoNLL file. Remove it from the word, or name a .jsonl or"
                " .parquet file for --output_file."
            )


def _find_labels(
    table: Table, column: str, record: RunRecord, requested: str | None
) -> TokenColumns | None:
    """Return the columns of words and labels; None if the rows have no labels."""
    if requested is not None:
        require((requested,), table.columns, LABEL_FLAG, origin=table.origin)
    are_spans = tuple(record.data.input_columns) == (TEXT,) and column not in WORD_COLUMNS
    named = requested or record.arguments.get("label_column_name")
    usual = SPAN_COLUMNS if are_spans else TAG_COLUMNS
    names = [name for name in (named, *usual) if name in table.columns]
    return TokenColumns(column, str(names[0]), are_spans) if names else None


def _is_conll(output_file: str | None) -> bool:
    return output_file is not None and Path(output_file).suffix.lower() in conll.SUFFIXES


@contextmanager
def _output(output_file: str | None, table: Table, predictor: Predictor) -> Iterator[Write]:
    """Yield a function that writes rows: as CoNLL, or as a table with new columns."""
    empty = WordPredictions([], [], [], [], {}, is_bio(predictor.problem.label_names))
    added = list(empty.columns())
    if output_file is None or not _is_conll(output_file):
        names = new_names(added, table.columns)
        types = {
            new: ENTITIES_TYPE for new, name in zip(names, added, strict=True) if name == ENTITIES
        }
        with opened_output(output_file, table.columns, names, types=types) as write:
            yield write
        return
    first = len(table.columns)
    with special_or_atomic_path(Path(output_file)) as path, path.open("w", encoding="utf-8") as out:

        def write_conll(rows: Sequence[Sequence[Any]]) -> None:
            for row in rows:
                for word, tag in zip(row[first], row[first + 1], strict=True):
                    out.write(f"{word}\t{tag}\n")
                out.write("\n")

        yield write_conll


@dataclass
class WordScores:
    """Collects the labels of sentences, and the predictions of those that the model knows."""

    columns: TokenColumns
    table: Table
    problem: Any
    truth: list[list[str]] = field(default_factory=list)
    parts: list[npt.NDArray[Any]] = field(default_factory=list)
    unreadable: str | None = None

    def add(
        self,
        rows: Sequence[Row],
        names: Sequence[str],
        decoded: Mapping[str, npt.NDArray[Any]],
    ) -> None:
        """Add rows of the table with their predictions."""
        if self.unreadable is not None:
            return
        source = TokenSource(
            self.table.origin,
            self.table.unit,
            iter(()),
            declared_in_file(Path(self.table.origin), self.columns.tags),
        )
        places = [names.index(name) for name in (self.columns.words, self.columns.tags)]
        try:
            for number, row in rows:
                where = f"{source.origin}, {source.unit} {number}"
                words, tags = (row[place] for place in places)
                _, found, _ = read_cells(words, tags, self.columns, source, where)
                self.truth.append(found)
        except InputError as error:
            self.unreadable = str(error)
        self.parts.append(decoded["probabilities"])

    def text(self) -> str:
        """Return the report, or why there is none."""
        if self.unreadable is not None:
            return f"not scored: {self.unreadable}"
        try:
            scheme = find_scheme(self.truth)
            truth = [as_bio(tags, scheme) for tags in self.truth]
        except TagError as error:
            return f"not scored: column {self.columns.tags!r}: {error}"
        index = {name: code for code, name in enumerate(self.problem.label_names)}
        known = [row for row, tags in enumerate(truth) if index.keys() >= set(tags)]
        if not known:
            return (
                f"not scored: no row has only labels of the model in column {self.columns.tags!r}"
            )
        counts = np.array([len(truth[row]) for row in known], dtype=np.int64)
        codes = [index[tag] for row in known for tag in truth[row]]
        targets = UnitLabels(np.array(codes, dtype=np.int64), counts)
        decoded = {"probabilities": np.concatenate(self.parts)[known]}
        report = self.problem.outcome("file", targets, decoded).report()
        unknown = len(truth) - len(known)
        note = f"; {unknown} rows with tags that the model does not know are left out"
        heading = f"labels from column {self.columns.tags!r}{note if unknown else ''}"
        return f"{heading}\n{report_with_heading(report, selected=False)}"
