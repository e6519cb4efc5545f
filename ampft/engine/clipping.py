"""The L2 norm of a gradient, and clipping to a limit, in one pass over the gradient on a CPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ampft.precision.accelerator import is_sharded

if TYPE_CHECKING:
    from accelerate import Accelerator

EPSILON = 1e-6  # added to the norm, as in `torch.nn.utils.clip_grad_norm_`


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the L2 norm of all gradients together, on a CPU.

    Each row of a matrix is summed by itself. torch adds up all squares of a tensor in few float32
    sums, so that its norm of 11.7 million elements is wrong by 5e-4
    (`benchmarks/LOG.md`, "The norm of the gradient on a CPU"), and takes twice as long.

    Args:
        gradients: Dense floating-point tensors of any shape, at least one.

    Returns:
        A scalar: float64 if a gradient is, and otherwise float32.
    """
    of_rows = []
    for gradient in gradients:
        dtype = torch.promote_types(gradient.dtype, torch.float32)
        rows = gradient.flatten(1) if gradient.ndim > 1 else gradient.reshape(1, -1)
        of_rows.append(torch.linalg.vector_norm(rows, dim=1, dtype=dtype))
    return torch.linalg.vector_norm(torch.cat(of_rows))


def clip_gradient(
    accelerator: Accelerator, parameters: Iterable[nn.Parameter], limit: float, optimizer: Any
) -> tuple[Tensor, Tensor | None]:
    """Scale the unscaled gradient down to an L2 norm of at most `limit`, or leave it to the update.

    On a CPU without a loss scaler, a gradient below the limit is not written again, and a fused
    optimizer scales it where it reads it anyway. Everything else is Accelerate's.

    Args:
        accelerator: Accelerator that prepared the model.
        parameters: Parameters of the prepared model.
        limit: Limit of the norm.
        optimizer: Optimizer, not prepared.

    Returns:
        The norm before, and by what the update has to divide the gradient: `scaled_by_update`
        takes it. None if the gradient has been clipped here, or not at all.
    """
    parameters = list(parameters)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    is_plain = accelerator.scaler is None and not is_sharded(accelerator)
    if not (is_plain and gradients and all(_is_plain(gradient) for gradient in gradients)):
        return accelerator.clip_grad_norm_(parameters, limit), None
    norm = gradient_norm(gradients)
    divisor = (norm + EPSILON) / limit
    if not (torch.isfinite(norm) and divisor > 1):  # a step that is not finite is skipped
        return norm, None
    if _scales(optimizer, gradients):
        return norm, divisor.float()
    torch._foreach_mul_(gradients, float(1 / divisor))
    return norm, None


def _is_plain(gradient: Tensor) -> bool:
    is_dense = gradient.layout == torch.strided and not isinstance(gradient, DTensor)
    return is_dense and gradient.device.type == "cpu"


def _scales(optimizer: Any, gradients: Sequence[Tensor]) -> bool:
    """Return whether an optimizer of torch divides each of the gradients by its `grad_scale`."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    updated = {id(p.grad) for group in optimizer.param_groups for p in group["params"]}
    return all(id(gradient) in updated for gradient in gradients)


@contextmanager
def scaled_by_update(optimizer: Any, divisor: Tensor | None) -> Iterator[None]:
    """Return a context in which the update divides the gradient, and writes it back.

    Args:
        optimizer: Fused optimizer of torch, not prepared.
        divisor: The second result of `clip_gradient`.
    """
    if divisor is None:
        yield
        return
    optimizer.grad_scale = divisor
    try:
        yield
    finally:
        del optimizer.grad_scale
