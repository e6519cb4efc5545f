"""The attention function that transformers calls for a packed row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import eager_mask, sdpa_mask

from ampft.models.packing.kernels import ONE_CALL, choose_kernel, flash_attention
from ampft.models.packing.layout import AttentionOptions, PackedLayout, Rows
from ampft.precision.compilation import uncompiled

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
        packing: Layout of the sequences in the packed row.
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
    dtype = compute_dtype(operands[2])
    rows = Rows(*(row.squeeze(0).transpose(0, 1).to(dtype) for row in operands))
    kernel = choose_kernel(rows, options, allows_one_call=packing.allows_one_call)
    if kernel in ONE_CALL and not packing.compiles_attention:
        packing.one_calls[kernel] = (rows.query.new_empty((0, *rows.query.shape[1:])), options)
    repeats = rows.query.shape[1] // rows.key.shape[1]
    if repeats > 1 and kernel is not flash_attention:
        key, value = (row.repeat_interleave(repeats, dim=1) for row in rows[1:])
        rows = Rows(rows.query, key, value)
    return kernel(rows, packing, options).unsqueeze(0)


_uncompiled_attention = uncompiled(_packed_attention)


def compute_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype in which autocast would run attention; without it, `tensor.dtype`.

    Rotated queries and keys are float32 even under autocast.
    """
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype
