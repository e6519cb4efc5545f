"""The context in which 16-bit products on a CPU are computed as on a GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.backends import mha

from ampft.emulation.cuda_autocast import autocast_kernels
from ampft.emulation.emulated_attention import attention
from ampft.emulation.kernels import (
    EMULATED,
    Kernel,
    arithmetic_kernels,
    kernels_replaced,
    native_kernel,
    replacing_kernel,
)

ATTENTION = "scaled_dot_product_attention"
LSTM = ("lstm.input", "lstm.data")

covered_products: tuple[str, ...] = (*EMULATED, ATTENTION)
"""Names of the `aten` operators whose products are emulated, forward and backward."""


def _attention(
    native: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Replace `torch.nn.functional.scaled_dot_product_attention`."""
    if is_causal:
        if attn_mask is not None:
            raise RuntimeError(
                "scaled_dot_product_attention: attn_mask and is_causal=True exclude each other"
            )
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    return attention(query, key, value, mask=attn_mask, dropout_p=dropout_p, scale=scale)


def _lstm(native: Kernel, input: Tensor, *args: object) -> object:
    """Replace `lstm`, whose kernel in oneDNN raises where the CPU lacks bfloat16, by its products.

    Without oneDNN, torch computes the layer from linear layers, as it does for GRU.
    """
    if input.dtype is not torch.bfloat16 and not torch.is_autocast_enabled("cpu"):
        return native(input, *args)
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        return native(input, *args)
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def _replace_kernels(dtype: torch.dtype) -> ExitStack:
    with ExitStack() as contexts:
        # Keep `nn.TransformerEncoder` from using its fused kernel, as CUDA's autocast does.
        contexts.callback(mha.set_fastpath_enabled, mha.get_fastpath_enabled())
        mha.set_fastpath_enabled(False)
        # Keep oneDNN from rounding float32 operands to TF32 or bfloat16 under any settings.
        for operator in ("matmul", "conv"):
            previous = torch._C._get_fp32_precision_getter("mkldnn", operator)
            contexts.callback(torch._C._set_fp32_precision_setter, "mkldnn", operator, previous)
            torch._C._set_fp32_precision_setter("mkldnn", operator, "ieee")
        contexts.enter_context(kernels_replaced(arithmetic_kernels(dtype), "CPU"))
        # Both keys share one native kernel, the composite. It must be read before the first
        # replacement, which turns the other key's kernel into a fallback without gradients.
        native = native_kernel(ATTENTION, "CPU")
        kernel = replacing_kernel(_attention, native, dtype, operands=3)  # a mask may be float32
        for key in ("CPU", "AutogradCPU"):
            contexts.enter_context(kernels_replaced({ATTENTION: kernel}, key))
        if dtype is torch.float16:
            kernels = autocast_kernels()
            contexts.enter_context(kernels_replaced(kernels, "AutocastCPU", with_keyset=True))
        else:
            lstms = {name: partial(_lstm, native_kernel(name, "CPU")) for name in LSTM}
            for key in ("CPU", "AutogradCPU"):
                contexts.enter_context(kernels_replaced(lstms, key))
        return contexts.pop_all()


class Emulation:
    """Context in which 16-bit products on a CPU are computed as on a GPU, forward and backward.

    Matrix products, convolutions and attention of tensors of one dtype use exact products, sum them
    in float32 and round once. Other dtypes are not affected. Enter it around a whole training run,
    including backward passes and evaluation. Kernels are replaced for the whole process, including
    other threads. Entering it again inside has no effect.

    In float16, `torch.autocast("cpu")` also follows CUDA's operator table, a number is added in
    float32, and a product or function that would differ from a GPU's raises
    `ampft.errors.InputError`. In bfloat16, autocast keeps the CPU's table, as on a CPU that
    multiplies bfloat16 itself, and what is not replaced runs in torch's own kernels: there is
    nothing that these would compute differently, only slowly.

    Args:
        dtype: `torch.float16` or `torch.bfloat16`.
    """

    _depth: ClassVar[Counter[torch.dtype]] = Counter()
    _contexts: ClassVar[dict[torch.dtype, ExitStack]] = {}

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __enter__(self) -> Emulation:
        if not self._depth[self._dtype]:
            self._contexts[self._dtype] = _replace_kernels(self._dtype)
        self._depth[self._dtype] += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth[self._dtype] -= 1
        if not self._depth[self._dtype]:
            self._contexts.pop(self._dtype).close()


@contextmanager
def emulation_suspended() -> Iterator[None]:
    """Restore torch's own kernels and settings temporarily, inside or outside an emulation.

    This affects the whole process, as the emulation does. Inside, float16 uses the CPU's kernels.
    """
    depth = Emulation._depth.copy()
    Emulation._depth.clear()
    active = list(Emulation._contexts)
    while Emulation._contexts:  # the last first, since it replaced the kernels of those before it
        Emulation._contexts.popitem()[1].close()
    try:
        yield
    finally:
        for dtype in active:
            Emulation._contexts[dtype] = _replace_kernels(dtype)
        Emulation._depth.update(depth)


def inside_emulation(dtype: torch.dtype) -> bool:
    """Return whether an `Emulation` of this dtype is active in this process."""
    return Emulation._depth[dtype] > 0
