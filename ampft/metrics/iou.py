"""Intersection over union, as a function of class counts (`ampft.metrics.sums`)."""

from __future__ import annotations

import numpy as np

from ampft.metrics.sums import (
    FloatArray,
    Metric,
    accuracy,
    class_counts,
    costliest_of_classes,
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


MEAN_IOU = Metric("mean_iou", "mean IoU", mean_iou, effect_on_class_mean, costliest_of_classes)
PIXEL_ACCURACY = Metric(
    "pixel_accuracy", "pixel accuracy", accuracy, effect_on_share, costliest_of_classes
)
