"""The summed loss in float32, which lets a step batch be split without changing its gradient.

Models of transformers return the mean over a micro-batch, and a mean of means gives examples of
small micro-batches too much weight. Here the loss is a sum over the examples, which is divided once
by the weight of the whole effective batch.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def summed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    class_weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the cross entropy summed over the examples.

    Divided by the sum of the examples' class weights, it equals `torch.nn.CrossEntropyLoss` with
    the same `weight` and `label_smoothing` and `reduction="mean"`.

    Args:
        logits: (m, C), any floating dtype; computed in float32, or in float64 for float64 logits.
        labels: (m,) int64 class indices.
        class_weights: (C,) float32; None gives every class the weight 1.
        label_smoothing: Share of the target that is spread evenly over the classes, 0 to 1.

    Returns:
        A float32 scalar; float64 for float64 logits.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    with torch.autocast(logits.device.type, enabled=False):
        return functional.cross_entropy(
            logits.to(dtype),
            labels,
            weight=None if class_weights is None else class_weights.to(dtype),
            label_smoothing=label_smoothing,
            reduction="sum",
        )
