"""Metrics as functions of sums over cases.

A case is what was sampled independently: an example, a sentence, an image. Each case adds a short
vector to the sums of its split, and a metric is a function of those sums. Leaving a case out is
then a subtraction, so that the jackknife is exact for every metric, and the units of a case (the
tokens of a sentence, the pixels of an image) never count as independent evidence.

Sums of class counts have 3 K + 1 entries for K classes: K numbers of true positives, K of labels, K
of predictions, and the number of cases. Sums of a mean have the sum of the values first, and the
number of cases last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.integer]
BoolArray = npt.NDArray[np.bool_]

UNSEEN_PROBABILITY = 0.05  # probability of seeing no lost case
MAX_LOG_LOSS = 52 * math.log(2)  # nats: as scikit-learn, probabilities are clipped to 2^-52
SAME_EFFECT_RATIO = 1.1  # ratio of effects below which classes are not distinguished
ENTRIES_AT_A_TIME = 1 << 22  # entries of the leave-one-out sums that are in memory at a time


@dataclass(frozen=True)
class CaseSums:
    """What each of n cases adds to the sums that determine a metric, as vectors."""

    patterns: Any  # (U, D) float64 sparse array in CSR format: the distinct vectors.
    pattern_of: IntArray  # (n,) index of each case's vector among the patterns.

    @classmethod
    def of_cases(cls, vectors: npt.NDArray[Any]) -> CaseSums:
        """Return the sums of cases whose vectors are the rows of an (n, D) array."""
        from scipy.sparse import csr_array

        return cls(csr_array(vectors.astype(np.float64)), np.arange(len(vectors)))

    def __len__(self) -> int:
        return len(self.pattern_of)

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Number of cases with each pattern, (U,)."""
        return np.bincount(self.pattern_of, minlength=self.patterns.shape[0])

    def totals(self) -> FloatArray:
        """Return the (D,) sums over all cases."""
        return self.patterns.T @ self.counts.astype(np.float64)

    def weighted(self, weights: FloatArray | None) -> CaseSums:
        """Return the sums with each case counting by its weight; unchanged for None.

        Weights are scaled to a mean of 1, which changes no metric.

        Args:
            weights: (n,) weights of at least 0, whose sum is above 0.
        """
        if weights is None:
            return self
        from scipy.sparse import diags_array

        factors = diags_array(weights / weights.mean())
        return CaseSums((factors @ self.patterns[self.pattern_of]).tocsr(), np.arange(len(self)))

    def grouped(self, groups: IntArray) -> CaseSums:
        """Return the same sums with each group of cases as one case.

        Args:
            groups: (n,) index of each case's group, 0..G-1. Each index occurs.
        """
        from scipy.sparse import csr_array, vstack

        patterns, shape = self.patterns.shape[0], (int(groups.max()) + 1, self.patterns.shape[0])
        counts = csr_array((np.ones(len(groups)), (groups, self.pattern_of)), shape=shape)
        has_several = np.bincount(groups) > 1
        pattern_of = np.empty(shape[0], dtype=np.int64)
        pattern_of[groups] = self.pattern_of
        pattern_of[has_several] = patterns + np.arange(np.count_nonzero(has_several))
        used, pattern_of = np.unique(pattern_of, return_inverse=True)
        added = counts[np.flatnonzero(has_several)] @ self.patterns
        return CaseSums(csr_array(vstack([self.patterns, added]))[used], pattern_of)


@dataclass(frozen=True)
class CostliestCase:
    """The kind of case whose loss costs a metric most."""

    effect: float  # Change of the metric when one such case is lost, in the metric's unit.
    # Index of the class whose cases these are; `None` where all cases weigh about the same, or are
    # not of one class.
    label: int | None
    support: int  # Number of such cases.


class ClassCounts(NamedTuple):
    """Sums of class counts by name: three of shape (..., K), and `cases` (...)."""

    true_positives: FloatArray
    labelled: FloatArray
    predicted: FloatArray
    cases: FloatArray


def class_counts(sums: FloatArray) -> ClassCounts:
    """Return the parts of sums (..., 3 K + 1)."""
    classes = sums.shape[-1] // 3
    return ClassCounts(
        true_positives=sums[..., :classes],
        labelled=sums[..., classes : 2 * classes],
        predicted=sums[..., 2 * classes : 3 * classes],
        cases=sums[..., -1],
    )


def single_label_sums(labels: IntArray, predicted: IntArray, classes: int) -> CaseSums:
    """Return the class counts of cases with one label each.

    Args:
        labels: (n,) true classes 0..classes-1.
        predicted: (n,) predicted classes.
        classes: Number of classes of the label map, K.
    """
    from scipy.sparse import csr_array

    cells = labels.astype(np.int64) * classes + predicted
    occurring, pattern_of = _renumbered(cells, classes * classes)
    label, prediction = np.divmod(occurring, classes)
    row = np.arange(len(occurring))
    is_correct = label == prediction
    entries = (
        (row[is_correct], label[is_correct]),
        (row, classes + label),
        (row, 2 * classes + prediction),
        (row, np.full(len(row), 3 * classes)),
    )
    rows, columns = (np.concatenate(part) for part in zip(*entries, strict=True))
    shape = (len(occurring), 3 * classes + 1)
    return CaseSums(csr_array((np.ones(len(rows)), (rows, columns)), shape=shape), pattern_of)


def mean_sums(values: FloatArray) -> CaseSums:
    """Return the sums of a mean over (n,) values, one per case."""
    return CaseSums.of_cases(np.stack([values, np.ones(len(values))], axis=1))


def _renumbered(codes: IntArray, limit: int) -> tuple[IntArray, IntArray]:
    """Return the distinct codes, ascending, and the index of each entry among them."""
    if limit > 1 << 22:
        occurring, index = np.unique(codes, return_inverse=True)
        return occurring, index
    occurring = np.flatnonzero(np.bincount(codes, minlength=limit))
    index_of = np.zeros(limit, dtype=np.int32)
    index_of[occurring] = np.arange(len(occurring), dtype=np.int32)
    return occurring, index_of[codes]


# Metrics of class counts


def accuracy(sums: FloatArray) -> FloatArray:
    """Return the share of correct cases, for cases with one label each."""
    counts = class_counts(sums)
    return ratio(counts.true_positives.sum(axis=-1), counts.cases)


def f1_per_class(counts: ClassCounts) -> FloatArray:
    """Return (..., K) F1 = 2 TP / (labelled + predicted); 0 for a class that does not occur."""
    return ratio(2 * counts.true_positives, counts.labelled + counts.predicted)


def macro_f1(sums: FloatArray) -> FloatArray:
    """Return the mean F1 over all classes of the label map."""
    return f1_per_class(class_counts(sums)).mean(axis=-1)


def weighted_f1(sums: FloatArray) -> FloatArray:
    """Return the mean F1 over the classes, weighted by the number of labels."""
    counts = class_counts(sums)
    weighted = (f1_per_class(counts) * counts.labelled).sum(axis=-1)
    return ratio(weighted, counts.labelled.sum(axis=-1))


def micro_f1(sums: FloatArray) -> FloatArray:
    """Return the F1 over all labels together."""
    counts = class_counts(sums)
    both = counts.labelled.sum(axis=-1) + counts.predicted.sum(axis=-1)
    return ratio(2 * counts.true_positives.sum(axis=-1), both)


def balanced_accuracy(sums: FloatArray) -> FloatArray:
    """Return the mean recall of the classes that the split has (Brodersen et al., 2010)."""
    counts = class_counts(sums)
    recall = ratio(counts.true_positives, counts.labelled)
    return ratio(recall.sum(axis=-1), (counts.labelled > 0).sum(axis=-1).astype(np.float64))


def cohen_kappa(sums: FloatArray) -> FloatArray:
    """Return the agreement beyond chance; NaN where all labels and predictions are one class."""
    counts = class_counts(sums)
    observed = ratio(counts.true_positives.sum(axis=-1), counts.cases)
    expected = ratio((counts.labelled * counts.predicted).sum(axis=-1), counts.cases**2)
    return np.where(expected < 1, ratio(observed - expected, 1 - expected), np.nan)


def matthews(sums: FloatArray) -> FloatArray:
    """Return the Matthews correlation coefficient for K classes; 0 where it is undefined.

    Source: Gorodkin, "Comparing two K-category assignments by a K-category correlation
    coefficient", Computational Biology and Chemistry 28, 2004.
    """
    counts = class_counts(sums)
    squared = counts.cases**2
    covariance = counts.true_positives.sum(axis=-1) * counts.cases
    covariance = covariance - (counts.labelled * counts.predicted).sum(axis=-1)
    spread = (squared - (counts.predicted**2).sum(axis=-1)) * (
        squared - (counts.labelled**2).sum(axis=-1)
    )
    return ratio(covariance, np.sqrt(np.maximum(spread, 0.0)))


def mean(sums: FloatArray) -> FloatArray:
    """Return the mean of sums made by `mean_sums`."""
    return ratio(sums[..., 0], sums[..., -1])


# Effect of one changed label


def effect_on_share(sums: FloatArray) -> FloatArray:
    """Return the effect of a label of each class if all units weigh the same: 1 / n."""
    return np.full(len(sums) // 3, 1 / sums[-1])


def effect_on_class_mean(sums: FloatArray) -> FloatArray:
    """Return the effect of a label of each class on a mean over K classes: 1 / (K labelled_k)."""
    labelled = class_counts(sums).labelled
    return ratio(np.full(len(labelled), 1 / len(labelled)), labelled)


def effect_on_micro_f1(sums: FloatArray) -> FloatArray:
    """Return the effect of a label of each class on micro F1: 2 / (labels + predictions)."""
    counts = class_counts(sums)
    both = float(counts.labelled.sum() + counts.predicted.sum())
    return np.full(len(counts.labelled), 2 / both)


def effect_on_agreement(sums: FloatArray) -> FloatArray:
    """Return the effect of a label on agreement beyond chance: (1 / n) / (1 - chance)."""
    labelled = class_counts(sums).labelled
    chance = float(np.sum((labelled / labelled.sum()) ** 2))
    return np.full(len(labelled), 1 / (sums[-1] * max(1 - chance, 1 / sums[-1])))


# The case with the largest effect


def costliest_of_classes(
    from_sums: Callable[[FloatArray], FloatArray], seeds: Sequence[CaseSums]
) -> CostliestCase:
    """Return the costliest kind of case of a metric of class counts.

    A class with L labels can lose the share r = 1 - 0.05^(1/L) without one loss among L labels, at
    the rule of three's 5 %. The effect of a label of the class is the change of the metric per
    label when that share of its correct predictions is lost, or of its wrong ones gained, whichever
    is more. A case with several labels has the effect of all its labels, averaged over labels.

    Args:
        from_sums: Metric as a function of sums.
        seeds: Sums of class counts at each seed, over the same cases.
    """
    sums = seeds[0]
    totals = np.mean([each.totals() for each in seeds], axis=0)
    label_effect = _effect_per_label(from_sums, totals)
    counts = sums.counts
    classes = len(totals) // 3
    labelled = sums.patterns[:, classes : 2 * classes]
    support = np.asarray((labelled > 0).T @ counts).astype(np.int64)
    labels = totals[classes : 2 * classes]
    labels_per_case = ratio(np.asarray(labelled.power(2).T @ counts), labels)
    class_effect = label_effect * labels_per_case
    case_effect = np.asarray(labelled @ label_effect)
    whole = float(counts @ case_effect**2 / max(float(counts @ case_effect), np.finfo(float).tiny))
    rarest = int(class_effect.argmax())
    if class_effect[rarest] <= whole * SAME_EFFECT_RATIO:
        return CostliestCase(max(whole, float(class_effect[rarest])), None, len(sums))
    return CostliestCase(float(class_effect[rarest]), rarest, int(support[rarest]))


def _effect_per_label(
    from_sums: Callable[[FloatArray], FloatArray], totals: FloatArray
) -> FloatArray:
    """Return (K,) the change of the metric per label of a class, lost or gained."""
    counts = class_counts(totals)
    classes, value = len(counts.labelled), float(from_sums(totals))
    ranked = np.argsort(counts.predicted)
    other = np.where(np.arange(classes) == ranked[-1], ranked[max(classes - 2, 0)], ranked[-1])
    effect = np.zeros(classes)
    for label in np.flatnonzero(counts.labelled):
        share = 1 - UNSEEN_PROBABILITY ** (1 / counts.labelled[label])
        correct = counts.true_positives[label]
        for moved in (-share * correct, share * (counts.labelled[label] - correct)):
            if moved:
                changed = totals.copy()
                changed[[label, 2 * classes + label]] += moved
                changed[2 * classes + other[label]] -= moved
                change = abs(float(from_sums(changed)) - value) / abs(moved)
                effect[label] = np.fmax(effect[label], change)
    return effect


def costliest_of_mean(
    from_sums: Callable[[FloatArray], FloatArray], seeds: Sequence[CaseSums], *, most: float
) -> CostliestCase:
    """Return how much a mean changes if all units of a case get the worst value instead of 0.

    With cases of one unit each, it is most / n: no case can be lost by more. Cases of several units
    are averaged, weighted by their sizes.

    Args:
        from_sums: Metric as a function of sums.
        seeds: Sums of a mean at each seed, over the same cases.
        most: Largest value of a unit, such as `MAX_LOG_LOSS`.
    """
    counts = seeds[0].counts
    sizes = _column(seeds[0].patterns, -1)
    units = float(counts @ sizes)
    return CostliestCase(most * float(counts @ sizes**2) / units**2, None, len(seeds[0]))


def costliest_of_worst(
    from_sums: Callable[[FloatArray], FloatArray], seeds: Sequence[CaseSums]
) -> CostliestCase:
    """Return the case that would become the worst of all that were seen, by the mean of its units.

    The sums of a row of weight 0.5 are half of its values.
    """
    tables = [each.patterns for each in seeds]
    most = max(float(ratio(abs(_column(t, 0)), _column(t, -1)).max()) for t in tables)
    return costliest_of_mean(from_sums, seeds, most=most)


def _column(patterns: Any, index: int) -> FloatArray:
    return patterns[:, [index]].toarray()[:, 0]


def ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Return the quotient; 0 where the denominator is not positive."""
    positive = denominator > 0
    return np.where(positive, numerator, 0.0) / np.where(positive, denominator, 1.0)


@dataclass(frozen=True)
class Metric:
    """A metric that is a function of sums over cases."""

    name: str  # Key in reports and records, such as "macro_f1".
    title: str  # Name for people, such as "macro F1".
    # Function of sums (..., D) that returns values (...).
    from_sums: Callable[[FloatArray], FloatArray]
    # Function of the (D,) sums of a split that returns (K,) how much a changed label of each class
    # changes the metric; None for a mean of values.
    label_effect: Callable[[FloatArray], FloatArray] | None
    # Function of `from_sums`, and of the sums of a split with several seeds, that returns the case
    # with the largest effect.
    costliest: Callable[[Callable[[FloatArray], FloatArray], Sequence[CaseSums]], CostliestCase] = (
        costliest_of_classes
    )
    higher_is_better: bool = True  # Whether higher values are better.
    is_share: bool = True  # Whether differences are in points (hundredths).
    # Whether a case usually changes in a few of very many units, as an image in some pixels;
    # otherwise all units of a case change together.
    changes_by_units: bool = False
    # Function of an outcome that returns a value per case or unit, whose mean is the metric; None
    # for a function of class counts.
    values: Callable[[Any], FloatArray] | None = None
    # Index of the entry of the sums with what a case would cost a model that predicts the mean of
    # the labels; None if the sums do not have it.
    cost_of_mean: int | None = None

    @property
    def largest_difference(self) -> float:
        """The largest possible difference of two values; infinite where errors have no limit."""
        if self.costliest is costliest_of_worst:
            return math.inf
        if self.is_share:
            return 1.0
        return 2.0 if self.label_effect is effect_on_agreement else math.inf

    def value(self, sums: CaseSums) -> float:
        return float(self.from_sums(sums.totals()))

    def effect_of_changed_case(self, sums: CaseSums) -> float:
        """Return the effect of one changed case, root mean square over each case's own effect.

        All units of a case change together, a unit of several labels in one of them. A case
        without labels or weight cannot change. For a mean, the values of a case are set to 0. If
        cases change by units, return the effect of one changed unit.
        """
        totals = sums.totals()
        sizes = _column(sums.patterns, -1)
        if self.label_effect is None:
            values = _column(sums.patterns, 0) / totals[-1]
            return math.sqrt(sums.counts @ values**2 / sums.counts[sizes > 0].sum())
        classes, each = len(totals) // 3, self.label_effect(totals)
        labelled = sums.patterns[:, classes : 2 * classes]
        labels = np.asarray(labelled.sum(axis=1))
        if not labels.any():
            return 1 / len(sums)
        of_units = ratio(labelled @ each**2, labels)  # mean square over the labels
        if self.changes_by_units:
            return math.sqrt(sums.counts @ (of_units * labels) / (sums.counts @ labels))
        per_unit = np.maximum(ratio(labels, sizes), 1)
        squares = np.where(per_unit > 1, sizes**2 * of_units, (labelled @ each) ** 2)
        weights = sums.counts * per_unit * (labels > 0)
        return math.sqrt(weights @ squares / weights.sum())

    def costliest_case(self, seeds: Sequence[CaseSums]) -> CostliestCase:
        """Return the kind of case whose loss would cost most, averaged over the seeds."""
        return self.costliest(self.from_sums, seeds)

    def leave_one_out(self, sums: CaseSums) -> FloatArray:
        """Return (U,) values of the metric: for each pattern, without one case of that pattern."""
        totals, patterns = sums.totals(), sums.patterns
        rows = max(1, ENTRIES_AT_A_TIME // len(totals))
        parts = [
            self.from_sums(totals - patterns[start : start + rows].toarray())
            for start in range(0, patterns.shape[0], rows)
        ]
        return np.concatenate(parts)


ACCURACY = Metric("accuracy", "accuracy", accuracy, effect_on_share)
MACRO_F1 = Metric("macro_f1", "macro F1", macro_f1, effect_on_class_mean)
WEIGHTED_F1 = Metric("weighted_f1", "weighted F1", weighted_f1, effect_on_share)
MICRO_F1 = Metric("micro_f1", "micro F1", micro_f1, effect_on_micro_f1)
BALANCED_ACCURACY = Metric(
    "balanced_accuracy", "balanced accuracy", balanced_accuracy, effect_on_class_mean
)
COHEN_KAPPA = Metric(
    "cohen_kappa", "Cohen's kappa", cohen_kappa, effect_on_agreement, is_share=False
)
MATTHEWS = Metric("matthews", "Matthews correlation", matthews, effect_on_agreement, is_share=False)


def mean_metric(
    name: str,
    title: str,
    *,
    most: float = 1.0,
    higher_is_better: bool = False,
    is_share: bool = False,
    values: Callable[[Any], FloatArray] | None = None,
) -> Metric:
    """Return the metric that is the mean of a value per unit from 0 to `most`."""
    return Metric(
        name=name,
        title=title,
        from_sums=mean,
        label_effect=None,
        costliest=partial(costliest_of_mean, most=most),
        higher_is_better=higher_is_better,
        is_share=is_share,
        values=values,
    )


LOG_LOSS = mean_metric("log_loss", "log loss", most=MAX_LOG_LOSS)
BRIER = mean_metric("brier", "Brier score", most=2.0)
