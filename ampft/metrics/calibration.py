"""How far a model's confidence can be believed."""

from __future__ import annotations

import numpy as np

from ampft.metrics.predictions import Predictions

BINS = 15  # the number that Guo et al. (2017) use throughout


def expected_calibration_error(predictions: Predictions, *, bins: int = BINS) -> float:
    """Return the expected calibration error of the predicted class.

    The confidences (probability of the predicted class) are put into M equal-width bins
    ((m-1)/M, m/M]. With n_m examples in bin m, acc(m) the share of them that is right and
    conf(m) their mean confidence:

        ECE = sum over m of n_m / n * |acc(m) - conf(m)|

    Source: Guo, Pleiss, Sun, Weinberger, "On Calibration of Modern Neural Networks",
    ICML 2017, https://arxiv.org/abs/1706.04599, equations 2 and 3.

    Args:
        predictions: n examples.
        bins: M.

    Returns:
        A number in [0, 1]; 0 is perfect.
    """
    confidence = predictions.confidence.astype(np.float64)
    right = predictions.predicted == predictions.labels
    edges = np.arange(1, bins) / bins
    bin_of = np.digitize(confidence, edges, right=True)
    # n_m / n * |acc - conf| = |sum(right) - sum(confidence)| / n: no division by an empty bin.
    gaps = np.bincount(bin_of, weights=right - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(predictions))
