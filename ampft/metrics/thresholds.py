"""The threshold of a label: the probability from which it is predicted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def best_threshold(
    has: npt.NDArray[np.bool_], probabilities: npt.NDArray[np.float32], default: float
) -> float:
    """Return the threshold of a label with the best F1; of equally good ones, the nearest to 0.5.

    Args:
        has: (n,) whether an example has the label.
        probabilities: (n,) float32.
        default: Threshold if no example has the label.
    """
    if not has.any():
        return default
    order = np.argsort(-probabilities, kind="stable")
    scores = probabilities[order].astype(np.float64)
    following = np.append(scores[1:], 0.0 if scores[-1] > 0 else -1.0)
    f1 = 2 * np.cumsum(has[order]) / (np.arange(1, len(has) + 1) + has.sum())
    # Between two probabilities, unless float32 has nothing between them.
    middles = np.float32((scores + following) / 2).astype(np.float64)
    thresholds = np.where(middles > following, middles, scores)
    possible = scores > following
    best = possible & (f1 >= f1[possible].max())
    return float(min(thresholds[best], key=lambda threshold: abs(threshold - 0.5)))
