"""Counts of cases with any number of labels each."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ampft.metrics.sums import BoolArray, CaseSums


def class_count_sums(labels: BoolArray, predicted: BoolArray) -> CaseSums:
    """Return the class counts of cases with any number of labels each.

    Args:
        labels: (n, K) whether a case has a label.
        predicted: (n, K) whether it is predicted.
    """
    from scipy.sparse import csr_array

    both = np.packbits(np.concatenate([labels, predicted], axis=1), axis=1)
    _, first, pattern_of = np.unique(both, axis=0, return_index=True, return_inverse=True)
    labels, predicted = labels[first], predicted[first]
    cases = np.ones((len(first), 1))
    patterns = np.concatenate([labels & predicted, labels, predicted, cases], axis=1)
    return CaseSums(csr_array(patterns.astype(np.float64)), pattern_of.reshape(-1))


def case_f1(labels: BoolArray, predicted: BoolArray) -> npt.NDArray[np.float64]:
    """Return the F1 of the labels of each example, shape (n,), float64.

    It is 0 if an example has no label and none is predicted, as in scikit-learn.

    Args:
        labels: (n, K) whether an example has a label.
        predicted: (n, K) whether it is predicted.
    """
    both = (predicted & labels).sum(axis=1)
    total = predicted.sum(axis=1) + labels.sum(axis=1)
    return 2 * both / np.maximum(total, 1)
