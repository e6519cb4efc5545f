"""Intersection over union, as a function of class counts (`ampft.metrics.sums`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ampft.metrics.sums import (
    CaseSums,
    CostliestCase,
    FloatArray,
    Metric,
    accuracy,
    class_counts,
    effect_on_class_mean,
    effect_on_share,
)


def iou_per_class(sums: FloatArray) -> FloatArray:
    """Return (..., K) TP / (labelled + predicted - TP); NaN for a class that does not occur.

    Source: Everingham et al., "The PASCAL Visual Object Classes Challenge: A Retrospective",
    IJCV 111, 2015, section 4.3.
    """
    counts = class_counts(sums)
    union = counts.labelled + counts.predicted - counts.true_positives
    occurs = union > 0
    return np.where(occurs, counts.true_positives / np.where(occurs, union, 1.0), np.nan)


def mean_iou(sums: FloatArray) -> FloatArray:
    """Return the mean over the classes that occur, as labels or as predictions."""
    values = iou_per_class(sums)
    occurs = ~np.isnan(values)
    total: FloatArray = np.where(occurs, values, 0.0).sum(axis=-1)
    return total / np.maximum(occurs.sum(axis=-1), 1)


def costliest_image(
    from_sums: Callable[[FloatArray], FloatArray], seeds: Sequence[CaseSums]
) -> CostliestCase:
    """Return how much a wrong image typically changes a metric.

    An image's effect is the change if all its correct pixels became wrong, or all its wrong ones
    correct, whichever is more. The result is the mean over the images, weighted by the effects. No
    class is named, because an image has pixels of several. Pixels that become wrong are predicted
    as the most frequently predicted class or, if they belong to it, as the second most frequent.

    Args:
        from_sums: Metric as a function of sums.
        seeds: Sums of class counts at each seed, over the same images.
    """
    effects = np.mean([_effects_of_images(from_sums, sums) for sums in seeds], axis=0)
    typical = float(effects @ effects / max(float(effects.sum()), np.finfo(float).tiny))
    return CostliestCase(typical, None, len(seeds[0]))


def _effects_of_images(from_sums: Callable[[FloatArray], FloatArray], sums: CaseSums) -> FloatArray:
    """Return (n,) by how much the metric changes if all pixels of an image change."""
    totals, images = sums.totals(), sums.patterns.toarray()[sums.pattern_of]
    classes = (len(totals) - 1) // 3
    correct, labelled, predicted = (
        images[:, part * classes : (part + 1) * classes] for part in range(3)
    )
    second, first = np.argsort(totals[2 * classes : 3 * classes])[-2:]
    lost, gained = np.zeros_like(images), np.zeros_like(images)
    lost[:, :classes], lost[:, 2 * classes : 3 * classes] = -correct, -correct
    lost[:, 2 * classes + first] += correct.sum(axis=1) - correct[:, first]
    lost[:, 2 * classes + second] += correct[:, first]
    gained[:, :classes] = labelled - correct
    gained[:, 2 * classes : 3 * classes] = labelled - predicted
    value = from_sums(totals)
    return np.maximum(*(np.abs(from_sums(totals + changed) - value) for changed in (lost, gained)))


def metric_for_images(metric: Metric) -> Metric:
    """Return a metric of class counts for images with masks.

    Two models differ in some pixels of nearly every image, so the variance between images is
    known, whereas it is unknown for predictions that agree on all cases. `costliest_image` allows
    for the loss of a whole image even if none was observed.
    """
    return replace(metric, costliest=costliest_image, changes_by_units=True)


MEAN_IOU = metric_for_images(Metric("mean_iou", "mean IoU", mean_iou, effect_on_class_mean))
PIXEL_ACCURACY = metric_for_images(
    Metric("pixel_accuracy", "pixel accuracy", accuracy, effect_on_share)
)
