"""Gradients with known noise and known errors, without a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ampft.checks.blocks import ParameterBlocks
from ampft.lab.yardstick.figures import StepGradient

SHAPES = {"first.weight": (30, 20), "first.bias": (20,), "second.weight": (7, 11)}
BLOCKS = ParameterBlocks(
    ("first", "second"), {"first.weight": 0, "first.bias": 0, "second.weight": 1}, (620, 77)
)


def draw(seed: int, scale: float) -> dict[str, torch.Tensor]:
    """Return independent normal entries with standard deviation `scale`."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: scale * torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in SHAPES.items()
    }


def added(*gradients: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: sum(gradient[name] for gradient in gradients) for name in SHAPES}


def norm(gradient: dict[str, torch.Tensor]) -> float:
    return float(torch.cat([part.flatten() for part in gradient.values()]).norm())


@dataclass(frozen=True)
class Planted:
    """A mode whose error in a batch is a constant bias plus an independent part."""

    bias: float
    spread: float
    noise: float = 1.0
    signal: float = 3.0
    seed: int = 0

    def exact(self, batch: int) -> StepGradient:
        return StepGradient(
            added(draw(self.seed, self.signal), draw(self.seed + 1000 + batch, self.noise))
        )

    def __call__(self, batch: int) -> StepGradient:
        errors = draw(self.seed + 1, self.bias), draw(self.seed + 5000 + batch, self.spread)
        return StepGradient(added(self.exact(batch).gradient, *errors))
