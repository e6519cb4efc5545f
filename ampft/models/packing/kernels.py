"""Attention of a whole packed row in one call, on NVIDIA GPUs.

torch's nested tensors call both kernels. They take the boundaries of the sequences, drop attention
weights inside the kernel, and have a backward pass. `torch.nn.attention.varlen` has no dropout, and
the kernels of flash attention 3 and 4 ignore it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Protocol

import torch

from ampft.models.packing.layout import AttentionOptions, PackedLayout, pack_layout

# Values of `CustomMaskType` in torch's mem_eff_attention: no mask, and keys up to the query.
_NO_MASK, _CAUSAL = 0, 1


def has_one_call_kernels(device: torch.device) -> bool:
    """Return whether a device has any of the kernels: only NVIDIA's have."""
    return device.type == "cuda" and torch.version.hip is None


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
    if not _is_supported(query, options):
        return False
    dtypes = [torch.float32, torch.float16]
    if torch.cuda.get_device_capability(query.device) >= (8, 0):
        dtypes.append(torch.bfloat16)
    return query.dtype in dtypes and (options.causal or options.sliding_window is None)


def _is_supported(query: torch.Tensor, options: AttentionOptions) -> bool:
    # Neither kernel takes a bias together with boundaries of sequences.
    has_bias = options.position_bias is not None
    return has_one_call_kernels(query.device) and not has_bias and query.shape[-1] % 8 == 0


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


# Sequences and heads from which the share of dropped weights is estimated, and its probability.
_SEQUENCES, _HEADS, _PROBABILITY = 2, 8, 0.25


def problem_of_dropout(
    kernel: AttentionKernel, row: torch.Tensor, options: AttentionOptions
) -> str | None:
    """Return the problem of a kernel's dropout; None if it is correct.

    The values are the identity, so that the output of a sequence is the matrix of its weights, and
    the gradient of the values is that matrix again, transposed, if the backward pass draws the
    same mask.

    Args:
        kernel: Attention kernel.
        row: (N, heads, d), whose device, dtype and head size are used; d is at least 8.
        options: Options, whose dropout is not used.

    Returns:
        A clause: the share of dropped weights, their scale, or the backward pass is wrong.
    """
    size = row.shape[-1]
    layout = pack_layout(torch.ones(_SEQUENCES, size), device=row.device)
    assert layout is not None
    unit = torch.eye(size, dtype=row.dtype, device=row.device)
    values = unit.repeat(_SEQUENCES, 1)[:, None].expand(-1, _HEADS, -1).contiguous()
    zeros = torch.zeros_like(values)

    def weights(dropout: float) -> tuple[torch.Tensor, torch.Tensor]:
        rows = values.clone().requires_grad_()
        with torch.enable_grad():
            output = kernel(zeros, zeros, rows, layout, replace(options, dropout=dropout))
            (gradient,) = torch.autograd.grad(output, rows, values)
        by_sequence = [part.detach().float().unflatten(0, (_SEQUENCES, size)).transpose(1, 2)
                       for part in (output, gradient)]  # fmt: skip
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
    if float((again - dropped).abs().max()) > tolerance * float(dropped.max()):
        return "its backward pass drops other weights than its forward pass"
    return None
