"""Attention of a whole packed row in one call, on NVIDIA GPUs.

torch's nested tensors call both kernels. They take the boundaries of the sequences, drop attention
weights inside the kernel, and have a backward pass. `torch.nn.attention.varlen` has no dropout, and
the kernels of flash attention 3 and 4 ignore it.
"""

from __future__ import annotations

import torch

from ampft.models.packing.layout import AttentionOptions, PackedLayout

# Values of `CustomMaskType` in torch's mem_eff_attention: no mask, and keys up to the query.
_NO_MASK, _CAUSAL = 0, 1


def has_flash_kernel(query: torch.Tensor, options: AttentionOptions) -> bool:
    """Return whether `flash_attention` supports the dtype, head size, device and options.

    It has kernels for float16 and bfloat16, heads of 8, 16, ..., 256 elements, and compute
    capability 8.0 and above.

    Args:
        query: (N, heads, d), on a CUDA device.
        options: Options of the attention.
    """
    return (
        _is_supported(query, options)
        and query.dtype in (torch.float16, torch.bfloat16)
        and query.shape[-1] <= 256
        and torch.cuda.get_device_capability(query.device) >= (8, 0)
    )


def has_efficient_kernel(query: torch.Tensor, options: AttentionOptions) -> bool:
    """Return whether `efficient_attention` supports the dtype, head size, device and options.

    It has kernels for float32 and float16 on every device, for bfloat16 from compute capability
    8.0, and for windows that end at the query.

    Args:
        query: (N, heads, d), on a CUDA device.
        options: Options of the attention.
    """
    dtypes = [torch.float32, torch.float16]
    if torch.cuda.get_device_capability(query.device) >= (8, 0):
        dtypes.append(torch.bfloat16)
    has_mask = options.causal or options.sliding_window is None
    return _is_supported(query, options) and query.dtype in dtypes and has_mask


def _is_supported(query: torch.Tensor, options: AttentionOptions) -> bool:
    # Neither kernel takes a bias together with boundaries of sequences.
    has_bias = options.position_bias is not None
    return torch.version.hip is None and not has_bias and query.shape[-1] % 8 == 0


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: PackedLayout,
    options: AttentionOptions,
) -> torch.Tensor:
    """Compute attention by flash attention 2; differentiable once.

    Args:
        query: (N, heads, d), float16 or bfloat16, on a CUDA device.
        key: (N, key heads, d), dtype of `query`; its heads may be fewer, each for several of the
            queries'.
        value: Same shape and dtype as `key`.
        packing: Layout of the sequences in the row.
        options: Options without a position bias.

    Returns:
        (N, heads, d), dtype of `query`.
    """
    assert options.position_bias is None, "flash attention does not support a bias"
    window = options.sliding_window
    max_distance = -1 if window is None else window - 1
    attended: torch.Tensor = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
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
    return attended


def efficient_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    packing: PackedLayout,
    options: AttentionOptions,
) -> torch.Tensor:
    """Compute attention by torch's memory-efficient attention; differentiable once.

    Args:
        query: (N, heads, d), on a CUDA device.
        key: Same shape and dtype as `query`.
        value: Same shape and dtype as `query`.
        packing: Layout of the sequences in the row.
        options: Options without a position bias; a sliding window must be causal.

    Returns:
        (N, heads, d), dtype of `query`.
    """
    assert options.position_bias is None, "boundaries of sequences exclude a bias"
    attended: torch.Tensor = torch.ops.aten._efficient_attention_forward(
        query.unsqueeze(0),
        key.unsqueeze(0),
        value.unsqueeze(0),
        None,
        packing.offsets,
        packing.offsets,
        packing.longest,
        packing.longest,
        options.dropout,
        _CAUSAL if options.causal else _NO_MASK,
        True,  # the sums of the softmax, which the backward pass needs
        scale=options.scale,
        window_size=options.sliding_window,
    )[0]
    return attended.squeeze(0)
