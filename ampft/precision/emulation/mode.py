"""The context in which float16 on a CPU computes as on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
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
from ampft.precision.emulation.products import EMULATED, product_kernels

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
    """Stand in for `torch.nn.functional.scaled_dot_product_attention`."""
    if is_causal:
        if attn_mask is not None:
            raise RuntimeError("scaled_dot_product_attention: attn_mask excludes is_causal=True")
        attn_mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    return attention(query, key, value, mask=attn_mask, dropout_p=dropout_p, scale=scale)


@contextmanager
def _fast_path_disabled() -> Iterator[None]:
    """Keep `nn.TransformerEncoder` off its fused kernel, as CUDA's autocast does."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextmanager
def _exact_float32_products() -> Iterator[None]:
    """Keep oneDNN from rounding float32 operands to TF32 or bfloat16, whatever was set before."""
    operators = ("matmul", "conv")
    before = [torch._C._get_fp32_precision_getter("mkldnn", name) for name in operators]
    for name in operators:
        torch._C._set_fp32_precision_setter("mkldnn", name, "ieee")
    try:
        yield
    finally:
        for name, value in zip(operators, before, strict=True):
            torch._C._set_fp32_precision_setter("mkldnn", name, value)


def _all_replaced() -> ExitStack:
    with ExitStack() as contexts:
        contexts.enter_context(_fast_path_disabled())
        contexts.enter_context(_exact_float32_products())
        contexts.enter_context(kernels_replaced(product_kernels(), "CPU"))
        # One native kernel, the composite, for both keys: it has to be taken before the first
        # replacement, which turns the other key's into a fallback without gradients.
        kernel = binary16_kernel(_attention, native_kernel(ATTENTION, "CPU"))
        for key in ("CPU", "AutogradCPU"):
            contexts.enter_context(kernels_replaced({ATTENTION: kernel}, key))
        kernels = autocast_kernels()
        contexts.enter_context(kernels_replaced(kernels, "AutocastCPU", with_keyset=True))
        return contexts.pop_all()


class Binary16Emulation:
    """Inside, float16 on a CPU computes as on a GPU, forward and backward.

    Matrix products, convolutions and attention of float16 tensors take exact products, add in
    float32 and round once; `torch.autocast("cpu", dtype=torch.float16)` follows CUDA's operator
    table; a float16 product that is not emulated raises `ampft.errors.InputError`. Other dtypes
    are untouched. Enter it around a whole training run, the backward passes and the evaluation
    included. Kernels are replaced for the whole process, other threads too; entering it again
    inside changes nothing.
    """

    _depth: ClassVar[int] = 0
    _contexts: ClassVar[ExitStack]

    def __enter__(self) -> Binary16Emulation:
        if Binary16Emulation._depth == 0:
            Binary16Emulation._contexts = _all_replaced()
        Binary16Emulation._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        Binary16Emulation._depth -= 1
        if Binary16Emulation._depth == 0:
            Binary16Emulation._contexts.close()


@contextmanager
def emulation_suspended() -> Iterator[None]:
    """Give torch its own kernels and settings back for a while, inside or outside an emulation.

    For the whole process, as the emulation is. Inside, float16 computes as on any CPU.
    """
    depth, Binary16Emulation._depth = Binary16Emulation._depth, 0
    if depth:
        Binary16Emulation._contexts.close()
    try:
        yield
    finally:
        if depth:
            Binary16Emulation._contexts = _all_replaced()
        Binary16Emulation._depth = depth


def inside_emulation() -> bool:
    """Say whether a `Binary16Emulation` is entered in this process."""
    return Binary16Emulation._depth > 0
