"""Words with labels: a tokenizer and a model that labels tokens; sentences to predict.

The first token of a word has its label, and the others are ignored, as in `run_ner.py` of
transformers. Long sentences are split into windows that share tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from torch import Tensor
from transformers import DataCollatorWithPadding

from ampft.data.columns import INPUT_FLAGS, LABEL_FLAG, require_columns
from ampft.data.dataset import RAW_TEXT_COLUMN, ClassificationData, row_labels
from ampft.data.sources.readers import open_table
from ampft.data.sources.source_table import SourceTable, as_text, refuse_surrogates
from ampft.data.sources.text_lists import list_or_cell
from ampft.decision import ENTITIES, Rule, Sentence, Tokenization
from ampft.errors import InputError, quoted
from ampft.kinds.input_settings import InputSettings
from ampft.kinds.prediction import InputRows, PredictedRows, PredictRequest, RowOutput, TrainingInfo
from ampft.kinds.rows import STANDARD_INPUT, lines_as_table, texts_as_table
from ampft.kinds.text import (
    TextExamples,
    TextInputs,
    pad_and_collate,
    window_notes,
    windowed_examples,
)
from ampft.kinds.token_tables import refused_tokens
from ampft.kinds.windows import EXAMPLE, row_columns, window_overlap
from ampft.models.minilm import default_model
from ampft.models.pretrained import SAVED_MODEL_FLAG, load_config
from ampft.models.tokenizer import (
    load_tokenizer,
    max_input_length,
    saved_tokenization,
    set_padding_side,
    tokenization_of,
)
from ampft.text.numbers import counted
from ampft.text.units import BLANKS, TextUnits, Word
from ampft.words.conll import CONLL_SEPARATORS, CONLL_SUFFIXES, read_as_conll
from ampft.words.reading import TagReader
from ampft.words.tokenizer_units import reading_units_of_texts
from ampft.words.word_columns import (
    TAG_COLUMNS,
    TEXT,
    TEXT_COLUMNS,
    WORD_COLUMNS,
    span_columns,
    token_columns,
)
from ampft.words.word_rows import with_row_per_sentence

MOST_CHECKED = 200  # training texts by which a tokenizer is checked
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


def sentence_output(request: PredictRequest, config: Any) -> RowOutput:
    """Return what predictions add to sentences: words, tags, confidence and entities; CoNLL too."""
    del config
    formats = dict.fromkeys(CONLL_SUFFIXES, _conll_text)
    columns = partial(_columns, decimals=request.decimals)
    return RowOutput(columns, {ENTITIES: ENTITIES_TYPE}, formats)


def _columns(
    rows: Sequence[tuple[Any, ...]], predictions: PredictedRows, *, decimals: int | None
) -> dict[str, list[Any]]:
    """Return the columns of sentences; entities only if tags form them.

    Args:
        rows: A `Sentence` each.
        predictions: Their predictions, with probabilities (words, K) of each.
        decimals: Decimal places of the confidences; None does not round.
    """
    sentences: list[Sentence] = [sentence for (sentence,) in rows]
    rule = Rule(predictions.label_names)
    return rule.word_columns(sentences, list(predictions.decoded["probabilities"]), decimals)


def _conll_text(cells: Sequence[Any]) -> str:
    """Return a sentence as lines of word and tag, from the new columns of its row."""
    words, tags, *_ = cells
    if words is None:  # without an answer
        return "\n"
    lines = [f"{word}\t{tag}\n" for word, tag in zip(words, tags, strict=True)]
    return "".join(lines) + "\n"


def open_rows(request: PredictRequest, trained: TrainingInfo) -> InputRows:
    """Return rows of sentences: texts, lines of standard input, or a table of words or texts."""
    # In such a file, a blank line ends a sentence.
    as_conll = Path(request.output_file or "").suffix.lower() in CONLL_SUFFIXES
    keeps_blank = list(request.files) == [STANDARD_INPUT] and not as_conll
    table, column = _table(request, trained, keeps_blank=keeps_blank)
    labels = _labels(table, column, request, trained)
    tags = () if labels is None or labels.tokens.are_spans else (labels.title,)

    def convert(cells: Sequence[Any], place: str) -> tuple[Any, ...] | None:
        try:
            found = _sentence_with_tags(*cells) if tags else None
            found = found or sentence_of(cells[0], trained)
        except InputError as error:
            raise InputError(f"{place}: {error}") from None
        words = found.words
        if not words or any(as_text(word.text, place, column) is None for word in words):
            return None
        if as_conll:
            _check_separators(words, place)
        return (found,)

    missing = f"no words, or an empty one, in column {column!r}"
    return InputRows(table, (column, *tags), convert, missing, labels, keeps_blank=keeps_blank)


def rows_in_memory(inputs: Any, trained: TrainingInfo) -> list[tuple[Sentence]]:
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


def sentence_of(cell: Any, trained: TrainingInfo) -> Sentence:
    """Return the words of a cell, a list of words or a text, which is split as in training.

    Raises:
        InputError: The cell is neither.
    """
    units = trained.text_units or TextUnits()
    if trained.input_columns != (TEXT,):
        cell = list_or_cell(cell)
    if isinstance(cell, list | tuple):
        nested = next((word for word in cell if isinstance(word, list | tuple | Mapping)), None)
        if nested is not None:
            raise InputError(f"received {quoted(nested)} as a word; a word must be a text.")
        is_missing = [word is None or word != word for word in cell]  # NaN differs from itself
        texts = ["" if gone else str(w) for w, gone in zip(cell, is_missing, strict=True)]
        text, words = units.joined(texts)
        return Sentence(text, tuple(words))
    text = "" if cell is None else cell
    if not isinstance(text, str):
        raise InputError(f"received {quoted(cell)}; a row must be a text or a list of words.")
    try:
        return Sentence(text, tuple(units.split(text)))
    except ValueError as error:
        raise InputError(f"{error}.") from None


def _sentence_with_tags(cell: Any, tags: Any) -> Sentence | None:
    """Return the words of a text with a blank between them, as training reads a text with tags.

    Returns:
        The sentence; None if the cell is a list, or if its words and the tags differ in number.
    """
    cell, tags = list_or_cell(cell), list_or_cell(tags)
    tags = tags.split() if isinstance(tags, str) else tags
    if not (isinstance(cell, str) and isinstance(tags, list | tuple)):
        return None
    words = TextUnits(BLANKS).split(cell)
    return Sentence(cell, tuple(words)) if words and len(words) == len(tags) else None


def _table(
    request: PredictRequest, trained: TrainingInfo, *, keeps_blank: bool
) -> tuple[SourceTable, str]:
    """Return the rows to predict, and the column of their words or texts."""
    if request.texts:
        return texts_as_table(request.texts, (TEXT,)), TEXT
    if len(request.files) > 1:
        raise InputError(f"{request.flag}: received {len(request.files)} files; give one.")
    (file,) = request.files
    if file == STANDARD_INPUT:
        return lines_as_table((TEXT,), keeps_blank=keeps_blank), TEXT
    table = open_table(
        Path(file),
        flag=request.flag,
        encoding=request.encoding,
        sheet=request.sheet_name,
        other_reader=read_as_conll,
    )
    of_tags = request.label_column_name or trained.arguments.get("label_column_name")
    table = with_row_per_sentence(table, (of_tags,) if of_tags else ())
    named = request.text_column_names
    of_training = trained.arguments.get("text_column_names")
    kinds = [WORD_COLUMNS, TEXT_COLUMNS]
    if trained.input_columns == (TEXT,):  # as in training: rows of Prodigy have both
        kinds.reverse()
    usual = (*((of_training,) if of_training else ()), *kinds[0], *kinds[1])
    column = named or next((name for name in usual if name in table.columns), TEXT)
    require_columns((column,), table.columns, INPUT_FLAGS["token"], origin=table.origin)
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
    table: SourceTable, column: str, request: PredictRequest, trained: TrainingInfo
) -> TagReader | None:
    """Return where the tags of words are; None if the rows have none."""
    requested = request.label_column_name
    if requested is not None:
        require_columns((requested,), table.columns, LABEL_FLAG, origin=table.origin)
    are_spans = trained.input_columns == (TEXT,) and column not in WORD_COLUMNS
    named = requested or trained.arguments.get("label_column_name")
    usual = span_columns(table) if are_spans else TAG_COLUMNS
    names = [name for name in (named, *usual) if name in table.columns]
    if not names:
        return None
    tags = str(names[0])
    units = trained.text_units or TextUnits()
    columns = token_columns(column, tags, are_spans=are_spans, units=units)
    return TagReader(columns, table.classes.get(tags))


@dataclass(frozen=True)
class WordReader:
    """A tokenizer of words, and the windows of long sentences."""

    collator: DataCollatorWithPadding  # Pads the tokens of windows to one length.
    tokenization: Tokenization  # How words become the tokens of windows.

    @classmethod
    def of(
        cls, collator: DataCollatorWithPadding, config: Any, max_length: int, stride: int | None
    ) -> WordReader:
        """Return the conversion of words.

        Args:
            collator: Pads windows; it has the tokenizer.
            max_length: Largest number of tokens of a window that is asked for.
            stride: Number of tokens that neighbouring windows share; None for a quarter.
        """
        length = max_input_length(max_length, collator.tokenizer, config)
        shared = window_overlap(stride, length, collator.tokenizer)
        return cls(collator, tokenization_of(collator.tokenizer, length, stride=shared, words=True))

    def encode(self, sentences: Sequence[Sequence[str]]) -> tuple[dict[str, list[Any]], int]:
        """Return the tokens of the windows of sentences, and how many words have no token.

        Raises:
            InputError: A word has no token, and the tokenizer has no unknown token.
        """
        tokenizer: Any = self.collator.tokenizer
        try:
            tokens = self.tokenization.encode(tokenizer.backend_tokenizer, sentences)
        except ValueError as error:
            raise InputError(
                f"--model_name_or_path: its tokenizer has {error}. Remove the word, or use another "
                "model."
            ) from None
        return row_columns(tokens), tokens.replaced

    def length(self, row: tuple[Any, ...]) -> int:
        """Return the number of characters."""
        return sum(len(word.text) for word in row[0].words)

    def collate(self, columns: Sequence[Sequence[Any]]) -> Mapping[str, Tensor]:
        """Return the tokens of windows, and where their words are, see `text.pad_and_collate`.

        Args:
            columns: A column of `Sentence`.
        """
        sentences: Sequence[Sentence] = columns[0]
        words = [[word.text for word in each.words] for each in sentences]
        encoded, _ = self.encode(words)
        del encoded[EXAMPLE]
        counts = np.array([len(each) for each in words], dtype=np.int64)
        return pad_and_collate(self.collator, encoded, words=counts)

    def refused(self, columns: Any, model: Any, error: Exception) -> InputError:
        """Return the message that a model cannot take these sentences."""
        return refused_tokens(model, self.collator.tokenizer, lambda: self.collate(columns), error)


def prepare_inputs(data: ClassificationData, settings: InputSettings) -> TextInputs:
    """Tokenize the words of `data` for the model that `settings` names.

    Raises:
        InputError: The tokenizer or the configuration cannot be loaded or does not fit.
    """
    path, name = default_model(settings.model_path)
    config = load_config(path, trust_remote_code=settings.trust_remote_code)
    tokenizer = load_tokenizer(
        settings.processor_path or path,
        flag=settings.processor_flag,
        trust_remote_code=settings.trust_remote_code,
        reads_words=True,
    )
    set_padding_side(tokenizer, config)
    train, units = data.splits["train"], data.text_units
    if units is not None and RAW_TEXT_COLUMN in train.column_names and tokenizer.is_fast:
        sample = train.select(range(min(len(train), MOST_CHECKED)))[RAW_TEXT_COLUMN]
        tokenizer = reading_units_of_texts(tokenizer, units, sample) or tokenizer
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=settings.pad_to_multiple_of)
    reader = WordReader.of(collator, config, settings.max_seq_length, settings.stride)
    (column,) = data.input_columns
    read = reader.tokenization
    tokens, notes = {}, list[str]()
    for split, rows in data.splits.items():
        tokens[split], unknown = _tokenize(split, rows, column, reader)
        notes += window_notes(
            split, tokens[split], read.max_length, read.stride or 0, noun="sentences"
        )
        if unknown:
            notes.append(f"{split}: {counted(unknown, 'word')} without a token read as unknown")
    return TextInputs(data, tuple(notes), path, name, tokenizer, tokens, read)


def saved_reader(folder: Path, arguments: Mapping[str, Any], config: Any) -> WordReader:
    """Return the conversion of words for a saved model, see `inputs.KindModule`."""
    tokenizer = load_tokenizer(str(folder), flag=SAVED_MODEL_FLAG, reads_words=True)
    set_padding_side(tokenizer, config)
    collator = DataCollatorWithPadding(tokenizer)
    stored = saved_tokenization(tokenizer, folder)
    if stored is not None:
        return WordReader(collator, stored)
    length, stride = int(arguments["max_seq_length"]), arguments.get("stride")
    return WordReader.of(collator, config, length, stride)


def _tokenize(
    name: str, split: datasets.Dataset, column: str, reader: WordReader
) -> tuple[TextExamples, int]:
    """Return the windows of a split, and how many words have no token."""
    unknown = 0

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        nonlocal unknown
        columns, replaced = reader.encode(batch[column])
        unknown += replaced
        return columns

    words = row_labels(split).counts
    return windowed_examples(split, encode, reader.collator, name, words=words), unknown
