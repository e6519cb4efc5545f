"""Words with labels: a tokenizer, and a model that labels tokens.

The first token of a word has its label, and the others are ignored, as in `run_ner.py` of
transformers. Long sentences are split into windows that share tokens.
"""

from __future__ import annotations

from typing import Any

import datasets
from transformers import DataCollatorWithPadding

from ampft.data.dataset import ClassificationData, row_labels
from ampft.kinds.settings import TaskSettings
from ampft.kinds.text import (
    TextExamples,
    TextInputs,
    window_notes,
    window_rows,
    windowed_examples,
)
from ampft.kinds.windows import check_stride, encode_words, with_examples
from ampft.models.minilm import default_model
from ampft.models.pretrained import load_config
from ampft.models.tokenizer import load_tokenizer, max_input_length, pad_on_the_right
from ampft.text.numbers import counted


def prepare_inputs(data: ClassificationData, settings: TaskSettings) -> TextInputs:
    """Tokenize the words of `data` for the model that `settings` names.

    Raises:
        InputError: The tokenizer or the configuration cannot be loaded or does not fit.
    """
    path, name = default_model(settings.model_name_or_path)
    config = load_config(path, trust_remote_code=settings.trust_remote_code)
    tokenizer = load_tokenizer(path, trust_remote_code=settings.trust_remote_code, reads_words=True)
    pad_on_the_right(tokenizer, config)
    max_length = max_input_length(settings.max_seq_length, tokenizer, config)
    stride = check_stride(settings.stride, max_length, tokenizer)
    collator = DataCollatorWithPadding(tokenizer, pad_to_multiple_of=settings.pad_to_multiple_of)
    (column,) = data.input_columns
    tokens, notes = {}, list[str]()
    for split, rows in data.splits.items():
        tokens[split], unknown = _tokenize(
            split, rows, column, collator, max_length=max_length, stride=stride
        )
        notes += window_notes(split, tokens[split], max_length, stride, noun="sentences")
        if unknown:
            notes.append(f"{split}: {counted(unknown, 'word')} without a token read as unknown")
    return TextInputs(data, tuple(notes), path, name, tokenizer, tokens, max_length)


def _tokenize(
    name: str,
    split: datasets.Dataset,
    column: str,
    collator: DataCollatorWithPadding,
    *,
    max_length: int,
    stride: int,
) -> tuple[TextExamples, int]:
    """Return the windows of a split, and how many words have no token."""
    unknown = 0

    def encode(batch: dict[str, list[Any]], indices: list[int]) -> dict[str, list[Any]]:
        nonlocal unknown
        columns, replaced = encode_words(
            collator.tokenizer, batch[column], max_length=max_length, stride=stride
        )
        unknown += replaced
        return with_examples(columns, indices)

    # Not cached, because the words without a token are counted on the way.
    rows = window_rows(split, encode, name, cached=False)
    labels = row_labels(split)
    return windowed_examples(rows, len(split), collator, words=labels.counts), unknown
