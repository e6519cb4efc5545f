"""Adding to a bfloat16 weight without losing what rounding to the nearest would.

A bfloat16 has 8 significant bits: an update below 2^-9 of its weight rounds away. Two cures, both
in Zamirai et al., "Revisiting BFloat16 Training" (2020, arXiv:2010.06192), for the exact update u:

- Kahan's summation ("Further remarks on reducing truncation errors", Communications of the ACM,
  1965): what rounding lost is carried along in a bfloat16 compensation c.
  y = u + c;  w' = round(w + y);  c' = round(y - (w' - w))
- Stochastic rounding: w + u goes to one of its two neighbours, to each with the probability that
  makes the mean right.
"""

from __future__ import annotations

import torch
from torch import Tensor


def add_with_compensation(weight: Tensor, compensation: Tensor, update: Tensor) -> None:
    """Add by Kahan's summation, in place.

    Args:
        weight: bfloat16, any shape.
        compensation: bfloat16: what the weight lacks; holds what it lacks afterwards.
        update: float32; overwritten.
    """
    before = weight.float()
    update.add_(compensation.float())
    weight.copy_(before + update)
    compensation.copy_(update.sub_(weight.float().sub_(before)))


def add_stochastically(weight: Tensor, update: Tensor, generator: torch.Generator) -> None:
    """Add and round to one of the two neighbours, in place; the mean is the sum in float32.

    Adding 16 uniform bits below the last place of a bfloat16 and cutting there rounds away from
    zero with the probability that the cut bits, as a fraction, state.

    Args:
        weight: bfloat16, any shape.
        update: float32; overwritten.
        generator: Of the weight's device.
    """
    bits = update.add_(weight.float()).view(torch.int32)
    # One 64-bit draw holds the noise of four elements, as in `ampft.models.packing.dropout`.
    words = torch.empty(-(-bits.numel() // 4), dtype=torch.int64, device=bits.device)
    noise = words.random_(-(2**63), None, generator=generator).view(torch.int16)[: bits.numel()]
    bits.add_(noise.view(bits.shape).int().add_(2**15)).bitwise_and_(-(2**16))
    weight.copy_(update)
