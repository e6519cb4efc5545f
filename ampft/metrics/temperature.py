"""Temperature scaling: one number by which logits are divided, fitted by log loss.

Source: Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017,
https://arxiv.org/abs/1706.04599, section 4.2. Everything is computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

LOWEST, HIGHEST = 0.05, 20.0  # a temperature outside is no correction, but a model without errors
FloatArray = npt.NDArray[np.float64]


def softmax(logits: npt.NDArray[Any], temperature: float = 1.0) -> FloatArray:
    """Return the (n, K) probabilities of classes that exclude each other, float64."""
    scaled = logits.astype(np.float64) / temperature
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    shares: FloatArray = powers / powers.sum(axis=1, keepdims=True)
    return shares


def sigmoid(logits: npt.NDArray[Any], temperature: float = 1.0) -> FloatArray:
    """Return the (n, K) probabilities of labels that do not exclude each other, float64."""
    from scipy.special import expit

    shares: FloatArray = expit(logits.astype(np.float64) / temperature)
    return shares


def fit_temperature(
    logits: npt.NDArray[Any], is_label: npt.NDArray[np.bool_], *, several: bool
) -> float | None:
    """Return the temperature with the lowest log loss.

    The log loss is convex in b = 1/T. Its derivative, the mean of z (p - y) over the rows with
    probabilities p at b, is therefore increasing, and its root is the minimum.

    Args:
        logits: (n, K) logits, z.
        is_label: (n, K) whether a row has a label, y.
        several: Whether a row can have any number of labels; otherwise it has one.

    Returns:
        The temperature; None if the minimum is not between `LOWEST` and `HIGHEST`, for example
        because every row is right, so that any lower temperature would be better.
    """
    from scipy.optimize import brentq

    probabilities: Callable[[npt.NDArray[Any], float], FloatArray] = sigmoid if several else softmax
    scores = logits.astype(np.float64)

    def slope(log_temperature: float) -> float:
        shares = probabilities(scores, math.exp(log_temperature))
        return float((scores * (shares - is_label)).sum(axis=1).mean())

    coldest, hottest = math.log(LOWEST), math.log(HIGHEST)
    if not slope(coldest) > 0 > slope(hottest):
        return None
    return math.exp(brentq(slope, coldest, hottest, xtol=1e-12))
