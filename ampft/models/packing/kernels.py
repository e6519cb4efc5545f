"""PyTorch's variable-length attention kernels for GPUs."""

from __future__ import annotations

import warnings

import torch
from torch.nn import functional

from ampft.models.packing.layout import AttentionOptions, PackedLayout


def varlen_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: PackedLayout,
    options: AttentionOptions,
) -> torch.Tensor:
    """Compute attention by `torch.nn.attention.varlen` (flash attention), which has no dropout.

    Args:
        query: (N, heads, d), float16 or bfloat16, on a CUDA device.
        key: Same shape and dtype as `query`.
        value: Same shape and dtype as `query`.
        packing: Layout of the sequences in the row.
        options: Options without dropout.

    Returns:
        (N, heads, d).
    """
    # Imported here because it registers custom operators, which are not needed on a CPU.
    from torch.nn.attention.varlen import varlen_attn

    assert options.dropout == 0, "varlen_attn does not support dropout"
    window = options.sliding_window
    max_distance = -1 if window is None else window - 1
    longest = packing.lengths[-1]
    attended = varlen_attn(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        packing.offsets,
        packing.offsets,
        longest,
        longest,
        scale=options.scale,
        window_size=(max_distance, max_distance),
    )
    assert isinstance(attended, torch.Tensor)
    return attended


def nested_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: PackedLayout,
    options: AttentionOptions,
) -> torch.Tensor:
    """Compute attention by jagged nested tensors, with dropout but without a sliding window.

    Args:
        query: (N, heads, d), any floating dtype.
        key: Same shape and dtype as `query`.
        value: Same shape and dtype as `query`.
        packing: Layout of the sequences in the row.
        options: Options without a sliding window.

    Returns:
        (N, heads, d).
    """
    assert options.sliding_window is None, "nested tensors do not support a sliding window"
    with warnings.catch_warnings():
        # torch internally creates a strided nested tensor, and warns that these are a prototype.
        warnings.filterwarnings("ignore", message="The PyTorch API of nested tensors")
        attended = functional.scaled_dot_product_attention(
            _nested(query, packing),
            _nested(key, packing),
            _nested(value, packing),
            dropout_p=options.dropout,
            scale=options.scale,
        )
    return attended.transpose(1, 2).values()


def _nested(row: torch.Tensor, packing: PackedLayout) -> torch.Tensor:
    nested = torch.nested.nested_tensor_from_jagged(
        row.contiguous(),
        offsets=packing.offsets,
        min_seqlen=packing.lengths[0],
        max_seqlen=packing.lengths[-1],
    )
    return nested.transpose(1, 2)
