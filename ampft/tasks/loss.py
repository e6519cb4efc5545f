"""The loss, summed and in float32, so that a step batch can be split without changing its gradient.

Heads of transformers take the mean over their own micro-batch; a mean of means weighs examples of a
small micro-batch too much. Here the sum goes over the examples and the division, by the weight of
the whole effective batch, happens once.
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

    Divided by the sum of the examples' class weights it equals `torch.nn.CrossEntropyLoss` with
    the same `weight` and `label_smoothing` and `reduction="mean"`.

    Args:
        logits: (m, C), any floating dtype; computed in float32, or in float64 where they are that.
        labels: (m,) int64 class indices.
        class_weights: (C,) float32; None weighs every class one.
        label_smoothing: Share of the target spread evenly over the classes, 0 to 1.

    Returns:
        A float32 scalar; a float64 one of float64 logits.
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
