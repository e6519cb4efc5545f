"""How far a model's confidence can be believed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BINS = 15  # the number that Guo et al. (2017) use throughout


def calibration_sums(
    confidence: npt.NDArray[np.floating], right: npt.NDArray[np.bool_], *, bins: int
) -> npt.NDArray[np.float64]:
    """Return (3, bins) sums per bin ((m-1)/M, m/M]: count, sum of confidences, number right.

    Args:
        confidence: Shape (n,), probability of what was predicted.
        right: Shape (n,), whether it was right.
        bins: Number of bins of equal width, M.
    """
    values = confidence.astype(np.float64)
    bin_of = np.digitize(values, np.arange(1, bins) / bins, right=True)
    weights = (None, values, right)
    sums = [np.bincount(bin_of, weights=w, minlength=bins) for w in weights]
    return np.stack(sums).astype(np.float64)


def expected_calibration_error(
    confidence: npt.NDArray[np.floating], right: npt.NDArray[np.bool_], *, bins: int = BINS
) -> float:
    """Return the expected calibration error, in [0, 1]; 0 is perfect.

    With n_m examples in bin m, acc(m) the share of them that is right and conf(m) their mean
    confidence:

        ECE = sum over m of n_m / n * |acc(m) - conf(m)|

    Source: Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks",
    ICML 2017, https://arxiv.org/abs/1706.04599, equations 2 and 3.

    Args:
        confidence: Shape (n,), probability of what was predicted.
        right: Shape (n,), whether it was right.
        bins: Number of bins of equal width, M.
    """
    values = confidence.astype(np.float64)
    bin_of = np.digitize(values, np.arange(1, bins) / bins, right=True)
    # n_m / n * |acc - conf| = |sum(right) - sum(confidence)| / n: no division by an empty bin.
    gaps = np.bincount(bin_of, weights=right - values, minlength=bins)
    return float(np.abs(gaps).sum() / len(values))
