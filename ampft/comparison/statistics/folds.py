"""The variance of a difference whose cases come from repeated cross-validation.

Each repeat divides the rows into K folds, and a model that was not trained on a fold predicts it.
The models of two folds share most of their training rows, so that their differences are not
independent: neither a t test over folds nor the variance over cases, for fixed models, contains
what another set of training rows would have changed, and both find differences too often
(Dietterich 1998). No unbiased estimate of that variance exists (Bengio and Grandvalet 2004). Nadeau
and Bengio (2003) correct it by the correlation 1/K that folds of equal size roughly have,

    V = (1 / (K R) + n_test / n_train) s^2,    n_test / n_train = 1 / (K - 1),

with the variance s^2 of the differences of all K R folds. Bates, Hastie and Tibshirani (2021) show
that intervals without such a correction cover too little, and estimate it by nested
cross-validation, which needs about K times as many trainings. A subgroup has few cases in a fold:
squares of s^2 count by the cases of their fold, and folds without a case do not count in K R.

Here V is a lower bound of the covariance C between repeats, which share all rows, so that an
interval is never narrower than by V or by the statistics of fixed rows. V has K R - 1 degrees of
freedom, and is scaled so that the critical value for cases applies to it.

Sources: Dietterich, "Approximate statistical tests for comparing supervised classification learning
algorithms", Neural Computation 10, 1998; Nadeau and Bengio, "Inference for the generalization
error", Machine Learning 52, 2003; Bengio and Grandvalet, "No unbiased estimator of the variance of
K-fold cross-validation", JMLR 5, 2004; Bates, Hastie and Tibshirani, "Cross-validation: what does
it estimate and how well does it do it?", 2021 (JASA 119, 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ampft.comparison.statistics.interval import DifferenceEstimate, estimate_of_sums
from ampft.metrics.sums import CaseSums, Metric

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.integer]

TAIL = 0.025  # at which the degrees of freedom of V are allowed for


def estimate_over_folds(
    arm: Sequence[CaseSums],
    baseline: Sequence[CaseSums],
    folds: Sequence[IntArray | None],
    metric: Metric,
    count: int = 0,
) -> DifferenceEstimate:
    """Return the estimate from the sums of both sides, corrected for folds if there are any.

    Args:
        arm: Sums of the arm in the order of the seeds.
        folds: (n,) fold of each case at each seed; None for a test split.
        metric: A function of the sums.
        count: Number of folds, K, if the last ones may have no case.
    """
    found = estimate_of_sums(arm, baseline, metric)
    known = [each for each in folds if each is not None]
    return corrected_for_folds(found, arm, baseline, known, metric, count) if known else found


def corrected_for_folds(
    estimate: DifferenceEstimate,
    arm: Sequence[CaseSums],
    baseline: Sequence[CaseSums],
    folds: Sequence[IntArray],
    metric: Metric,
    count: int = 0,
) -> DifferenceEstimate:
    """Return an estimate over repeats, corrected because folds are not independent.

    Args:
        folds: (n,) fold of each case, 0..K-1, in each repeat.
        metric: A function of the sums.
        count: K, as in `estimate_over_folds`.
    """
    from scipy.special import stdtrit

    count = max(count, 1 + max(int(fold.max()) for fold in folds))
    cases = np.array([np.bincount(fold, minlength=count) for fold in folds])
    variance = corrected_variance(fold_differences(arm, baseline, folds, metric, count), cases)
    critical = stdtrit(np.count_nonzero(cases) - 1, TAIL) / stdtrit(estimate.cases - 1, TAIL)
    bound = variance * max(float(critical), 1.0) ** 2
    return replace(
        estimate,
        jackknife_variance=max(estimate.jackknife_variance, bound),
        jackknife_covariance=max(estimate.jackknife_covariance, bound),
    )


def corrected_variance(differences: FloatArray, cases: IntArray) -> float:
    """Return the variance of the mean by Nadeau and Bengio.

    Args:
        differences: (R, K) difference of each fold in each repeat.
        cases: (R, K) numbers of their cases; at least two are above 0.
    """
    known = cases > 0
    values, shares, number = differences[known], cases[known] / cases.sum(), np.count_nonzero(known)
    square = float(shares @ (values - shares @ values) ** 2) * number / (number - 1)
    return (1 / number + 1 / (differences.shape[1] - 1)) * square


def fold_differences(
    arm: Sequence[CaseSums],
    baseline: Sequence[CaseSums],
    folds: Sequence[IntArray],
    metric: Metric,
    count: int,
) -> FloatArray:
    """Return the (R, K) difference of each fold in each repeat; 0 for a fold without a case.

    It is the mean of the jackknife's pseudo-values of its cases, which for accuracy is the
    difference of accuracies on the fold, and is defined for every metric of the whole.
    """
    rows = []
    for one, other, fold in zip(arm, baseline, folds, strict=True):
        left_out = (
            metric.leave_one_out(one)[one.pattern_of]
            - metric.leave_one_out(other)[other.pattern_of]
        )
        difference = metric.value(one) - metric.value(other)
        pseudovalues = difference - (len(one) - 1) * (left_out - left_out.mean())
        sums = np.bincount(fold, weights=pseudovalues, minlength=count)
        rows.append(sums / np.maximum(np.bincount(fold, minlength=count), 1))
    return np.array(rows)
