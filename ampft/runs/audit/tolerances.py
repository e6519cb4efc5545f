"""How much a repeated number may differ on another machine, by dtype of the products.

On the machine of a run (the same CPU, versions, threads and processes) equal code gives equal
digits, and nothing may differ. Elsewhere, other kernels add in another order, and round each
product of a 16-bit dtype differently.

Measured: 20 steps of MiniLM on docstrings (batch 16, learning rate 2e-4), with AVX-512 against the
kernels for AVX2. Largest relative difference of the loss, of the gradient norm, and largest
difference of a probability:

    float32     1e-7     1e-7     2e-8
    float16     5e-6     7e-5     1e-5
    bfloat16    4e-5     8e-4     9e-5

The tolerances are about 40 to 500 times that, because models and machines differ more. They are far
below the effect of another seed, learning rate or data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Tolerance:
    """Largest differences that rounding explains.

    Attributes:
        loss: Relative difference of the loss of a step.
        grad_norm: Relative difference of the gradient norm of a step.
        probability: Difference of a probability.
    """

    loss: float
    grad_norm: float
    probability: float


TOLERANCES = {
    torch.float32: Tolerance(loss=1e-5, grad_norm=1e-5, probability=1e-5),
    torch.float16: Tolerance(loss=2e-4, grad_norm=3e-3, probability=1e-3),
    torch.bfloat16: Tolerance(loss=2e-3, grad_norm=3e-2, probability=1e-2),
}
# TF32 keeps 10 bits of a fraction, like float16; fp8 keeps 3.
TF32_TOLERANCE = TOLERANCES[torch.float16]
FP8_TOLERANCE = Tolerance(loss=3e-2, grad_norm=0.3, probability=0.1)

# Counted metrics are equal on every machine. Means of logarithms differ by the order of a sum.
SUM_TOLERANCE = 1e-9

# An overflow depends on the largest of all gradients, so that rounding can move it to the step
# before or after, between which the scale differs by one halving.
LOSS_SCALE_FACTOR = 2.0

# AdamW amplifies rounding from step to step, the more the higher the learning rate. By how much is
# measured: the replay is repeated from weights that differ by one rounding to the compute dtype.
AMPLIFIED_REPLAYS = 2
AMPLIFICATION = 4.0  # other machines round in every step, not only once

# Dropout draws other masks on another kind of device or with another number of processes. Then the
# replay is repeated with other masks. The record must not be further from their mean than this
# many standard deviations; by chance, one of 20 normal values is beyond 6 once in 25 million runs.
MASK_REPLAYS = 4
MASK_DEVIATIONS = 6.0
NEIGHBOURS = 2  # steps before and after, whose variances are averaged


def tolerance_of(dtype: torch.dtype, *, allows_tf32: bool = False) -> Tolerance:
    """Return the tolerance for products of a dtype; 8-bit dtypes have one in common."""
    if allows_tf32:
        return TF32_TOLERANCE
    return TOLERANCES.get(dtype, FP8_TOLERANCE)
