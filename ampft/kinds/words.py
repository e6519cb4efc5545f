"""Words with labels: a tokenizer, and a model that labels tokens.

The first token of a word has its label, and the others are ignored, as in `run_ner.py` of
transformers. Long sentences are split into windows that share tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from torch import Tensor
from transformers import DataCollatorWithPadding

from ampft.data.dataset import ClassificationData, row_labels
from ampft.kinds.sentences import Sentence
from ampft.kinds.settings import InputSettings
from ampft.kinds.text import (
    TextExamples,
    TextInputs,
    collated,
    window_notes,
    windowed_examples,
)
from ampft.kinds.windows import EXAMPLE, encode_words, window_overlap
from ampft.models.minilm import default_model
from ampft.models.pretrained import SAVED_MODEL_FLAG, load_config
from ampft.models.tokenizer import adapt_to_model, load_tokenizer, max_input_length
from ampft.text.numbers import counted


@dataclass(frozen=True)
class WordReader:
    """A tokenizer of words, and the windows of long sentences.

    Attributes:
        collator: Pads the tokens of windows to one length.
        max_length: Number of tokens of a window, with special tokens.
        stride: Number of tokens that neighbouring windows share.
    """

    collator: DataCollatorWithPadding
    max_length: int
    stride: int

    @classmethod
    def of(
        cls, collator: DataCollatorWithPadding, config: Any, max_length: int, stride: int | None
    ) -> WordReader:
        """Return the conversion of words.

        Args:
            collator: Pads windows; it has the tokenizer.
            config: Configuration of the model.
            max_length: Largest number of tokens of a window that is asked for.
            stride: Number of tokens that neighbouring windows share; None for a quarter.
        """
        length = max_input_length(max_length, collator.tokenizer, config)
        return cls(collator, length, window_overlap(stride, length, collator.tokenizer))

    def encode(self, sentences: Sequence[Sequence[str]]) -> tuple[dict[str, list[Any]], int]:
        """Return the tokens of the windows of sentences, and how many words have no token."""
        return encode_words(
            self.collator.tokenizer, sentences, max_length=self.max_length, stride=self.stride
        )

    def length(self, row: tuple[Any, ...]) -> int:
        """Return the number of characters."""
        return sum(len(word.text) for word in row[0].words)

    def collate(self, columns: Sequence[Sequence[Any]]) -> Mapping[str, Tensor]:
        """Return the tokens of windows, and where their words are, see `text.collated`.

        Args:
            columns: A column of `Sentence`.
        """
        sentences: Sequence[Sentence] = columns[0]
        words = [[word.text for word in each.words] for each in sentences]
        encoded, _ = self.encode(words)
        del encoded[EXAMPLE]
        counts = np.array([len(each) for each in words], dtype=np.int64)
        return collated(self.collator, encoded, words=counts)

    def refused(self, columns: Any, model: str, error: Exception) -> None:
        """Return None: every sentence can be tokenized."""


def prepare_inputs(data: ClassificationData, settings: InputSettings) -> TextInputs:
    """Tokenize the words of `data` for the model that `settings` names.

    Raises:
        InputError: The tokenizer or the configuration cannot be loaded or does not fit.
    """
    path, name = default_model(settings.model_name_or_path)
    config = load_config(path, trust_remote_code=settings.trust_remote_code)
    tokenizer = load_tokenizer(path, trust_remote_code=settings.trust_remote_code, reads_words=True)
    adapt_to_model(tokenizer, config)
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=settings.pad_to_multiple_of)
    reader = WordReader.of(collator, config, settings.max_seq_length, settings.stride)
    (column,) = data.input_columns
    tokens, notes = {}, list[str]()
    for split, rows in data.splits.items():
        tokens[split], unknown = _tokenize(split, rows, column, reader)
        notes += window_notes(
            split, tokens[split], reader.max_length, reader.stride, noun="sentences"
        )
        if unknown:
            notes.append(f"{split}: {counted(unknown, 'word')} without a token read as unknown")
    return TextInputs(data, tuple(notes), path, name, tokenizer, tokens, reader.max_length)


def saved_reader(folder: Path, arguments: Mapping[str, Any], config: Any) -> WordReader:
    """Return the conversion of words for a saved model, see `inputs.KindModule`."""
    tokenizer = load_tokenizer(str(folder), flag=SAVED_MODEL_FLAG, reads_words=True)
    adapt_to_model(tokenizer, config)
    collator = DataCollatorWithPadding(tokenizer)
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
