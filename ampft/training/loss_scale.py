"""The gradient at the largest loss scale at which it is finite, as a GradScaler would find it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from ampft.training.step import MIN_LOSS_SCALE


@dataclass(frozen=True)
class ScaledGradient:
    """What a forward and a backward pass computed.

    Attributes:
        loss: The loss.
        gradient: Gradient of each parameter by name, without the loss scale.
        scale: Loss scale.
        output: First floating tensor that the model returned, float32; None if it was not kept.
    """

    loss: float
    gradient: Mapping[str, Tensor]
    scale: float = 1.0
    output: Tensor | None = None

    @property
    def is_finite(self) -> bool:
        """Whether the loss and the whole gradient are finite."""
        parts = self.gradient.values()
        return math.isfinite(self.loss) and all(bool(part.isfinite().all()) for part in parts)


def lowered_scales(initial: float | None, *, factor: float = 2.0) -> tuple[float, ...]:
    """Return the loss scales that a training tries, the initial one first.

    Args:
        initial: Scale at which a scaler starts; None without a scaler, whose only scale is 1.
        factor: Ratio of successive scales.
    """
    scales = [1.0 if initial is None else initial]
    while scales[-1] / factor >= MIN_LOSS_SCALE:
        scales.append(scales[-1] / factor)
    return tuple(scales)


def finite_gradient(
    compute: Callable[[float], ScaledGradient], scales: Iterable[float]
) -> ScaledGradient:
    """Return the first finite gradient; the last one computed if none is finite.

    A loss that is not finite is so at every scale, so no further scale is tried.

    Args:
        compute: Function that computes the gradient at a loss scale.
        scales: Loss scales, of which there is at least one, in the order in which they are tried.
    """
    for scale in scales:
        result = compute(scale)
        if result.is_finite or not math.isfinite(result.loss):
            break
    return result
