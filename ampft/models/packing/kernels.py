"""PyTorch's variable-length attention kernel for NVIDIA GPUs."""

from __future__ import annotations

import torch

from ampft.models.packing.layout import AttentionOptions, PackedLayout


def has_varlen_kernel(query: torch.Tensor) -> bool:
    """Return whether `varlen_attention` supports the dtype, head size and device of `query`.

    Flash attention has kernels for float16 and bfloat16, heads of 8, 16, ..., 256 elements, and
    compute capability 8.0 and above.

    Args:
        query: (N, heads, d), on a CUDA device.
    """
    head_size = query.shape[-1]
    return (
        query.dtype in (torch.float16, torch.bfloat16)
        and head_size % 8 == 0
        and head_size <= 256
        and torch.version.hip is None
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def varlen_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: PackedLayout,
    options: AttentionOptions,
) -> torch.Tensor:
    """Compute attention by `torch.nn.attention.varlen`: flash attention, without dropout or bias.

    Args:
        query: (N, heads, d), float16 or bfloat16, on a CUDA device.
        key: Same shape and dtype as `query`.
        value: Same shape and dtype as `query`.
        packing: Layout of the sequences in the row.
        options: Options without dropout and position bias.

    Returns:
        (N, heads, d).
    """
    # Imported here because it registers custom operators, which are not needed on a CPU.
    from torch.nn.attention.varlen import varlen_attn

    assert options.dropout == 0, "varlen_attn does not support dropout"
    assert options.position_bias is None, "varlen_attn does not support a bias"
    window = options.sliding_window
    max_distance = -1 if window is None else window - 1
    attended = varlen_attn(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        packing.offsets,
        packing.offsets,
        packing.longest,
        packing.longest,
        scale=options.scale,
        window_size=(max_distance, 0 if options.causal else max_distance),
    )
    assert isinstance(attended, torch.Tensor)
    return attended
