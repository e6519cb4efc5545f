"""Texts of random token ids and BERT with random weights, for measurements that need no data.

Speed depends on the lengths and on the size of the model, not on words or weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

SPECIAL_IDS = 4
SPREAD = 0.7  # standard deviation of the logarithm of the lengths
SHORTEST = 4


def lengths_of_texts(number: int, tokens: int, *, longest: int, seed: int = 0) -> IntArray:
    """Return (number,) lengths in tokens, log-normal with a mean near `tokens`.

    Args:
        number: Number of texts.
        tokens: Mean length before long texts are cut.
        longest: Maximum length. If it equals `tokens`, all texts have this length.
        seed: Seed of the lengths.
    """
    if longest == tokens:
        return np.full(number, tokens, np.int64)
    generator = np.random.default_rng(seed)
    drawn = generator.lognormal(math.log(tokens) - SPREAD**2 / 2, SPREAD, number)
    return np.clip(np.rint(drawn), SHORTEST, longest).astype(np.int64)


@dataclass(frozen=True, eq=False)
class RandomTexts(Dataset[dict[str, Any]]):
    """Texts of token ids with labels.

    It is a data set for a `DataLoader` or the Trainer, and also the examples of `StepBatches`.
    """

    # `input_ids`, an array (T,), and `labels`, a number, of each text. They are in memory, so that
    # a step does not wait for them.
    rows: Sequence[dict[str, Any]]

    @property
    def lengths(self) -> IntArray:
        """(n,) tokens of each text."""
        return np.array([len(row["input_ids"]) for row in self.rows])

    @property
    def weights(self) -> FloatArray:
        """(n,) ones: the weight of each text in the loss."""
        return np.ones(len(self.rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        """Return the padded batch of the texts `ids`."""
        return pad([self.rows[index] for index in ids])


def random_texts(lengths: IntArray, vocabulary: int, *, classes: int = 2) -> RandomTexts:
    """Return texts of these lengths, with random ids and labels, the same each time."""
    generator = np.random.default_rng(0)
    return RandomTexts(
        [
            {
                "input_ids": generator.integers(SPECIAL_IDS, vocabulary, length),
                "labels": number % classes,
            }
            for number, length in enumerate(lengths)
        ]
    )


def pad(rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return `input_ids` (B, T), `attention_mask` (B, T) and `labels` (B,), padded on the right."""
    longest = max(len(row["input_ids"]) for row in rows)
    ids = np.zeros((len(rows), longest), np.int64)
    mask = np.zeros_like(ids)
    for position, row in enumerate(rows):
        ids[position, : len(row["input_ids"])] = row["input_ids"]
        mask[position, : len(row["input_ids"])] = 1
    tensors = {"input_ids": ids, "attention_mask": mask}
    labels = torch.tensor([row["labels"] for row in rows])
    return {**{name: torch.from_numpy(array) for name, array in tensors.items()}, "labels": labels}


def bert(layers: int, width: int, *, vocabulary: int) -> Any:
    """Return a BERT of this size with random weights."""
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64 if width > 384 else 12,
        intermediate_size=4 * width,
    )
    return BertForSequenceClassification(config).train()
