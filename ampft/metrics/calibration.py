"""How well a model's confidence matches its accuracy, and the temperature that corrects it.

A temperature is one number by which logits are divided, fitted by log loss. Source: Guo, Pleiss,
Sun, Weinberger, "On Calibration of Modern Neural Networks", ICML 2017,
https://arxiv.org/abs/1706.04599, section 4.2. Everything is computed in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.decision import sigmoid, softmax
from ampft.metrics.bootstrap import Statistic
from ampft.metrics.scores import decision_weights

BINS = 15  # the number that Guo et al. (2017) use throughout


def calibration_sums(
    confidence: npt.NDArray[np.floating], correct: npt.NDArray[np.bool_], *, bins: int
) -> npt.NDArray[np.float64]:
    """Return (3, bins) sums per bin ((m-1)/M, m/M]: count, confidence, number correct.

    Args:
        confidence: (n,) probability of each prediction.
        correct: (n,) whether the prediction is correct.
        bins: Number of bins of equal width, M.
    """
    values = confidence.astype(np.float64)
    bin_of = np.digitize(values, np.arange(1, bins) / bins, right=True)
    weights = (None, values, correct)
    sums = [np.bincount(bin_of, weights=w, minlength=bins) for w in weights]
    return np.stack(sums).astype(np.float64)


def calibration_statistic(
    confidence: npt.NDArray[np.floating],
    correct: npt.NDArray[np.bool_],
    groups: npt.NDArray[np.int64] | None,
) -> Statistic:
    """Return the expected calibration error with `BINS` bins as a function of sums.

    Chance makes the absolute gaps of the bins larger. So the cases are cut into two random halves:
    the signs of the gaps in one half, times the gaps in the other, add up to at most the true error
    on average.

    Args:
        confidence: (n, M) probabilities of the M decisions of each case.
        correct: (n, M) whether the decisions are correct.
        groups: (n,) group of each case, 0..G-1, which stay in one half; None for none.
    """
    values = confidence.astype(np.float64)
    cases, decisions = values.shape
    bin_of = np.digitize(values, np.arange(1, BINS) / BINS, right=True)
    columns = (bin_of + (BINS + 1) * np.arange(cases)[:, None]).ravel()
    summed = np.bincount(columns, (correct - values).ravel(), minlength=cases * (BINS + 1))
    # What each case adds to the gaps of the bins, and to the number of decisions.
    gaps = summed.astype(np.float64).reshape(cases, BINS + 1)
    gaps[:, -1] = decisions
    ids = np.arange(len(gaps)) if groups is None else groups
    in_first = (np.random.default_rng(0).permutation(int(ids.max()) + 1) % 2 == 0)[ids, None]

    def error(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        both = sums[..., : BINS + 1] + sums[..., BINS + 1 :]
        return np.asarray(np.abs(both[..., :-1]).sum(axis=-1) / both[..., -1])

    def at_most(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        first, second = sums[..., : BINS + 1], sums[..., BINS + 1 :]
        crossed = [
            (np.sign(one[..., :-1]) * other[..., :-1]).sum(axis=-1) / np.maximum(other[..., -1], 1)
            for one, other in ((first, second), (second, first))
        ]
        return np.asarray(sum(crossed) / 2)

    vectors = np.concatenate([gaps * in_first, gaps * ~in_first], axis=1)
    return Statistic(vectors, error, at_most, limits=(0.0, 1.0))


def expected_calibration_error(
    confidence: npt.NDArray[np.floating],
    correct: npt.NDArray[np.bool_],
    *,
    bins: int = BINS,
    weights: npt.NDArray[np.float64] | None = None,
) -> float:
    """Return the expected calibration error, in [0, 1]; 0 is perfect.

    With n_m predictions in bin m, acc(m) the share of correct ones and conf(m) their mean
    confidence:

        ECE = sum over m of n_m / n * |acc(m) - conf(m)|

    Source: Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks",
    ICML 2017, https://arxiv.org/abs/1706.04599, equations 2 and 3.

    Args:
        confidence: (n,) probability of each prediction.
        correct: (n,) whether the prediction is correct.
        bins: Number of bins of equal width, M.
        weights: (n,) weights of the predictions, instead of counting each once; None for 1.
    """
    values = confidence.astype(np.float64)
    factors = np.ones(len(values)) if weights is None else weights
    bin_of = np.digitize(values, np.arange(1, bins) / bins, right=True)
    # n_m / n * |acc - conf| = |sum(correct) - sum(confidence)| / n: no division by an empty bin.
    gaps = np.bincount(bin_of, weights=factors * (correct - values), minlength=bins)
    return float(np.abs(gaps).sum() / factors.sum())


LOWEST, HIGHEST = 0.05, 20.0  # outside: the model makes no errors to fit
FloatArray = npt.NDArray[np.float64]


def fit_temperature(
    logits: npt.NDArray[Any],
    is_label: npt.NDArray[np.bool_],
    *,
    several: bool,
    class_weights: npt.NDArray[np.floating] | None = None,
) -> float | None:
    """Return the temperature with the lowest log loss.

    The log loss is convex in b = 1/T. Its derivative, the mean of z (p - y) over the rows with
    probabilities p at b, is therefore increasing, and its root is the minimum.

    Args:
        logits: (n, K) logits, z.
        is_label: (n, K) whether a row has a label, y.
        several: Whether a row can have any number of labels; otherwise it has one.
        class_weights: (K,) weights of the classes in the log loss, or of rows that have a label;
            None for 1.

    Returns:
        The temperature; None if the minimum is not between `LOWEST` and `HIGHEST`, for example
        because every row is right, so that any lower temperature would be better.
    """
    from scipy.optimize import brentq

    probabilities: Callable[[npt.NDArray[Any], float], FloatArray] = sigmoid if several else softmax
    scores = logits.astype(np.float64)
    weights = np.ones((len(logits), 1))
    if class_weights is not None:
        weights = decision_weights(is_label if several else is_label.argmax(1), class_weights)

    def slope(log_temperature: float) -> float:
        shares = probabilities(scores, math.exp(log_temperature))
        return float((weights * scores * (shares - is_label)).sum(axis=1).mean())

    coldest, hottest = math.log(LOWEST), math.log(HIGHEST)
    if not slope(coldest) > 0 > slope(hottest):
        return None
    return math.exp(brentq(slope, coldest, hottest, xtol=1e-12))
