"""Windows of long texts: how they are cut, and how their logits are combined per text or word.

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

from ampft.errors import InputError
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
    if not tokenizer.is_fast:
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


def encode_texts(
    tokenizer: Any, texts: Sequence[str], *, max_length: int, stride: int
) -> dict[str, list[Any]]:
    """Return the tokens of the windows of texts, with the index of its text as `example`."""
    encoded = tokenizer(
        list(texts),
        truncation=True,
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
    )
    columns = dict(encoded)
    columns[EXAMPLE] = columns.pop("overflow_to_sample_mapping")
    return columns


def encode_words(
    tokenizer: Any, sentences: Sequence[Sequence[str]], *, max_length: int, stride: int
) -> tuple[dict[str, list[Any]], int]:
    """Return the tokens of the windows of sentences, and how many words have no token.

    The column `positions` has the position of the first token of each word that the window
    predicts: those for which it has the most context. A word without a token, such as a lone
    control character, is read as the unknown token.

    Args:
        tokenizer: Fast tokenizer.
        sentences: Words of each sentence.
        max_length: Number of tokens of a window, with special tokens.
        stride: Number of tokens that neighbouring windows share.

    Raises:
        InputError: A word has no token, and the tokenizer has no unknown token.
    """
    words = [list(sentence) for sentence in sentences]
    replaced = 0
    while True:
        encoded = tokenizer(
            words,
            is_split_into_words=True,
            truncation=True,
            max_length=max_length,
            stride=stride,
            return_overflowing_tokens=True,
        )
        owners = np.array(encoded["overflow_to_sample_mapping"])
        word_ids = [
            np.array([-1 if i is None else i for i in encoded.word_ids(row)], dtype=np.int64)
            for row in range(len(owners))
        ]
        missing = _without_tokens(words, word_ids, owners)
        if not missing:
            break
        if tokenizer.unk_token is None or replaced:
            sentence, word = missing[0]
            raise InputError(
                f"--model_name_or_path: its tokenizer has no token for the word"
                f" {sentences[sentence][word]!r}. Remove the word, or use another model."
            )
        for sentence, word in missing:
            words[sentence][word] = tokenizer.unk_token
        replaced = len(missing)
    columns = dict(encoded)
    columns[EXAMPLE] = columns.pop("overflow_to_sample_mapping")
    positions: list[list[int]] = []
    for rows in np.split(np.arange(len(owners)), np.flatnonzero(np.diff(owners)) + 1):
        positions += word_positions([word_ids[row] for row in rows], stride)
    columns[POSITIONS] = positions
    return columns, replaced


def add_example_indices(
    columns: dict[str, list[Any]], indices: Sequence[int]
) -> dict[str, list[Any]]:
    """Return a batch of windows with their lengths and the indices of their examples."""
    examples = [indices[local] for local in columns[EXAMPLE]]
    return {**columns, EXAMPLE: examples, LENGTH: [len(ids) for ids in columns["input_ids"]]}


def _without_tokens(
    words: Sequence[Sequence[str]], word_ids: Sequence[IntArray], owners: IntArray
) -> list[tuple[int, int]]:
    """Return the sentence and index of each word that has no token."""
    seen = [np.zeros(len(sentence) + 1, dtype=bool) for sentence in words]
    for ids, owner in zip(word_ids, owners, strict=True):
        seen[owner][ids] = True  # special tokens have -1, the last entry
    return [
        (sentence, int(word))
        for sentence, has in enumerate(seen)
        for word in np.flatnonzero(~has[:-1])
    ]


def word_positions(windows: Sequence[IntArray], stride: int) -> list[list[int]]:
    """Return for each window of a sentence the positions of the words that it predicts.

    A word is predicted at its first token, in the window with the most tokens on the side where it
    has fewer; the ends of the sentence count as unlimited context. Of equal windows, it is the
    first.

    Args:
        windows: Word of each token of each window, -1 for special tokens.
        stride: Number of tokens that neighbouring windows share.
    """
    contents = [ids[ids >= 0] for ids in windows]
    prefixes = [int(np.argmax(ids >= 0)) for ids in windows]
    starts = np.arange(len(windows)) * (len(contents[0]) - stride)
    ends = starts + [len(content) for content in contents]
    words = np.full(int(ends[-1]), -1)
    for start, content in zip(starts, contents, strict=True):
        words[start : start + len(content)] = content
    firsts = np.flatnonzero(np.diff(words, prepend=-1))
    left = np.where(starts > 0, firsts[:, None] - starts, np.inf)
    right = np.where(ends < ends[-1], ends - 1 - firsts[:, None], np.inf)
    context = np.minimum(left, right)
    context[(firsts[:, None] < starts) | (firsts[:, None] >= ends)] = -1
    chosen = context.argmax(axis=1)
    return [
        (firsts[chosen == window] - starts[window] + prefixes[window]).tolist()
        for window in range(len(windows))
    ]


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
