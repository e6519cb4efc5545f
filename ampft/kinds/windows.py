"""Windows of long texts: overlap, and logits per text or word. `Tokenization` in decision.py cuts.

Neighbouring windows share some tokens, so that each word has context on both sides in one of them.
Nothing is dropped: every token is in a window, and every word is predicted once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ampft.decision import Tokens
from ampft.errors import InputError
from ampft.models.tokenizer import is_plain
from ampft.precision.transfer import to_device

IntArray = npt.NDArray[np.int64]

POSITIONS = "positions"  # column of the positions of the words that a window predicts
EXAMPLE, LENGTH = "example", "length"  # columns of the example and the tokens of a window
WORD_POSITIONS, WORD_COUNTS = "label_positions", "label_counts"
WINDOW_COUNTS = "label_windows"


def window_overlap(stride: int | None, max_length: int, tokenizer: Any) -> int:
    """Return the number of tokens that neighbouring windows share.

    Args:
        stride: Value of `--stride`; None for a quarter of a window.
        max_length: Number of tokens of a window, with special tokens.
        tokenizer: Tokenizer, which adds special tokens.

    Raises:
        InputError: Windows would not advance, or the tokenizer cannot split texts.
    """
    if not is_plain(tokenizer):
        raise InputError(
            "--model_name_or_path: the model has a slow tokenizer, written in Python, which cannot"
            " split texts into windows. Choose a model with a fast tokenizer (tokenizer.json)."
        )
    room = max_length - tokenizer.num_special_tokens_to_add()
    if room < 1:
        raise InputError(
            f"--max_seq_length: received {max_length}, but special tokens take"
            f" {max_length - room}. It must be at least {max_length - room + 1}."
        )
    chosen = max_length // 4 if stride is None else stride
    if stride is None:
        return min(chosen, room - 1)
    if chosen >= room:
        raise InputError(
            f"--stride: received {stride}; windows of {max_length} tokens have room for {room}"
            f" besides special tokens, so it must be at most {room - 1}."
        )
    return chosen


def tokens_in_windows(whole: IntArray, max_length: int, tokenizer: Any) -> IntArray:
    """Return (n,) the tokens of all windows of texts that have `whole` tokens without windows."""
    special = tokenizer.num_special_tokens_to_add()
    shared, room = window_overlap(None, max_length, tokenizer), max_length - special
    later = -((whole - special - room) // -(room - shared))  # windows after the first
    return whole + np.maximum(later, 0) * (shared + special)


def row_columns(tokens: Tokens) -> dict[str, list[Any]]:
    """Return the columns of rows of tokens, with their examples and the positions of words."""
    columns: dict[str, list[Any]] = {**tokens.columns, EXAMPLE: tokens.owners}
    return columns if tokens.positions is None else {**columns, POSITIONS: tokens.positions}


def add_example_indices(
    columns: dict[str, list[Any]], indices: Sequence[int]
) -> dict[str, list[Any]]:
    """Return a batch of windows with their lengths and the indices of their examples."""
    examples = [indices[local] for local in columns[EXAMPLE]]
    return {**columns, EXAMPLE: examples, LENGTH: [len(ids) for ids in columns["input_ids"]]}


def word_selection(
    positions: Sequence[Sequence[int]], words: IntArray, batch: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the positions of the words in the flattened batch, and the words per example.

    Args:
        positions: Positions of the words in each row of the batch.
        words: (m,) number of words of each example.
        batch: Padded inputs of the model.
    """
    width = batch["input_ids"].shape[1]
    rows = np.repeat(np.arange(len(positions)), [len(part) for part in positions])
    columns = np.concatenate([np.asarray(part, dtype=np.int64) for part in positions])
    return {
        WORD_POSITIONS: torch.from_numpy(rows * width + columns),
        WORD_COUNTS: torch.from_numpy(words),
    }


def logits_per_text_or_word(logits: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the logits per text or word from a model's logits.

    Args:
        logits: (R, K) of windows, or (R, T, K) of tokens.
        inputs: Collated batch. With the number of windows of each text, their logits are averaged;
            with the positions of words, the logits there are selected; with neither, the logits
            are returned as they are.
    """
    if WORD_POSITIONS in inputs:
        positions = to_device(inputs[WORD_POSITIONS], logits.device)
        return logits.flatten(0, 1).index_select(0, positions)
    if WINDOW_COUNTS in inputs:
        counts = inputs[WINDOW_COUNTS]
        if len(counts) == len(logits):
            return logits
        counts = to_device(counts, logits.device)
        # Without its check of the lengths, for which the host would wait for a GPU.
        return torch.segment_reduce(logits, "mean", lengths=counts, axis=0, unsafe=True)
    return logits
