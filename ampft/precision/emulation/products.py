"""Matrix products and convolutions of binary16 operands, computed as a tensor core does.

A binary16 significand has 11 bits, so the product of two is exact in float32's 24. Products are
summed in float32, and the sum is rounded to binary16 once, to nearest even (`Tensor.half`). Biases
and added matrices are added in float32 before that rounding, as in the epilogue of cuBLAS. cuDNN
adds the bias of a convolution to the rounded result and rounds again, which is not emulated.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from ampft.errors import InputError
from ampft.precision.emulation.interception import (
    Kernel,
    Replacement,
    binary16_kernel,
    native_kernel,
)


def _product(native: Kernel, left: Tensor, right: Tensor) -> Tensor:
    """Emulate `mm`, `bmm`, `mv` and `dot`, float16 in, float16 out."""
    result: Tensor = native(left.float(), right.float())
    return result.half()


def _product_and_sum(
    native: Kernel, added: Tensor, left: Tensor, right: Tensor, **factors: float
) -> Tensor:
    """Emulate `addmm`, `baddbmm` and `addmv`: beta * added + alpha * left @ right, rounded once."""
    result: Tensor = native(added.float(), left.float(), right.float(), **factors)
    return result.half()


def _sum_of_products(
    native: Kernel,
    added: Tensor,
    left: Tensor,
    right: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Tensor:
    """Emulate `addbmm`, which adds one product after the other and rounds each sum."""
    if len(left) == 0:
        result: Tensor = native(added.float(), left.float(), right.float(), beta=beta)
        return result.half()
    for index in range(len(left)):
        added = torch.addmm(added, left[index], right[index], beta=beta, alpha=alpha)
        beta = 1
    return added


def _convolution(
    native: Kernel, input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: object
) -> Tensor:
    """Emulate `convolution` of any dimension, transposed or grouped, with its bias."""
    summed = None if bias is None else bias.float()
    result: Tensor = native(input.float(), weight.float(), summed, *geometry)
    return result.half()


def _convolution_backward(
    native: Kernel, grad_output: Tensor, input: Tensor, weight: Tensor, *geometry: object
) -> tuple[Tensor | None, ...]:
    """Emulate the gradients of input, weight and bias, those that the caller requests."""
    gradients = native(grad_output.float(), input.float(), weight.float(), *geometry)
    return tuple(None if gradient is None else gradient.half() for gradient in gradients)


EMULATED: Mapping[str, Replacement] = MappingProxyType(
    {
        "mm": _product,
        "bmm": _product,
        "addmm": _product_and_sum,
        "baddbmm": _product_and_sum,
        "mv": _product,
        "addmv": _product_and_sum,
        "dot": _product,
        "addbmm": _sum_of_products,
        "convolution": _convolution,
        "convolution_backward": _convolution_backward,
    }
)

_OUT_OF_PLACE = "use the form that returns a new tensor"
_DISABLE_AUTOCAST = "run this layer inside torch.autocast('cpu', enabled=False)"
_SDPA = "call torch.nn.functional.scaled_dot_product_attention"
_FAST_PATH = "call torch.backends.mha.set_fastpath_enabled(False)"

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("mv.out", "addmv.out", "addmv_", "dot.out"), _OUT_OF_PLACE),
        **dict.fromkeys(("mm.out", "bmm.out", "addmm.out", "addmm_"), _OUT_OF_PLACE),
        **dict.fromkeys(("baddbmm.out", "baddbmm_"), _OUT_OF_PLACE),
        **dict.fromkeys(("addbmm_", "addbmm.out"), _OUT_OF_PLACE),
        "_addmm_activation": "use addmm and the activation",
        "conv_tbc": "use conv1d",
        "mkldnn_rnn_layer": _DISABLE_AUTOCAST,
        "mkldnn_rnn_layer_backward": _DISABLE_AUTOCAST,
        "_scaled_dot_product_flash_attention_for_cpu": _SDPA,
        "_scaled_dot_product_flash_attention_for_cpu_backward": _SDPA,
        "_native_multi_head_attention": _FAST_PATH,
        "_transformer_encoder_layer_fwd": _FAST_PATH,
    }
)
"""Remedy by operator, for operators that multiply float16 on a CPU and are not emulated."""


def refusal(operator: str, remedy: str) -> InputError:
    """Return the error for a float16 operator that is not emulated."""
    return InputError(
        f"--mixed_precision fp16 on a CPU is emulated, and the emulation does not support "
        f"{operator} of float16 tensors: a CPU would round it differently from a GPU. To fix this, "
        f"{remedy}, or choose --mixed_precision bf16 or fp32."
    )


def _refusing(operator: str, remedy: str) -> Kernel:
    native = native_kernel(operator, "CPU")

    def kernel(*args: object, **kwargs: object) -> object:
        tensors = [arg for arg in args if isinstance(arg, Tensor)]
        if any(tensor.dtype is torch.float16 for tensor in tensors):
            raise refusal(operator, remedy)
        return native(*args, **kwargs)

    return kernel


def product_kernels() -> dict[str, Kernel]:
    """Return the CPU kernels of all emulated and refused operators, by operator."""
    kernels = {
        name: binary16_kernel(replacement, native_kernel(name, "CPU"))
        for name, replacement in EMULATED.items()
    }
    kernels.update({name: _refusing(name, remedy) for name, remedy in REFUSED.items()})
    return kernels
