"""How far rounding moves probabilities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LOGIT_ROUNDING = 4e-6  # of a logit in float32, in batches of other sizes


def probability_rounding(probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return how much rounding in float32 can change probabilities.

    It is the effect of rounding a logit, plus that of rounding the probability.

    Args:
        probabilities: Probabilities in [0, 1], of any shape.
    """
    steps = np.spacing(probabilities.astype(np.float32)).astype(np.float64)
    return LOGIT_ROUNDING * probabilities * (1 - probabilities) + 2 * steps
