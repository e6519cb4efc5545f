"""The summed loss of ordered classes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ampft.precision.transfer import cached_device_constant
from ampft.tasks.loss import weighted_sum


def summed_cumulative_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    class_weights: npt.NDArray[np.float32] | None = None,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the cross entropy of ordered classes, summed over the examples.

    For each of the K - 1 ranks k, the classes are divided into those up to k and those above. The
    loss is the mean over the ranks of -log P(side of the label), where P is a sum of softmax
    probabilities; with two classes it is the cross entropy.

    Args:
        logits: (m, K), any floating dtype; computed in float32, or in float64 for float64 logits.
        labels: (m,) int64 ranks.
        class_weights: (K,) float32; None gives every class the weight 1.
        weights: (m,) factors of the losses of the examples, besides those; None for 1.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    ranks = torch.arange(logits.shape[1], device=logits.device)
    is_low = ranks <= ranks[:-1, None]  # (K - 1, K): whether a class is not above a rank
    with torch.autocast(logits.device.type, enabled=False):
        other_side = is_low != is_low.T[labels][..., None]
        sides = logits[:, None].masked_fill(other_side, -torch.inf).logsumexp(2)
        losses = (logits.logsumexp(1, keepdim=True) - sides).mean(1)
        if class_weights is not None:
            losses = losses * cached_device_constant(class_weights, logits.device)[labels]
        return weighted_sum(losses, weights)
