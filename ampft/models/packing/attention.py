"""Attention over a packed row, in which every token attends only to its own sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from ampft.models.packing.dropout import keep_mask, realised_probability
from ampft.models.packing.grouped import attention_plan, dropout_attention
from ampft.models.packing.kernels import has_varlen_kernel, varlen_attention
from ampft.models.packing.layout import AttentionOptions, GroupIndex, PackedLayout, SequenceGroup
from ampft.precision.emulation.attention import attention as emulated_attention

ATTENTION_NAME = "ampft_packed"


def register_packed_attention() -> None:
    """Register `ATTENTION_NAME` with transformers; repeated calls have no effect."""
    AttentionInterface.register(ATTENTION_NAME, packed_attention_forward)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)


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
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Compute attention for transformers; without `packing` this is exactly its `sdpa`.

    Args:
        module: The attention module.
        query: (1, heads, N, d) of the packed row; (B, heads, T, d) without `packing`.
        key: Same shape as `query`.
        value: Same shape as `query`.
        attention_mask: Mask, used only without `packing`.
        dropout: Probability that an attention weight is dropped; 0 outside training.
        scaling: Factor of the scores; None means d ** -0.5.
        packing: Layout of the sequences in the packed row.
        sliding_window: Tokens at most `sliding_window - 1` apart attend to each other; None for no
            limit.
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
            **kwargs,
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    options = AttentionOptions(dropout, scale, sliding_window)
    queries, keys, values = (row.squeeze(0).transpose(0, 1) for row in (query, key, value))
    kernel = choose_kernel((queries, keys, values), options)
    attended = kernel(queries, keys, values, packing, options)
    return attended.unsqueeze(0), None


class AttentionKernel(Protocol):
    """Attention over (N, heads, d) rows of packed sequences."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        packing: PackedLayout,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Return (N, heads, d)."""


def choose_kernel(rows: Sequence[torch.Tensor], options: AttentionOptions) -> AttentionKernel:
    """Choose the attention kernel for the device, dtype, head size and options.

    On a CPU, float16 with dropout is emulated with the same dropout masks as other precisions.
    float16 without dropout uses torch's `scaled_dot_product_attention`, which the emulation
    replaces. Evaluation uses it too, because torch's fused kernel computes scores in float32.

    Args:
        rows: Query, key and value.
        options: Options of the attention.
    """
    dropout = options.dropout
    dtype, device = rows[0].dtype, rows[0].device.type
    if device == "cpu" and dtype == torch.float16 and dropout > 0:
        return binary16_attention
    if device == "cpu":
        trains = torch.is_grad_enabled() and any(row.requires_grad for row in rows)
        use_fast_dropout = dtype in (torch.float32, torch.bfloat16) and (trains or dropout > 0)
        return dropout_attention if use_fast_dropout else grouped_attention
    if device == "cuda" and dropout == 0 and has_varlen_kernel(rows[0]):
        return varlen_attention
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
        group, index = packing.groups[number], packing.group_indices[number]
        mask = group_mask(group, index, options.sliding_window, query.device)
        return functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, dropout_p=options.dropout, scale=options.scale
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
    Arguments and result are those of `dropout_attention`, in float16 and with dropout above 0.
    """
    plan = attention_plan(packing, query.shape[1], options.sliding_window)
    is_kept = keep_mask(plan.score_count, options.dropout, query.dtype).view(torch.int16) != 0

    def attend(
        number: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        group, index = packing.groups[number], packing.group_indices[number]
        return emulated_attention(
            queries,
            keys,
            values,
            mask=group_mask(group, index, options.sliding_window, query.device),
            keep_mask=plan.spans[number].score_matrices(is_kept),
            dropout_p=realised_probability(options.dropout),
            scale=options.scale,
        )

    return _attend_by_group(attend, (query, key, value), packing)


def _attend_by_group(
    attend: Callable[..., torch.Tensor], rows: Sequence[torch.Tensor], packing: PackedLayout
) -> torch.Tensor:
    """Call `attend` with the number and the cells of each group; return (N, heads, d)."""
    parts = []
    for number, (group, index) in enumerate(
        zip(packing.groups, packing.group_indices, strict=True)
    ):
        attended = attend(number, *(group_cells(row, group, index) for row in rows))
        cells = attended.transpose(1, 2).flatten(0, 1)
        parts.append(cells if index is None else cells.index_select(0, index.real))
    return torch.cat(parts)


def group_cells(row: torch.Tensor, group: SequenceGroup, index: GroupIndex | None) -> torch.Tensor:
    """Return (c, heads, L, d) cells of a group from an (N, heads, d) row."""
    if index is None:
        cells = row.narrow(0, group.start, group.tokens)
    else:
        cells = row.index_select(0, index.padded)
    return cells.unflatten(0, (len(group.lengths), group.longest)).transpose(1, 2)


def group_mask(
    group: SequenceGroup,
    index: GroupIndex | None,
    sliding_window: int | None,
    device: torch.device,
) -> torch.Tensor | None:
    """Return the mask of visible keys, broadcastable to (c, 1, L, L); `None` if all are visible."""
    visible = None if index is None else index.visible
    if sliding_window is None or group.longest <= sliding_window:
        return visible
    position = torch.arange(group.longest, device=device)
    near = (position[:, None] - position).abs() < sliding_window
    return near if visible is None else near & visible
