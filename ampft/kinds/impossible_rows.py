"""Rows that a model cannot take at all, which are found and named before the first step.

Some models need a least length (CANINE, Funnel). Others end at their longest position. Later, such
a row would end a validation, or the evaluation of a finished training.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from ampft.data.step_batches import IntArray
from ampft.errors import InputError
from ampft.kinds.logits import model_inputs
from ampft.kinds.token_tables import refused_tokens, rows_text
from ampft.models.training_mode import evaluation_mode

# By the sign of the order of lengths: from the shortest, and from the longest.
REMEDIES = {1: "Remove or lengthen these rows.", -1: "Remove or shorten these rows."}


def refuse_impossible_rows(
    model: Any, tokenizer: Any, tokens: Mapping[str, Any], data: Any, settings: Any
) -> None:
    """Check that a model takes the shortest and the longest row of each split alone.

    Where it does not, the rows of the next lengths are tried, until it takes one. A model that
    takes none is not the fault of a row, and is not refused here.

    Args:
        tokens: Tokenized examples by split.
        data: The data, whose rows are named.
        settings: Settings of the run, which have the files.

    Raises:
        InputError: It cannot take some rows; the message names them.
    """
    least, most = np.inf, -np.inf
    for split, examples in tokens.items():
        for sign, remedy in REMEDIES.items():
            order = np.argsort(sign * examples.lengths, kind="stable")
            length = examples.lengths[order[0]]
            if least <= length <= most:  # tried in an earlier split
                continue
            least, most = min(least, length), max(most, length)
            error = _error(model, examples, order[:1])
            rows = order[:0] if error is None else _refused(model, examples, order)
            if error is not None and len(rows):
                collate = partial(examples.collate, rows[:1])
                said = refused_tokens(model, tokenizer, collate, error)
                where = rows_text(data, split, np.sort(rows), settings)
                raise InputError(f"{where}: {said} {remedy}")


def _refused(model: Any, examples: Any, order: IntArray) -> IntArray:
    """Return the rows of the first lengths at which a model fails; none if it always does."""
    lengths = examples.lengths[order]
    firsts = np.flatnonzero(np.diff(lengths, prepend=lengths[0] - 1))
    for first in firsts[1:]:
        if _error(model, examples, order[first : first + 1]) is None:
            return order[:first]
    return order[:0]


def _error(model: Any, examples: Any, rows: IntArray) -> Exception | None:
    """Return what a model raises for one row; None if it takes the row."""
    inputs = model_inputs(examples.collate(rows))
    random = torch.get_rng_state()
    try:
        with evaluation_mode(model):
            model(**inputs)
    except (RuntimeError, ValueError, AssertionError, IndexError, ZeroDivisionError) as error:
        return error
    finally:
        torch.set_rng_state(random)
    return None
