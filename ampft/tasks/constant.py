"""The constant model, which gives every example the class frequencies of the training split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

MAX_EXAMPLES = 2048  # whose loss is computed
SMALLEST_SHARE = 1e-6


def constant_probabilities(shares: FloatArray, count: int) -> dict[str, Any]:
    """Return (count, K) float32 probabilities that equal the (K,) shares in each row."""
    return {"probabilities": np.tile(shares.astype(np.float32), (count, 1))}


def log_odds(shares: FloatArray) -> FloatArray:
    """Return the logits of independent labels with these shares."""
    odds: FloatArray = np.log(shares / (1 - shares))
    return odds


def constant_loss(
    problem: Any, shares: FloatArray, logits_of: Callable[[FloatArray], FloatArray], targets: Any
) -> float:
    """Return the loss per unit of weight if every example has the logits of the same shares.

    It is computed on at most `MAX_EXAMPLES` random examples.

    Args:
        problem: Problem that computes the loss.
        shares: (K,) shares of the classes.
        logits_of: Function that returns the logits of shares.
        targets: (n, ...) labels.
    """
    import torch

    if len(targets) > MAX_EXAMPLES:
        targets = targets[
            np.random.default_rng(0).choice(len(targets), MAX_EXAMPLES, replace=False)
        ]
    logits = logits_of(np.clip(shares, SMALLEST_SHARE, 1 - SMALLEST_SHARE))
    rows = torch.from_numpy(logits).float().expand(len(targets), -1)
    loss = problem.loss(rows, torch.from_numpy(targets))
    return float(loss) / float(problem.weights(targets).sum())


def only_choice(
    choices: npt.NDArray[Any], names: Sequence[str], text: Callable[[Any, Sequence[str]], str]
) -> str | None:
    """Return the text of the choice that all examples have; None if they have several."""
    return text(choices[0], names) if len(np.unique(choices, axis=0)) == 1 else None
