"""Scaled dot product attention as a GPU computes it in 16 bits, forward and backward.

Query, key and value are binary16 or bfloat16. Scores are summed, scaled and masked in float32, and
softmax is computed in float32. Probabilities (after dropout) are rounded to 16 bits before the
product with the values, and the output is rounded once. In the backward pass, the gradients of the
scores are rounded to 16 bits before the products with keys and queries. Source: the forward and
backward passes of FlashAttention-2 (Dao, 2023, arXiv:2307.08691, algorithms 1 and 2). As there, the
backward pass recomputes the probabilities instead of storing them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_autograd

from ampft.emulation.kernels import autocast_excluded

Observer = Callable[[str, torch.dtype, torch.dtype, torch.dtype, str], None]
"""Called with kind, operand dtype, output dtype, accumulator dtype, `forward` or `backward`."""

Context = Any
"""Autograd's context object; any attribute may be set on it."""

observers: list[Observer] = []
"""Called for every product inside emulated attention, which a `TorchDispatchMode` cannot see."""


def _observe(direction: str, operand: torch.dtype, *outputs: torch.dtype) -> None:
    for observer in observers:
        for output in outputs:
            observer("attention", operand, output, torch.float32, direction)


def _matrices(tensor: Tensor) -> Tensor:
    """Return (..., L, D) in 16 bits as contiguous (B, L, D) float32, with a single copy."""
    return tensor.to(torch.float32, memory_format=torch.contiguous_format).flatten(0, -3)


def _rounded(matrices: Tensor, like: Tensor) -> Tensor:
    """Round (B, L, D) float32 once, to the dtype and shape of `like`, (..., H, L, D).

    Heads are adjacent in memory, as GPU kernels leave them, because the next operation merges them.
    """
    shaped = matrices.view(*like.shape[:-1], matrices.shape[-1])
    if shaped.dim() < 4:
        return shaped.to(like.dtype)
    swapped = shaped.transpose(-3, -2)
    return swapped.to(like.dtype, memory_format=torch.contiguous_format).transpose(-3, -2)


def _round_as(like: Tensor, tensor: Tensor) -> Tensor:
    """Round float32 to the nearest values of `like`'s dtype, as float32 for the product."""
    return tensor.to(like.dtype).float()


def _probabilities(
    query: Tensor, key: Tensor, mask: Tensor | None, leading: torch.Size, scale: float
) -> Tensor:
    """Return softmax(scale * query @ key^T + mask), (B, L, S) float32; zero in fully masked rows.

    Args:
        query: (B, L, D) float32.
        key: (B, S, D) float32.
        mask: Float32, broadcastable to (*leading, L, S), or None.
        leading: Dimensions that were flattened into B.
    """
    scores = torch.baddbmm(query.new_empty(()), query, key.mT, beta=0, alpha=scale)
    if mask is None:
        return torch.softmax(scores, -1)
    scores = scores.view(*leading, *scores.shape[-2:]).add_(mask)
    fully_masked = (mask == -math.inf).all(-1, keepdim=True)
    if not fully_masked.any():
        return torch.softmax(scores, -1).flatten(0, -3)
    scores = scores.masked_fill(fully_masked, 0.0)
    return torch.softmax(scores, -1).masked_fill(fully_masked, 0.0).flatten(0, -3)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    keep_mask: Tensor | None,
    dropout_p: float,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the output, in 16 bits, and the dropout mask, which is empty unless drawn here."""
    _observe("forward", query.dtype, torch.float32, query.dtype)
    with autocast_excluded():
        leading = query.shape[:-2]
        weights = _probabilities(_matrices(query), _matrices(key), mask, leading, scale)
        drawn_mask = weights.new_empty(0, dtype=torch.bool)
        if dropout_p > 0 and keep_mask is not None:
            weights = weights * (keep_mask / (1 - dropout_p))
        elif dropout_p > 0:
            weights, drawn_mask = torch.native_dropout(weights, dropout_p, True)
        output = torch.bmm(_round_as(query, weights), _matrices(value))
        return _rounded(output, query), drawn_mask


def _gradients(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    keep_mask: Tensor,
    dropout_p: float,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of query, key, value (16 bits) and scores ((B, L, S) float32).

    Only differentiable operations are used, so that the double backward can use it too.
    """
    q, k, grad = _matrices(query), _matrices(key), _matrices(grad_output)
    probabilities = _probabilities(q, k, mask, query.shape[:-2], scale)
    weights, grad_weights = probabilities, torch.bmm(grad, _matrices(value).mT)
    if dropout_p > 0:
        factors = keep_mask * (0.0 if dropout_p == 1 else 1 / (1 - dropout_p))
        weights, grad_weights = weights * factors, grad_weights * factors
    grad_value = torch.bmm(_round_as(query, weights).mT, grad)
    grad_scores = torch._softmax_backward_data(grad_weights, probabilities, -1, torch.float32)
    rounded = _round_as(query, grad_scores)
    ignored = query.new_empty((), dtype=torch.float32)  # because beta is 0
    grad_query = torch.baddbmm(ignored, rounded, k, beta=0, alpha=scale)
    grad_key = torch.baddbmm(ignored, rounded.mT, q, beta=0, alpha=scale)
    return (
        _rounded(grad_query, query),
        _rounded(grad_key, key),
        _rounded(grad_value, value),
        grad_scores,
    )


def _backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    keep_mask: Tensor,
    dropout_p: float,
    scale: float,
    mask_needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of query, key, value and mask (empty unless `mask_needs_grad`)."""
    half = query.dtype
    _observe("backward", half, torch.float32, half, torch.float32, half, half)
    with autocast_excluded():
        grad_query, grad_key, grad_value, grad_scores = _gradients(
            grad_output, query, key, value, mask, keep_mask, dropout_p, scale
        )
        grad_mask = grad_scores.new_empty(0)
        if mask is not None and mask_needs_grad:
            grad_mask = grad_scores.view(*query.shape[:-2], *grad_scores.shape[-2:])
            grad_mask = grad_mask.sum_to_size(mask.shape).clone()
        return grad_query, grad_key, grad_value, grad_mask


def _save_inputs(ctx: Context, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, keep_mask, ctx.dropout_p, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, mask, output[1] if keep_mask is None else keep_mask)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Context, grad_output: Tensor, _: object) -> tuple[Tensor | None, ...]:
    mask_needs_grad = ctx.needs_input_grad[3]
    *gradients, grad_mask = torch.ops.ampft.attention_backward(
        grad_output, *ctx.saved_tensors, ctx.dropout_p, ctx.scale, mask_needs_grad
    )
    return *gradients, grad_mask if mask_needs_grad else None, None, None, None


def _save_backward_inputs(ctx: Context, inputs: tuple[Any, ...], output: object) -> None:
    *tensors, ctx.dropout_p, ctx.scale, ctx.mask_needs_grad = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_twice(ctx: Context, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    if ctx.mask_needs_grad:
        raise NotImplementedError(
            "emulated attention has no second derivative if the attention mask requires a "
            "gradient. Detach the mask, or compute the gradient penalty without attention."
        )
    *inputs, mask, keep_mask = ctx.saved_tensors
    with torch.enable_grad(), autocast_excluded():
        leaves = grad, query, key, value = [tensor.detach().requires_grad_() for tensor in inputs]
        outputs = _gradients(grad, query, key, value, mask, keep_mask, ctx.dropout_p, ctx.scale)
    pairs = [(o, g) for o, g in zip(outputs[:3], grads[:3], strict=True) if g is not None]
    gradients = torch.autograd.grad(
        [output for output, _ in pairs], leaves, [grad for _, grad in pairs], allow_unused=True
    )
    return *gradients, None, None, None, None, None


@cache
def _operators() -> Library:
    """Define `ampft::attention` and its backward operator, on first use."""
    library = Library("ampft", "FRAGMENT")
    operands = "Tensor query, Tensor key, Tensor value, Tensor? mask"
    library.define(
        f"attention({operands}, Tensor? keep_mask, float dropout_p, float scale) "
        "-> (Tensor, Tensor)"
    )
    library.define(
        f"attention_backward(Tensor grad_output, {operands}, Tensor keep_mask, float dropout_p, "
        "float scale, bool mask_needs_grad) -> (Tensor, Tensor, Tensor, Tensor)"
    )
    library.impl("attention", _forward, "CPU")
    library.impl("attention_backward", _backward, "CPU")
    register_autograd("ampft::attention", _differentiate, setup_context=_save_inputs, lib=library)
    register_autograd(
        "ampft::attention_backward",
        _differentiate_twice,
        setup_context=_save_backward_inputs,
        lib=library,
    )
    return library


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    keep_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Compute softmax(scale * query @ key^T + mask) @ value as a GPU does in 16 bits.

    It works inside and outside `Emulation` and autocast, and is twice differentiable.

    Args:
        query: (..., L, D) on a CPU; all three are rounded to bfloat16 if this is bfloat16, and
            otherwise to float16.
        key: (..., S, D). Its leading dimensions must be broadcastable to `query`'s.
        value: (..., S, V). Its leading dimensions must be broadcastable to `query`'s.
        mask: Tensor broadcastable to (..., L, S): boolean, True where a key takes part, or
            floating, added to the scores in float32. A fully masked row has an output of zero.
        keep_mask: (B, L, S) bool, with the leading dimensions flattened into B: the attention
            weights that dropout keeps, each with probability 1 - `dropout_p`. None draws it here.
        dropout_p: Probability that an attention weight is dropped; 0 in evaluation.
        scale: Factor of the scores; None means D ** -0.5.

    Returns:
        (..., L, V), bfloat16 if `query` is, otherwise float16.
    """
    _operators()
    if query.dim() < 3:
        query = query.unsqueeze(0)
        options = {"mask": mask, "keep_mask": keep_mask}
        return attention(query, key, value, **options, dropout_p=dropout_p, scale=scale)[0]
    leading = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    dtype = torch.bfloat16 if query.dtype is torch.bfloat16 else torch.float16
    operands = [
        tensor.to(dtype).expand(*leading, *tensor.shape[-2:]) for tensor in (query, key, value)
    ]
    if mask is not None and mask.dtype is torch.bool:  # in float32: 0, or -inf where it is hidden
        mask = torch.zeros(mask.shape).masked_fill_(~mask, -math.inf)
    elif mask is not None:
        mask = mask.float()
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    with autocast_excluded():
        output, _ = torch.ops.ampft.attention(*operands, mask, keep_mask, dropout_p, factor)
    return output
