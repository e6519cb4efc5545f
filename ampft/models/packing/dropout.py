"""Dropout with masks that are fast to draw on a CPU.

On a CPU torch draws one Bernoulli variable per element, at four nanoseconds each. Together the
masks took 13 % of a training step of MiniLM without padding. Here one 64-bit draw of torch's own
generator decides about four elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MethodType

import torch
from torch import nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional

from ampft.precision.compilation import uncompiled

# 16 random bits per element: the probability is rounded to a multiple of 2**-16. The scale is
# computed from the rounded probability, which preserves the expectation.
_LEVELS = 2**16
# Bit patterns of 1.0, which turn an integer 0 or 1 into a mask without a conversion.
_ONE_BITS = {torch.float16: 0x3C00, torch.bfloat16: 0x3F80}


def realised_probability(p: float) -> float:
    """Return the probability that `keep_mask` drops an element: `p` rounded to 2**-16."""
    return round(p * _LEVELS) / _LEVELS


def keep_mask(count: int, p: float, dtype: torch.dtype) -> torch.Tensor:
    """Draw the mask of the elements that are kept, from torch's default CPU generator.

    Args:
        count: Number of elements.
        p: Probability that an element is dropped, in [0, 1).
        dtype: Dtype of the tensor to be multiplied by the mask.

    Returns:
        (count,) zeros and ones: float16 for float16, and otherwise bfloat16, which multiplication
        promotes.
    """
    mask_dtype = torch.float16 if dtype == torch.float16 else torch.bfloat16
    words = torch.empty(math.ceil(count / 4), dtype=torch.int64).random_(-(2**63), None)
    bits = words.view(torch.int16)[:count]
    is_kept = bits.ge_(round(p * _LEVELS) - _LEVELS // 2)
    return is_kept.mul_(_ONE_BITS[mask_dtype]).view(mask_dtype)


def dropout(inputs: torch.Tensor, p: float) -> torch.Tensor:
    """Zero each element with probability `p` and scale the rest by 1 / (1 - p).

    Args:
        inputs: Floating-point tensor of any shape.
        p: Probability in [0, 1], rounded to a multiple of 2**-16.

    Returns:
        A tensor with the shape and dtype of `inputs`. Dropped infinities and NaN become NaN, as in
        torch, so that dropout does not hide them.
    """
    is_fast = inputs.device.type == "cpu" and inputs.dtype in _FAST_DTYPES and 0 < p < 1
    if not is_fast or realised_probability(p) in (0, 1):
        return functional.dropout(inputs, p, training=True)
    return _fast_dropout(inputs, p)


# Compiled code calls this as it is. As an operator of a compiled graph it would be wrong: torch
# (2.13) merges two equal calls of a random operator that it does not know, and so their masks.
@uncompiled
def _fast_dropout(inputs: torch.Tensor, p: float) -> torch.Tensor:
    result: torch.Tensor = _Dropout.apply(inputs, p)
    return result


_FAST_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, inputs: torch.Tensor, p: float) -> torch.Tensor:
        mask = keep_mask(inputs.numel(), p, inputs.dtype).view(inputs.shape)
        ctx.save_for_backward(mask)
        ctx.scale = 1 / (1 - realised_probability(p))  # type: ignore[attr-defined]
        return (inputs * mask).mul_(ctx.scale)  # type: ignore[attr-defined]

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (mask,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return (grad * mask).mul_(ctx.scale), None  # type: ignore[attr-defined]


def install_fast_dropout(module: nn.Module) -> Callable[[], None]:
    """Make every `nn.Dropout` in `module` draw its masks fast.

    Args:
        module: Module whose dropout layers change; their class, probability and training state do
            not.

    Returns:
        A function that reverts the change.
    """
    changed = [layer for layer in module.modules() if type(layer) is nn.Dropout]
    for layer in changed:
        layer.forward = MethodType(_forward, layer)  # type: ignore[method-assign]

    def undo() -> None:
        for layer in changed:
            layer.__dict__.pop("forward", None)

    return undo


def _forward(layer: nn.Dropout, inputs: torch.Tensor) -> torch.Tensor:
    return dropout(inputs, layer.p) if layer.training and layer.p > 0 else inputs
