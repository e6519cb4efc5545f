"""Texts that a tokenizer was not made for: unknown, or split into characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.text.scripts import is_unspaced

MOST_ROWS = 5_000  # that are examined
LEAST_SHARE = 0.1  # of the texts
UNKNOWN_SHARE = 0.5  # of the tokens of a text
# Tokens per character. English has about 0.25; Russian has 0.95 with a vocabulary for English. One
# token per character is usual in Chinese; single bytes are up to three.
PIECES, PIECES_UNSPACED = 0.8, 1.2
LEAST_VOCABULARY = 1000  # Smaller ones are for characters or bytes on purpose.
_ADVICE = (
    "Take a model that was trained in their language, or in many languages, such as "
    "intfloat/multilingual-e5-small"
)


def unfit_token_notes(
    columns: Sequence[Sequence[str]],
    tokens: Sequence[Sequence[int]],
    whole: npt.NDArray[np.int64],
    tokenizer: Any,
) -> list[str]:
    """Return a note if a tokenizer leaves little of many texts.

    Args:
        columns: Training texts, one sequence per input column.
        tokens: Tokens of each row, truncated.
        whole: (n,) number of tokens of each row before truncation.
        tokenizer: Tokenizer of the model.
    """
    texts = [" ".join(cells) for cells in islice(zip(*columns, strict=True), MOST_ROWS)]
    least = LEAST_SHARE * len(texts)
    unknown = _mostly_unknown(tokens[: len(texts)], tokenizer)
    if unknown and unknown >= least:
        return [
            f"More than half of the tokens are unknown ({tokenizer.unk_token}) in {unknown} of "
            f"{len(texts)} training texts: the model does not read them. {_ADVICE}"
        ]
    if len(tokenizer) < LEAST_VOCABULARY:
        return []
    added = tokenizer.num_special_tokens_to_add(pair=len(columns) > 1)
    in_pieces = sum(
        is_in_pieces(text, count - added)
        for text, count in zip(texts, whole[: len(texts)].tolist(), strict=True)
    )
    if in_pieces and in_pieces >= least:
        return [
            f"The tokenizer splits {in_pieces} of {len(texts)} training texts into single "
            f"characters or bytes: it was made for another language. {_ADVICE}"
        ]
    return []


def is_in_pieces(text: str, tokens: int) -> bool:
    """Return whether a text has about as many tokens as characters or bytes."""
    limit = PIECES_UNSPACED if is_unspaced(text) else PIECES
    return tokens > limit * len("".join(text.split()))


def _mostly_unknown(tokens: Sequence[Sequence[int]], tokenizer: Any) -> int:
    """Return how many rows consist mostly of the unknown token."""
    unknown = tokenizer.unk_token_id
    special = set(tokenizer.all_special_ids) - {unknown}
    shared = {tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.pad_token_id}
    if unknown is None or unknown in shared:  # as in GPT-2, which has no unknown characters
        return 0
    found = 0
    for row in tokens:
        content = [token for token in row if token not in special]
        found += content.count(unknown) > UNKNOWN_SHARE * len(content)
    return found
