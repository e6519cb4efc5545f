"""Compares the tokens of texts with the tables and the head of a model.

A tokenizer and a model that do not belong together otherwise end in an index out of range, on a GPU
far from its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from torch import Tensor, nn

from ampft.data.dataset import ROWS_AT_A_TIME
from ampft.data.sources.source_table import location
from ampft.data.splits import FILE_COLUMN, NUMBER_COLUMNS
from ampft.data.step_batches import IntArray
from ampft.errors import InputError
from ampft.models.by_length import end_token_of_head, why_not_in_parts

IDS, TYPES = "input_ids", "token_type_ids"
WORKS_WITH = "Use the tokenizer of the model"


def embedding_size(model: Any) -> int | None:
    """Return how many tokens the model has embeddings for; None if it has no such table."""
    try:
        table = model.get_input_embeddings()
    except (NotImplementedError, AttributeError):  # of models that read characters
        return None
    return table.num_embeddings if isinstance(table, nn.Embedding) else None


def unknown_token(model: Any, tokenizer: Any, largest: int) -> str | None:
    """Return that the table of embeddings lacks a token; None if it has it.

    Args:
        largest: Largest number of a token.
    """
    size = embedding_size(model)
    if size is None or largest < size:
        return None
    return (
        f"the tokenizer gives the token {tokenizer.convert_ids_to_tokens(largest)!r} the number "
        f"{largest}, but the model has only {size} tokens"
    )


def token_problem(model: Any, tokenizer: Any, inputs: Mapping[str, Tensor]) -> str | None:
    """Return why a model cannot take the tokens of a batch; None if the tables do not say."""
    ids = inputs[IDS]
    found = unknown_token(model, tokenizer, int(ids.max()))
    if found is not None:
        return found
    token = end_token_of_head(model)
    if token is not None and not (ids == token).any(dim=1).all():
        return _lacks_end(tokenizer, token)
    return None


def _lacks_end(tokenizer: Any, token: int) -> str:
    return (
        f"the model reads its answer at the end token {token} "
        f"({tokenizer.convert_ids_to_tokens(token)!r}), which the tokens do not contain"
    )


def refused_tokens(
    model: Any, tokenizer: Any, collate: Callable[[], Mapping[str, Tensor]], error: Exception
) -> InputError:
    """Return the message that a model cannot take the tokens of rows.

    Args:
        collate: Function that returns the tokens.
        error: What the model raised.
    """
    plain = getattr(model, "module", model)
    problem = token_problem(plain, tokenizer, collate())
    if problem is None:
        reason = " ".join(str(error).split()).rstrip(".")
        problem = f"{type(plain).__name__} cannot take it ({type(error).__name__}: {reason})"
    return InputError(f"{problem}.")


def check_end_tokens(
    model: Any, tokenizer: Any, tokens: Mapping[str, Any], data: Any, settings: Any
) -> None:
    """Check that the head of an encoder-decoder finds its end token in every text.

    Args:
        tokens: Tokenized examples by split.
        data: The data, whose rows are named.
        settings: Settings of the run, which have the files.

    Raises:
        InputError: Some texts have none, or texts with several cannot be taken apart.
    """
    token = end_token_of_head(model)
    if token is None:
        return
    for split, examples in tokens.items():
        counts = _counts(examples.rows, token)
        if examples.windows is not None:
            counts = np.minimum.reduceat(counts, np.cumsum([0, *examples.windows[:-1]]))
        without = np.flatnonzero(counts == 0)
        if len(without):
            raise InputError(
                f"{rows_text(data, split, without, settings)}: {_lacks_end(tokenizer, token)}. "
                f"{WORKS_WITH}, which adds it, or remove the rows."
            )
        reason = why_not_in_parts(model)
        several = np.flatnonzero(counts != counts.min())
        if len(several) and reason is not None:
            raise InputError(
                f"{rows_text(data, split, several, settings)}: the text contains the token "
                f"{tokenizer.convert_ids_to_tokens(token)!r}, at which the model reads its answer, "
                f"so it cannot be in a batch with others, and {reason}. Remove the token from the "
                "texts, or train in one process."
            )


def _counts(rows: Any, token: int) -> IntArray:
    """Return (n,) how often each row has a token."""
    found = []
    arrow = rows.select_columns([IDS]).with_format("arrow")
    for batch in arrow.iter(batch_size=ROWS_AT_A_TIME):
        column = batch[IDS].combine_chunks()
        owners = pc.list_parent_indices(column).to_numpy()
        is_token = np.asarray(pc.equal(pc.list_flatten(column), token).to_numpy(False), np.int64)
        found.append(np.bincount(owners, weights=is_token, minlength=len(column)).astype(np.int64))
    return np.concatenate(found)


def rows_text(data: Any, split: str, rows: Sequence[int] | IntArray, settings: Any) -> str:
    """Return where rows of a split are: "reviews.csv, line 5"; "train, row 5" without a file."""
    part = data.splits[split]
    names = [name for name in (FILE_COLUMN, *NUMBER_COLUMNS) if name in part.column_names]
    cells = part.select_columns(names)[[int(row) for row in rows]] if names else {}
    number = next((name for name in NUMBER_COLUMNS if name in cells), None)
    numbers = [int(row) + 1 for row in rows] if number is None else cells[number]
    unit = "row" if number is None else number.removeprefix("ampft_")
    named = getattr(settings, f"{split}_file", None) or getattr(settings, "train_file", None)
    files = cells.get(FILE_COLUMN) or [str(named or split)] * len(numbers)
    return "; ".join(_by_file(files, numbers, unit))


def _by_file(files: Sequence[str], numbers: Sequence[int], unit: str) -> Iterator[str]:
    for file in dict.fromkeys(files):
        own = [n for name, n in zip(files, numbers, strict=True) if name == file]
        yield location(file, unit, own)
