"""Attention over a packed row, in which every token attends only to its own sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from ampft.models.packing.dropout import keep_mask, realised_probability
from ampft.models.packing.grouped import attention_plan, dropout_attention
from ampft.models.packing.kernels import (
    AttentionKernel,
    efficient_attention,
    flash_attention,
    has_efficient_kernel,
    has_flash_kernel,
)
from ampft.models.packing.layout import AttentionOptions, PackedLayout
from ampft.precision.compilation import uncompiled
from ampft.precision.emulation.attention import attention as emulated_attention

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
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packing: PackedLayout | None = None,
    sliding_window: int | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention for transformers; without `packing` this is exactly its `sdpa`.

    Args:
        module: The attention module; with `is_causal`, tokens attend only to earlier ones.
        query: (1, heads, N, d) of the packed row; (B, heads, T, d) without `packing`.
        key: Same shape as `query`, with as many heads or fewer, each for several of the queries'.
        value: Same shape as `key`.
        attention_mask: Mask, used only without `packing`.
        dropout: Probability that an attention weight is dropped; 0 outside training.
        scaling: Factor of the scores; None means d ** -0.5.
        packing: Layout of the sequences in the packed row.
        sliding_window: Tokens at most `sliding_window - 1` apart attend to each other; None for no
            limit.
        position_bias: (1, heads, L, L), added to the scores, or (1, heads, 1, 1), which has no
            effect; None for no bias.
        **kwargs: Arguments of `sdpa`, used only without `packing`.

    Returns:
        The output, (1, N, heads, d), and None in place of the attention weights.
    """
    if packing is None:
        return sdpa_attention_forward(
            module,
            query,
            key,
            value,
            attention_mask,
            dropout=dropout,
            scaling=scaling,
            sliding_window=sliding_window,
            position_bias=position_bias,
            **kwargs,
        )
    return _packed_attention(
        module, query, key, value, packing, dropout, scaling, sliding_window, position_bias
    ), None


# Attention is not compiled, because the groups differ from step to step.
@uncompiled
def _packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: PackedLayout,
    dropout: float,
    scaling: float | None,
    sliding_window: int | None,
    position_bias: torch.Tensor | None,
) -> torch.Tensor:
    options = AttentionOptions(
        dropout=dropout,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        sliding_window=sliding_window,
        causal=bool(getattr(module, "is_causal", False)),
        position_bias=_effective_bias(position_bias),
    )
    dtype = compute_dtype(value)
    queries, keys, values = (
        row.squeeze(0).transpose(0, 1).to(dtype) for row in (query, key, value)
    )
    kernel = choose_kernel(
        (queries, keys, values), options, allows_one_call=packing.allows_one_call
    )
    if kernel in ONE_CALL:
        packing.one_calls[kernel] = (queries.new_empty((0, *queries.shape[1:])), options)
    repeats = queries.shape[1] // keys.shape[1]
    if repeats > 1 and kernel is not flash_attention:
        keys, values = (row.repeat_interleave(repeats, dim=1) for row in (keys, values))
    attended = kernel(queries, keys, values, packing, options)
    return attended.unsqueeze(0)


def _effective_bias(position_bias: torch.Tensor | None) -> torch.Tensor | None:
    """Return the bias as (heads, L, L); None if it is one value per head, which softmax ignores."""
    if position_bias is None or position_bias.shape[-2:] == (1, 1):
        return None
    return position_bias.squeeze(0)


def compute_dtype(tensor: torch.Tensor) -> torch.dtype:
    """Return the dtype in which autocast would run attention; without it, `tensor.dtype`.

    Rotated queries and keys are float32 even under autocast.
    """
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype


ONE_CALL = (flash_attention, efficient_attention)
"""Kernels that compute the whole row in one call."""


def choose_kernel(
    rows: Sequence[torch.Tensor], options: AttentionOptions, *, allows_one_call: bool = True
) -> AttentionKernel:
    """Choose the attention kernel for the device, dtype, head size and options.

    On a CPU, float16 with dropout is emulated with the same dropout masks as other precisions.
    float16 without dropout uses torch's `scaled_dot_product_attention`, which the emulation
    replaces. Evaluation uses it too, because torch's fused kernel computes scores in float32.

    Args:
        rows: Query, key and value.
        options: Options of the attention.
        allows_one_call: Whether to choose kernels that compute the whole row in one call.
    """
    dropout = options.dropout
    dtype, device = rows[0].dtype, rows[0].device.type
    if device == "cpu" and dtype == torch.float16 and dropout > 0:
        return binary16_attention
    if device == "cpu":
        trains = torch.is_grad_enabled() and any(row.requires_grad for row in rows)
        use_fast_dropout = dtype in (torch.float32, torch.bfloat16) and (trains or dropout > 0)
        return dropout_attention if use_fast_dropout else grouped_attention
    if allows_one_call and has_flash_kernel(rows[0], options):
        return flash_attention
    if allows_one_call and has_efficient_kernel(rows[0], options):
        return efficient_attention
    return grouped_attention


def grouped_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: PackedLayout,
    options: AttentionOptions,
) -> torch.Tensor:
    """Compute attention in groups of similar length, by torch's `scaled_dot_product_attention`.

    Args:
        query: (N, heads, d).
        key: (N, heads, d).
        value: (N, heads, d).
        packing: Layout of the sequences in the row.
        options: Any options.

    Returns:
        (N, heads, d).
    """

    def attend(
        number: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        # Fused kernels know this rule, but no other mask.
        is_causal = options.is_only_causal(packing.groups[number].longest)
        mask = None if is_causal else group_mask(packing, number, options)
        mask = mask if mask is None or mask.dtype == torch.bool else mask.to(queries.dtype)
        return functional.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            dropout_p=options.dropout,
            is_causal=is_causal,
            scale=options.scale,
        )

    return _attend_by_group(attend, (query, key, value), packing)


def binary16_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: PackedLayout,
    options: AttentionOptions,
) -> torch.Tensor:
    """Compute attention in emulated binary16, with the dropout mask of `dropout_attention`.

    Runs that differ only in precision therefore draw the same masks, here and in later layers.
    Takes and returns the same as `dropout_attention`, in float16 and with dropout above 0.
    """
    plan = attention_plan(packing, query.shape[1], options)
    is_kept = keep_mask(plan.score_count, options.dropout, query.dtype).view(torch.int16) != 0

    def attend(
        number: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        return emulated_attention(
            queries,
            keys,
            values,
            mask=group_mask(packing, number, options),
            keep_mask=plan.spans[number].score_matrices(is_kept),
            dropout_p=realised_probability(options.dropout),
            scale=options.scale,
        )

    return _attend_by_group(attend, (query, key, value), packing)


def _attend_by_group(
    attend: Callable[..., torch.Tensor], rows: Sequence[torch.Tensor], packing: PackedLayout
) -> torch.Tensor:
    """Call `attend` with the number and the cells of each group; return (N, heads, d)."""
    attended = [
        attend(number, *(cells.transpose(1, 2) for cells in group)).transpose(1, 2)
        for number, group in enumerate(packing.cells(rows))
    ]
    return packing.row_of(attended)


def group_mask(
    packing: PackedLayout, number: int, options: AttentionOptions
) -> torch.Tensor | None:
    """Return the mask of a group, broadcastable to (c, heads, L, L); `None` if it has no effect.

    It is boolean, True where a key is visible, or floating where there is a bias, to be added.
    """
    key = (number, options.sliding_window, options.causal)
    if key not in packing.masks:
        packing.masks[key] = _visible(packing, number, options)
    visible, length = packing.masks[key], packing.groups[number].longest
    if options.position_bias is None:
        return visible
    bias = options.position_bias[:, :length, :length]
    return bias if visible is None else bias.masked_fill(~visible, -torch.inf)


def _visible(packing: PackedLayout, number: int, options: AttentionOptions) -> torch.Tensor | None:
    index = packing.group_indices[number]
    near = options.visible_positions(packing.groups[number].longest, packing.device)
    if index is None or near is None:
        return near if index is None else index.visible
    return index.visible & near
