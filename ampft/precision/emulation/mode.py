"""The context in which float16 on a CPU is computed as on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar

import torch
from torch import Tensor

from ampft.precision.emulation.attention import attention
from ampft.precision.emulation.cuda_autocast import autocast_kernels
from ampft.precision.emulation.interception import (
    Kernel,
    binary16_kernel,
    kernels_replaced,
    native_kernel,
)
from ampft.precision.emulation.products import EMULATED, arithmetic_kernels

ATTENTION = "scaled_dot_product_attention"

covered_products: tuple[str, ...] = (*EMULATED, ATTENTION)
"""Names of the `aten` operators whose float16 products are emulated, forward and backward."""


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


@contextmanager
def _fast_path_disabled() -> Iterator[None]:
    """Keep `nn.TransformerEncoder` from using its fused kernel, as CUDA's autocast does."""
    previously_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(previously_enabled)


@contextmanager
def _exact_float32_products() -> Iterator[None]:
    """Keep oneDNN from rounding float32 operands to TF32 or bfloat16 under any settings."""
    operators = ("matmul", "conv")
    previous = [torch._C._get_fp32_precision_getter("mkldnn", name) for name in operators]
    for name in operators:
        torch._C._set_fp32_precision_setter("mkldnn", name, "ieee")
    try:
        yield
    finally:
        for name, value in zip(operators, previous, strict=True):
            torch._C._set_fp32_precision_setter("mkldnn", name, value)


def _replace_all_kernels() -> ExitStack:
    with ExitStack() as contexts:
        contexts.enter_context(_fast_path_disabled())
        contexts.enter_context(_exact_float32_products())
        contexts.enter_context(kernels_replaced(arithmetic_kernels(), "CPU"))
        # Both keys share one native kernel, the composite. It must be read before the first
        # replacement, which turns the other key's kernel into a fallback without gradients.
        kernel = binary16_kernel(_attention, native_kernel(ATTENTION, "CPU"))
        for key in ("CPU", "AutogradCPU"):
            contexts.enter_context(kernels_replaced({ATTENTION: kernel}, key))
        kernels = autocast_kernels()
        contexts.enter_context(kernels_replaced(kernels, "AutocastCPU", with_keyset=True))
        return contexts.pop_all()


class Binary16Emulation:
    """Context in which float16 on a CPU is computed as on a GPU, forward and backward.

    Matrix products, convolutions and attention of float16 tensors use exact products, sum them in
    float32 and round once. A number is added in float32 too.
    `torch.autocast("cpu", dtype=torch.float16)` follows CUDA's operator table. A float16 product or
    function that would differ from a GPU's raises `ampft.errors.InputError`. Other dtypes are not
    affected. Enter it around a whole training run, including backward passes and evaluation.
    Kernels are replaced for the whole process, including other threads. Entering it
    again inside has no effect.
    """

    _depth: ClassVar[int] = 0
    _contexts: ClassVar[ExitStack]

    def __enter__(self) -> Binary16Emulation:
        if Binary16Emulation._depth == 0:
            Binary16Emulation._contexts = _replace_all_kernels()
        Binary16Emulation._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        Binary16Emulation._depth -= 1
        if Binary16Emulation._depth == 0:
            Binary16Emulation._contexts.close()


@contextmanager
def emulation_suspended() -> Iterator[None]:
    """Restore torch's own kernels and settings temporarily, inside or outside an emulation.

    This affects the whole process, as the emulation does. Inside, float16 uses the CPU's kernels.
    """
    depth, Binary16Emulation._depth = Binary16Emulation._depth, 0
    if depth:
        Binary16Emulation._contexts.close()
    try:
        yield
    finally:
        if depth:
            Binary16Emulation._contexts = _replace_all_kernels()
        Binary16Emulation._depth = depth


def inside_emulation() -> bool:
    """Return whether a `Binary16Emulation` is active in this process."""
    return Binary16Emulation._depth > 0
