"""A case for the doctor: a model, batches and a loss, to be computed in several precisions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ampft.precision.resolve import Precision

Loss = Callable[[nn.Module, Any], Tensor]
"""Called with the model and a batch; returns a scalar."""


@dataclass(frozen=True)
class Case:
    """A model, batches and a loss.

    Attributes:
        model: Model that autocast has not wrapped.
        batches: Batches: mappings or tuples of tensors, tensors, or anything with an attribute
            `inputs` that is such a mapping.
        loss: Function that returns the loss of a batch whose gradient is examined.
        begin: Function that is called with the position of a batch before each of its passes, and
            sets the random state, so that dropout is the same in all of them.
    """

    model: nn.Module
    batches: Sequence[Any]
    loss: Loss
    begin: Callable[[int], object] = torch.manual_seed

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    def differentiate(self, batch: Any, precision: Precision, *, scale: float = 1.0) -> Tensor:
        """Add the gradient of one batch, as a training in `precision` computes it.

        Args:
            batch: One of the batches.
            precision: Precision; its products are emulated only inside `numerics(precision)`.
            scale: Loss scale, by which the gradients remain multiplied.

        Returns:
            The loss without the scale, detached.
        """
        # The backward pass runs outside of autocast, as in a training.
        with torch.autocast(
            precision.device_type,
            dtype=precision.compute_dtype if precision.uses_autocast else torch.bfloat16,
            enabled=precision.uses_autocast,
        ):
            loss = self.loss(self.model, batch)
        (loss * scale).backward()
        return loss.detach()


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Return a context after which gradients, buffers and random states are as before."""
    gradients = [parameter.grad for parameter in model.parameters()]
    buffers = [buffer.clone() for buffer in model.buffers()]
    on_cuda = next(model.parameters()).device.type == "cuda"
    try:
        # Named devices, because torch warns if it is left to choose among several.
        with torch.random.fork_rng(range(torch.cuda.device_count()) if on_cuda else ()):
            yield
    finally:
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(value)
