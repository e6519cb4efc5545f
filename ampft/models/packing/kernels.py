"""Variable-length attention kernels of PyTorch for a GPU."""

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
    """Attention through `torch.nn.attention.varlen` (flash attention); it knows no dropout.

    Args:
        query: (N, heads, d), float16 or bfloat16, on a CUDA device.
        key: As `query`.
        value: As `query`.
        packing: The sequences of the row.
        options: Without dropout.

    Returns:
        (N, heads, d).
    """
    # Imported here: it registers custom operators, which a CPU never needs.
    from torch.nn.attention.varlen import varlen_attn

    assert options.dropout == 0, "varlen_attn drops no attention weights"
    window = options.sliding_window
    reach = -1 if window is None else window - 1
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
        window_size=(reach, reach),
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
    """Attention through jagged nested tensors: dropout and float32, but no sliding window.

    Args:
        query: (N, heads, d).
        key: As `query`.
        value: As `query`.
        packing: The sequences of the row.
        options: Without a sliding window.

    Returns:
        (N, heads, d).
    """
    assert options.sliding_window is None, "nested tensors have no sliding window"
    with warnings.catch_warnings():
        # torch makes a strided nested tensor for its own bookkeeping and warns of that kind.
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
