"""Metrics of numbers and of ordered labels, as functions of sums over cases."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ampft.metrics.sums import ratio

FloatArray = npt.NDArray[np.float64]

SMALLEST_VARIANCE = 1e-12  # of labels or predictions, in variances of the labels


def r_squared(sums: FloatArray) -> FloatArray:
    """Return 1 - squared error / variance of the labels; NaN where all labels are equal.

    Args:
        sums: (..., 4) of squared error, label, squared label, and one.
    """
    error, label, square, cases = np.moveaxis(sums, -1, 0)
    total = square - ratio(label**2, cases)
    is_defined = total > cases * SMALLEST_VARIANCE
    return np.where(is_defined, 1 - error / np.where(is_defined, total, 1.0), np.nan)


def pearson(sums: FloatArray) -> FloatArray:
    """Return the correlation of labels and predictions; NaN where either are all equal.

    Args:
        sums: (..., 6) of label times prediction, label, prediction, both squared, and one.
    """
    product, label, value, label_square, value_square, cases = np.moveaxis(sums, -1, 0)
    covariance = product - ratio(label * value, cases)
    spreads = [
        square - ratio(each**2, cases)
        for each, square in ((label, label_square), (value, value_square))
    ]
    is_defined = np.minimum(*spreads) > cases * SMALLEST_VARIANCE
    scale = np.sqrt(np.where(is_defined, spreads[0] * spreads[1], 1.0))
    return np.where(is_defined, np.clip(covariance / scale, -1, 1), np.nan)


def quadratic_kappa(sums: FloatArray) -> FloatArray:
    """Return the kappa with squared weights; NaN where labels and predictions are one class.

    Source: Cohen, "Weighted kappa", Psychological Bulletin 70, 1968.

    Args:
        sums: (..., 6) of squared distance, rank of the label, its square, rank of the prediction,
            its square, and one.
    """
    distance, label, label_square, choice, choice_square, cases = np.moveaxis(sums, -1, 0)
    expected = label_square + choice_square - 2 * ratio(label * choice, cases)
    is_defined = expected > cases * SMALLEST_VARIANCE
    return np.where(is_defined, 1 - distance / np.where(is_defined, expected, 1.0), np.nan)
