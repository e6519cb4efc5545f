"""The placebo of a comparison: the same weights, each off by the least that its dtype can tell."""

from __future__ import annotations

import math

import torch
from torch import nn


def perturb_weights(model: nn.Module, seed: int) -> None:
    """Move every trainable weight by one unit in its last place, up or down at random.

    Chaos can let two trainings that differ by so little end apart (Summers and Dinneen, 2021,
    "Nondeterminism and Instability in Neural Network Optimization"), so that their difference is
    the yardstick for every other.

    Zeros stay: a relative error of nothing is nothing, and a subnormal number in the place of a
    zero is slow on a CPU. Buffers and frozen weights stay too: they are no starting point of the
    training. Torch's global generator is not touched, so that dropout draws what it would have.

    Args:
        model: Its trainable floating-point parameters change in place; a tied one moves once.
        seed: Of a generator on the CPU, so that every process and device moves alike.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                up = torch.randint(2, parameter.shape, generator=generator, dtype=torch.bool)
                parameter.copy_(_next_to(parameter, up.to(parameter.device)))


def _next_to(weight: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    limit = torch.full_like(weight, math.inf)
    moved = torch.nextafter(weight, torch.where(up, limit, -limit))
    # The largest finite number has no finite neighbour on its far side.
    return torch.where((weight == 0) | ~moved.isfinite(), weight, moved)
