"""Weights of the classes in the loss."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ampft.errors import InputError


def parse_class_weights(
    requested: str | None, counts: npt.NDArray[np.integer]
) -> npt.NDArray[np.float32] | None:
    """Return the (K,) float32 class weights that `--class_weights` requests.

    Args:
        requested: None, "balanced", or K positive numbers separated by commas.
        counts: (K,) training examples per class.

    Raises:
        InputError: The number of weights is not K, or a weight is not positive.
    """
    if requested is None:
        return None
    if requested == "balanced":
        return balanced_class_weights(counts)
    try:
        weights = [float(part) for part in requested.split(",")]
    except ValueError:
        weights = []
    if len(weights) != len(counts) or not all(0 < weight < np.inf for weight in weights):
        raise InputError(
            f"--class_weights: received {requested!r}; use 'balanced' or {len(counts)} "
            "positive numbers separated by commas, in the order of the labels."
        )
    return np.array(weights, dtype=np.float32)


def balanced_class_weights(counts: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
    """Return n / (K * counts), the weights that scikit-learn calls "balanced".

    A class without training examples is not counted in K and has the weight 1, which changes
    nothing in training: such as the tag I-X of an entity that is always one word long.

    Args:
        counts: (K,) examples per class in the training split.

    Returns:
        (K,) float32 weights whose mean over the training examples is 1.
    """
    weights = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
    return np.where(counts, weights, 1).astype(np.float32)
