"""How well a model's confidence matches its accuracy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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


def expected_calibration_error(
    confidence: npt.NDArray[np.floating], correct: npt.NDArray[np.bool_], *, bins: int = BINS
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
    """
    values = confidence.astype(np.float64)
    bin_of = np.digitize(values, np.arange(1, bins) / bins, right=True)
    # n_m / n * |acc - conf| = |sum(correct) - sum(confidence)| / n: no division by an empty bin.
    gaps = np.bincount(bin_of, weights=correct - values, minlength=bins)
    return float(np.abs(gaps).sum() / len(values))
