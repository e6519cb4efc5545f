"""Attention within the sequences of a packed row: the function for transformers, and its kernels.

On NVIDIA GPUs, two kernels compute the whole row in one call. torch's nested tensors call both.
They take the boundaries of the sequences, drop attention weights inside the kernel, and have a
backward pass. `torch.nn.attention.varlen` has no dropout, and the kernels of flash attention 3 and
4 ignore it. Everywhere else, attention runs in groups of sequences of similar length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from ampft.emulation.emulated_attention import attention as emulated_attention
from ampft.fast.packing.cpu_kernels import (
    attention_plan,
    dropout_attention,
    keep_mask,
    realised_probability,
)
from ampft.fast.packing.layout import AttentionOperands, AttentionOptions, PackedLayout, pack_layout
from ampft.precision.compilation import uncompiled

AttentionKernel: TypeAlias = Callable[[AttentionOperands, PackedLayout, AttentionOptions], Tensor]
"""Computes attention within each sequence of a packed row, and is differentiable once.

It receives the operands, the layout of the sequences in the row, and the options, and returns
(N, heads, d) with the dtype of the operands. The docstring of a kernel says what it supports.
"""

# Values of `CustomMaskType` in torch's mem_eff_attention: no mask, and keys up to the query.
_NO_MASK, _CAUSAL = 0, 1


def choose_kernel(
    rows: AttentionOperands, options: AttentionOptions, *, allows_one_call: bool = True
) -> AttentionKernel:
    """Choose the attention kernel for the device, dtype, head size and options.

    On a CPU, float16 with dropout is emulated with the same dropout masks as other precisions.
    float16 without dropout uses torch's `scaled_dot_product_attention`, which the emulation
    replaces. Evaluation uses it too, because torch's fused kernel computes scores in float32.

    Args:
        rows: Query, key and value.
        allows_one_call: Whether to choose kernels that compute the whole row in one call.
    """
    dropout, dtype = options.dropout, rows.query.dtype
    if rows.query.device.type != "cpu":
        one_call = one_call_kernel(rows.query, options) if allows_one_call else None
        return one_call or grouped_attention
    if dtype == torch.float16:
        return binary16_attention if dropout > 0 else grouped_attention
    trains = torch.is_grad_enabled() and any(row.requires_grad for row in rows)
    is_supported = dtype in (torch.float32, torch.bfloat16)
    return dropout_attention if is_supported and (trains or dropout > 0) else grouped_attention


def has_one_call_kernels(device: torch.device) -> bool:
    """Return whether a device has kernels for a whole row: only NVIDIA's have."""
    return device.type == "cuda" and torch.version.hip is None


def one_call_kernel(query: Tensor, options: AttentionOptions) -> AttentionKernel | None:
    """Return the kernel that computes a whole row in one call; None if none supports it.

    Flash attention has kernels for float16 and bfloat16, heads of 8, 16, ..., 256 elements, and
    compute capability 8.0 and above. Memory-efficient attention has kernels for float32 and
    float16 on every device, and for bfloat16 from 8.0, without a window: torch's (2.13) formula
    of its gradient forgets the window. Without dropout too: with boundaries, its forward pass
    takes the longest key to be 0 long, so that all heads and sequences drop the same weights, and
    its backward pass drops others (seen on an H200 with torch 2.11, pytorch#115590). Neither takes
    a bias together with boundaries of sequences.

    Args:
        query: (N, heads, d), on any device.
    """
    size, dtype = query.shape[-1], query.dtype
    has_bias = options.position_bias is not None
    if not has_one_call_kernels(query.device) or has_bias or size % 8 != 0:
        return None
    is_8_0 = torch.cuda.get_device_capability(query.device) >= (8, 0)
    if is_8_0 and dtype in (torch.float16, torch.bfloat16) and size <= 256:
        return flash_attention
    has_dtype = dtype in (torch.float32, torch.float16) or (is_8_0 and dtype == torch.bfloat16)
    is_right = options.sliding_window is None and options.dropout == 0
    return efficient_attention if has_dtype and is_right else None


def flash_attention(
    rows: AttentionOperands, packing: PackedLayout, options: AttentionOptions
) -> Tensor:
    """Compute attention by flash attention 2: float16 or bfloat16 on a CUDA device, without bias.

    The heads of keys and values may be fewer, each for several of the queries'.
    """
    assert options.position_bias is None, "flash attention does not support a bias"
    window = options.sliding_window
    max_distance = -1 if window is None else window - 1
    return torch.ops.aten._flash_attention_forward(
        *rows,
        packing.offsets,
        packing.offsets,
        packing.longest,
        packing.longest,
        options.dropout,
        options.causal,
        False,  # no debug mask
        scale=options.scale,
        window_size_left=max_distance,
        window_size_right=0 if options.causal else max_distance,
    )[0]


def efficient_attention(
    rows: AttentionOperands, packing: PackedLayout, options: AttentionOptions
) -> Tensor:
    """Compute attention by torch's memory-efficient attention on a CUDA device.

    It has neither a bias nor a window nor dropout: `one_call_kernel` says why.
    """
    assert options.position_bias is None, "boundaries of sequences exclude a bias"
    assert options.sliding_window is None, "the gradient of a window would be wrong"
    assert options.dropout == 0, "the gradient of dropout would be wrong"
    attended: Tensor = torch.ops.aten._efficient_attention_forward(
        *(row.unsqueeze(0) for row in rows),
        None,
        packing.offsets,
        packing.offsets,
        packing.longest,
        packing.longest,
        options.dropout,
        _CAUSAL if options.causal else _NO_MASK,
        True,  # the sums of the softmax, which the backward pass needs
        scale=options.scale,
    )[0]
    return attended.squeeze(0)


ONE_CALL = (flash_attention, efficient_attention)
"""Kernels that compute the whole row in one call."""


def grouped_attention(
    rows: AttentionOperands, packing: PackedLayout, options: AttentionOptions
) -> Tensor:
    """Compute attention in groups by torch's `scaled_dot_product_attention`, with any options."""

    def attend(number: int, group: AttentionOperands) -> Tensor:
        # Fused kernels know this rule, but no other mask.
        is_causal = options.is_only_causal(packing.groups[number].longest)
        mask = None if is_causal else group_mask(packing, number, options, group.query.dtype)
        return functional.scaled_dot_product_attention(
            *group,
            attn_mask=mask,
            dropout_p=options.dropout,
            is_causal=is_causal,
            scale=options.scale,
        )

    with _without_cudnn(rows.query.device):
        return _attend_by_group(attend, rows, packing)


def _without_cudnn(device: torch.device) -> AbstractContextManager[None]:
    """Return a context in which a CUDA device computes attention without cuDNN.

    cuDNN builds a plan for each new shape, and groups have new shapes in nearly every step. It has
    no gradient for a bias either.
    """
    if device.type != "cuda":
        return nullcontext()
    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(kernels)


def binary16_attention(
    rows: AttentionOperands, packing: PackedLayout, options: AttentionOptions
) -> Tensor:
    """Compute attention in emulated binary16, with the dropout mask of `dropout_attention`.

    Runs that differ only in precision therefore draw the same masks, here and in later layers. The
    operands are float16 on a CPU, and dropout is above 0.
    """
    plan = attention_plan(packing, rows.query.shape[1], options)
    is_kept = keep_mask(plan.score_count, options.dropout, torch.float16).view(torch.int16) != 0

    def attend(number: int, group: AttentionOperands) -> Tensor:
        return emulated_attention(
            *group,
            mask=group_mask(packing, number, options, torch.float16),
            keep_mask=plan.spans[number].score_matrices(is_kept),
            dropout_p=realised_probability(options.dropout),
            scale=options.scale,
        )

    return _attend_by_group(attend, rows, packing)


def _attend_by_group(
    attend: Callable[[int, AttentionOperands], Tensor],
    rows: AttentionOperands,
    packing: PackedLayout,
) -> Tensor:
    """Call `attend` with the number and the (c, heads, L, d) operands of each group."""
    attended = [
        attend(number, AttentionOperands(*(cells.transpose(1, 2) for cells in group))).transpose(
            1, 2
        )
        for number, group in enumerate(packing.cells(rows))
    ]
    return packing.row_of(attended)


def group_mask(
    packing: PackedLayout, number: int, options: AttentionOptions, dtype: torch.dtype
) -> Tensor | None:
    """Return the mask of a group, broadcastable to (c, heads, L, L); `None` if it has no effect.

    It is boolean, True where a key is visible. Where there is a bias, it is to be added, and has
    the dtype of the operands, as torch's `scaled_dot_product_attention` requires.
    """
    length = packing.groups[number].longest
    key = (number, options.sliding_window, options.causal)
    if key not in packing.masks:
        visible = options.visible_positions(length, packing.device)
        index = packing.group_indices[number]
        if index is not None:
            visible = index.visible if visible is None else index.visible & visible
        packing.masks[key] = visible
    visible = packing.masks[key]
    if options.position_bias is None:
        return visible
    bias = options.position_bias[:, :length, :length]
    mask = bias if visible is None else bias.masked_fill(~visible, -torch.inf)
    # Last, so that the gradients of the sequences are summed in the dtype of the bias.
    return mask.to(dtype)


# Sequences and heads from which the share of dropped weights is estimated, and its probability.
_SEQUENCES, _HEADS, _PROBABILITY = 2, 8, 0.25
_RECOMPUTED = 1e-3  # relative error of a weight that the backward pass computes anew


def problem_of_dropout(
    kernel: AttentionKernel, row: Tensor, options: AttentionOptions
) -> str | None:
    """Return the problem of a kernel's dropout; None if it is correct.

    The values are the identity, so that the output of a sequence is the matrix of its weights, and
    the gradient of the values is that matrix again, transposed, if the backward pass draws the
    same mask.

    Args:
        row: (N, heads, d), whose device, dtype and head size are used; d is at least 8.

    Returns:
        A clause: the share of dropped weights, their scale, or the backward pass is wrong.
    """
    size = row.shape[-1]
    layout = pack_layout(torch.ones(_SEQUENCES, size), device=row.device)
    assert layout is not None
    unit = torch.eye(size, dtype=row.dtype, device=row.device)
    values = unit.repeat(_SEQUENCES, 1)[:, None].expand(-1, _HEADS, -1).contiguous()
    zeros = torch.zeros_like(values)

    def weights(dropout: float) -> tuple[Tensor, Tensor]:
        leaf = values.clone().requires_grad_()
        with torch.enable_grad():
            output = kernel(
                AttentionOperands(zeros, zeros, leaf), layout, replace(options, dropout=dropout)
            )
            (gradient,) = torch.autograd.grad(output, leaf, values)
        by_sequence = [
            part.detach().float().unflatten(0, (_SEQUENCES, size)).transpose(1, 2)
            for part in (output, gradient)
        ]
        return by_sequence[0], by_sequence[1].mT

    whole, _ = weights(0.0)
    dropped, again = weights(_PROBABILITY)
    visible = whole > 0
    is_kept = dropped[visible] > 0
    share = 1 - float(is_kept.float().mean())
    deviation = math.sqrt(_PROBABILITY * (1 - _PROBABILITY) / is_kept.numel())
    tolerance = 8 * torch.finfo(row.dtype).eps
    if abs(share - _PROBABILITY) > 5 * deviation:
        return f"its kernel drops {share:.1%} of the weights instead of {_PROBABILITY:.0%}"
    scale, expected = dropped[visible][is_kept] / whole[visible][is_kept], 1 / (1 - _PROBABILITY)
    median = float(scale.median())
    if abs(median / expected - 1) > tolerance:
        return f"its kernel multiplies kept weights by {median:.3f} instead of {expected:.3f}"
    # The backward pass computes the weights anew, which rounds them differently. All are equal
    # here, so that a dropped one differs from a kept one by the whole of it.
    error = float((again - dropped).abs().max()) / float(dropped.max())
    if error > max(tolerance, _RECOMPUTED):
        return "its backward pass drops other weights than its forward pass"
    return None


ATTENTION_NAME = "ampft_packed"
# For families with their own attention code, which transformers calls "eager".
EAGER_ATTENTION_NAME = "ampft_packed_eager"
PACKED_NAMES = {"sdpa": ATTENTION_NAME, "eager": EAGER_ATTENTION_NAME}
"""Name of the packed attention for each attention implementation that it replaces."""


def register_packed_attention() -> None:
    """Register `PACKED_NAMES` with transformers; repeated calls have no effect."""
    AttentionInterface.register(ATTENTION_NAME, packed_attention_forward)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    AttentionMaskInterface.register(EAGER_ATTENTION_NAME, eager_mask)


def packed_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packing: PackedLayout | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention for transformers; without `packing` this is exactly its `sdpa`.

    Args:
        module: The attention module; with `is_causal`, tokens attend only to earlier ones.
        query: (1, heads, N, d) of the packed row; (B, heads, T, d) without `packing`.
        key: Same shape as `query`, with as many heads or fewer, each for several of the queries'.
        value: Same shape as `key`.
        attention_mask: Mask, used only without `packing`.
        **options: Arguments of `sdpa`. A packed row uses `dropout`; `scaling`, whose default is
            d ** -0.5; `sliding_window`; and `position_bias`, which is (1, heads, L, L) and added to
            the scores, or (1, heads, 1, 1), which has no effect.

    Returns:
        The output, (1, N, heads, d), and None in place of the attention weights.
    """
    if packing is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    # Groups differ from step to step. In a bucket, whole rows have few shapes.
    attend = _packed_attention if packing.compiles_attention else _uncompiled_attention
    return attend(module, (query, key, value), packing, **options), None


def _packed_attention(
    module: nn.Module,
    operands: tuple[Tensor, Tensor, Tensor],
    packing: PackedLayout,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> Tensor:
    if position_bias is not None:
        # Softmax ignores one value per head.
        is_one_value = position_bias.shape[-2:] == (1, 1)
        position_bias = None if is_one_value else position_bias.squeeze(0)
    options = AttentionOptions(
        dropout=dropout,
        scale=operands[0].shape[-1] ** -0.5 if scaling is None else scaling,
        sliding_window=sliding_window,
        causal=bool(getattr(module, "is_causal", False)),
        position_bias=position_bias,
    )
    device, dtype = operands[2].device.type, operands[2].dtype
    if torch.is_autocast_enabled(device):  # under which rotated queries and keys are float32
        dtype = torch.get_autocast_dtype(device)
    rows = AttentionOperands(*(row.squeeze(0).transpose(0, 1).to(dtype) for row in operands))
    kernel = choose_kernel(rows, options, allows_one_call=packing.allows_one_call)
    if kernel in ONE_CALL and not packing.compiles_attention:
        packing.one_calls[kernel] = (rows.query.new_empty((0, *rows.query.shape[1:])), options)
    repeats = rows.query.shape[1] // rows.key.shape[1]
    if repeats > 1 and kernel is not flash_attention:
        key, value = (row.repeat_interleave(repeats, dim=1) for row in rows[1:])
        rows = AttentionOperands(rows.query, key, value)
    return kernel(rows, packing, options).unsqueeze(0)


_uncompiled_attention = uncompiled(_packed_attention)
