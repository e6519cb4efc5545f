"""Abstention: from which confidence a model answers, so that few of its answers are wrong.

The promise is on the error among the answered rows (selective classification with guaranteed risk:
Geifman and El-Yaniv, "Selective Classification for Deep Neural Networks", NeurIPS 2017). It is
proven by fixed sequence testing (Angelopoulos, Bates, Candes, Jordan, Lei, "Learn then Test",
arXiv:2110.01052, section 2.3) with exact binomial p-values:

1. One part of the validation rows chooses a sequence of confidences, from high to low.
2. The other part, which nothing else has seen, tests each in turn: "the error among the answered
   rows is above the promised one". The sequence stops at the first that cannot be rejected.

The last rejected confidence is used. With probability `CONFIDENCE` over the second part, its error
is at most the promised one, whatever the model and its confidences are, if the rows are drawn
independently from the same distribution as those that are answered later.

Of dependent rows, whole groups are drawn. A binomial test needs independent rows, and one row of
each group would say how often groups are wrong: where large groups are wrong more often, that is
less than the error among rows. So a group takes part with a probability that is proportional to its
size (Lahiri, "A method of sample selection providing unbiased ratio estimates", Bulletin of the
International Statistical Institute 33, 1951), and one of its rows then stands for it. The rows so
drawn are independent, and distributed like all rows, if no later group is larger than these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.decision import PROMISE_CONFIDENCE
from ampft.metrics.rounding import probability_rounding

CONFIDENCE = PROMISE_CONFIDENCE
STEPS = 20  # of the sequence, if it begins with no row and ends with all
PROMISE_SEED = 0

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.int64]


def rows_needed(error: float) -> int:
    """Return the fewest answered rows that can prove an error: none of them wrong.

    Args:
        error: Promised error, above 0 and below 1.
    """
    return math.ceil(math.log(1 - CONFIDENCE) / math.log1p(-error))


def least_error(rows: int) -> float:
    """Return the lowest error that this number of answered rows can prove, see `rows_needed`."""
    return 1 - (1 - CONFIDENCE) ** (1 / rows) if rows else 1.0


@dataclass(frozen=True)
class ValidationHalves:
    """The two parts of a validation split, as indices of its rows, ascending."""

    # Rows that choose weights, temperature, thresholds and the sequence of confidences.
    fit: IntArray
    # Rows that prove the promise: independent, and distributed like all rows. Of a group of
    # dependent rows, at most one.
    promise: IntArray
    # Number of all rows that are not in `fit`. Dependent rows, and those that groups of unequal
    # sizes leave out, are not in `promise`.
    set_apart: int


def split_in_halves(rows: int, groups: IntArray | None) -> ValidationHalves:
    """Return the parts of a validation split, the same for every run.

    Args:
        rows: Number of rows.
        groups: (rows,) group of each row, 0..G-1; None if all are independent. Whole groups go into
            one part, and take part in the proof with a probability proportional to their sizes.
    """
    ids = np.arange(rows) if groups is None else groups
    sizes = np.bincount(ids)
    order = np.random.default_rng(PROMISE_SEED).permutation(len(sizes))
    in_promise = np.isin(ids, order[: math.ceil(len(order) / 2)])
    shuffled = np.random.default_rng(PROMISE_SEED).permutation(np.flatnonzero(in_promise))
    _, first = np.unique(ids[shuffled], return_index=True)
    chosen = np.sort(shuffled[first])
    drawn = np.random.default_rng(PROMISE_SEED + 1).random(len(chosen)) * sizes.max()
    promise = chosen[drawn < sizes[ids[chosen]]]
    fit = np.flatnonzero(~in_promise)
    return ValidationHalves(fit=fit, promise=promise, set_apart=int(in_promise.sum()))


def p_value(wrong: int, answered: int, error: float) -> float:
    """Return P(at most `wrong` of `answered` rows are wrong) if the error is `error`."""
    from scipy.special import bdtr

    return float(bdtr(wrong, answered, error)) if answered else 1.0


def candidate_confidences(confidence: FloatArray, correct: BoolArray, error: float) -> list[float]:
    """Return the confidences to test, in their order; the last one answers every row.

    Each is just below a row's, so that rounding does not decide about this row. The first is where
    the rows give the lowest p-value; each further one answers a `STEPS`-th more
    of them.

    Args:
        confidence: (n,) confidence of the rows that choose.
        correct: (n,) whether their predictions are correct.
    """
    if not len(confidence):
        return [0.0]
    # Slightly below the rows' own, because another batch size may round these differently.
    descending = np.sort(confidence)[::-1].astype(np.float64)
    descending = np.maximum(descending - 4 * probability_rounding(descending), 0.0)
    descending = descending.astype(np.float32).astype(np.float64)
    wanted = np.ceil(np.arange(1, STEPS) / STEPS * len(descending)).astype(np.int64)
    candidates = [*dict.fromkeys(float(descending[count - 1]) for count in wanted), 0.0]
    p_values = [
        p_value(int((~correct[confidence >= least]).sum()), int((confidence >= least).sum()), error)
        for least in candidates
    ]
    return candidates[int(np.argmin(p_values)) :]


def least_confidence(
    candidates: list[float], confidence: FloatArray, correct: BoolArray, error: float
) -> float | None:
    """Return the last confidence of a sequence whose promise the rows prove; None if none.

    Args:
        candidates: Result of `candidate_confidences` for other rows.
        confidence: (n,) confidence of the rows that prove.
        correct: (n,) whether their predictions are correct.
    """
    proven = None
    for least in candidates:
        answered = confidence >= least
        wrong = int((answered & ~correct).sum())
        if p_value(wrong, int(answered.sum()), error) > 1 - CONFIDENCE:
            break
        proven = least
    return proven


def exact_interval(count: float, total: float) -> tuple[float, float]:
    """Return the exact 95 % interval of a share (Clopper and Pearson, Biometrika 26, 1934).

    Args:
        count: Number of independent rows that have the property.
        total: Number of independent rows.
    """
    from scipy.special import betaincinv

    if not total:
        return 0.0, 1.0
    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, 0.025))
    high = 1.0 if count == total else float(betaincinv(count + 1, total - count, 0.975))
    return low, high
