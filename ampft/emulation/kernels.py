"""Products and sums of 16-bit operands, computed as a GPU does, and how they replace torch's.

C++ composites, autograd formulas and `inference_mode` all call kernels through torch's dispatcher.
A kernel replaced there is therefore replaced everywhere, and every `TorchDispatchMode` still sees
the operator with the operands and the result that it has on a GPU.

A binary16 significand has 11 bits and a bfloat16 significand 8, so the product of two is exact in
float32's 24. Products are summed in float32, and the sum is rounded to 16 bits once, to nearest
even. Biases and added matrices are added in float32 before that rounding, as in the epilogue of
cuBLAS. cuDNN adds the bias of a convolution to the rounded result and rounds again, which is not
emulated.

Sums of binary16 tensors with a number, or with a factor `alpha`, are computed as CUDA does. A GPU
converts the number to float32, computes in float32 and rounds once. A CPU rounds the number to
binary16 first: 18 % of all binary16 values plus 0.1 differ. The other operators that take a
number, such as `mul`, `div` and `lerp`, agree. Source: torch,
`opmath_symmetric_gpu_kernel_with_scalars` in `aten/src/ATen/native/cuda/Loops.cuh`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.library import Library, get_kernel

from ampft.errors import InputError

Kernel = Callable[..., Any]
"""Called by the dispatcher with an operator's arguments; returns its results."""
Replacement = Callable[..., Any]
"""Called as `replacement(native, *args, **kwargs)`; `native` is the kernel that it replaces."""


def autocast_excluded() -> AbstractContextManager[None]:
    """Return a context in which CPU autocast is off, so that kernels can compute in float32."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return torch._C._ExcludeDispatchKeyGuard(keys)


def all_have(dtype: torch.dtype, args: tuple[object, ...]) -> bool:
    """Return whether all floating tensors have a dtype; for mixed dtypes torch raises its error."""
    dtypes = {arg.dtype for arg in args if isinstance(arg, Tensor) and arg.dtype.is_floating_point}
    return dtypes == {dtype}


def replacing_kernel(
    replacement: Replacement, native: Kernel, dtype: torch.dtype, *, operands: int | None = None
) -> Kernel:
    """Return a kernel that calls `replacement` for tensors of `dtype`, `native` for all others.

    Args:
        replacement: Kernel for tensors of `dtype`.
        operands: How many of the first arguments are operands; None for all of them.
    """

    def kernel(*args: object, **kwargs: object) -> object:
        if not all_have(dtype, args[:operands]):
            return native(*args, **kwargs)
        with autocast_excluded():
            return replacement(native, *args, **kwargs)

    return kernel


def native_kernel(operator: str, dispatch_key: str) -> Kernel:
    """Return the kernel currently registered for an operator, such as `mm` on `CPU`."""
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, dispatch_key))
    return partial(get_kernel(f"aten::{operator}", dispatch_key).call_boxed, keys)


def is_operator(operator: str) -> bool:
    """Return whether this version of torch has an operator, written as for `operator_overload`."""
    name, _, overload_name = operator.partition(".")
    packet = getattr(torch.ops.aten, name, None)
    return packet is not None and (overload_name or "default") in packet.overloads()


def operator_overload(operator: str) -> OpOverload:
    """Return torch's object for an operator written as `pow.Tensor_Scalar` or `mm`."""
    name, _, overload_name = operator.partition(".")
    return getattr(getattr(torch.ops.aten, name), overload_name or "default")


@contextmanager
def kernels_replaced(
    kernels: Mapping[str, Kernel], dispatch_key: str, *, with_keyset: bool = False
) -> Iterator[None]:
    """Register `kernels` for one dispatch key, in all threads, until the context exits.

    Args:
        kernels: Kernel by operator, such as `mm` or `pow.Tensor_Scalar`.
        dispatch_key: `CPU`, `AutogradCPU` or `AutocastCPU`.
        with_keyset: Whether the kernels take the dispatcher's key set as their first argument.
    """
    library = Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # torch warns once per process that a kernel is overridden, which is intended here.
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            for operator, kernel in kernels.items():
                # Emulations of two dtypes can nest, which torch 2.11 allows only with this option.
                options = {"with_keyset": with_keyset, "allow_override": True}
                library.impl(operator, kernel, dispatch_key, **options)
        yield
    finally:
        library._destroy()


def _product(native: Kernel, left: Tensor, right: Tensor) -> Tensor:
    """Emulate `mm`, `bmm`, `mv` and `dot`, 16 bits in, 16 bits out."""
    result: Tensor = native(left.float(), right.float())
    return result.to(left.dtype)


def _product_and_sum(
    native: Kernel, added: Tensor, left: Tensor, right: Tensor, **factors: float
) -> Tensor:
    """Emulate `addmm`, `baddbmm` and `addmv`: beta * added + alpha * left @ right, rounded once."""
    result: Tensor = native(added.float(), left.float(), right.float(), **factors)
    return result.to(left.dtype)


def _sum_of_products(
    native: Kernel, added: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Emulate `addbmm`, which adds one product after the other and rounds each sum."""
    if len(left) == 0:
        result: Tensor = native(added.float(), left.float(), right.float(), beta=beta)
        return result.to(left.dtype)
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
    return result.to(input.dtype)


def _convolution_backward(
    native: Kernel, grad_output: Tensor, input: Tensor, weight: Tensor, *geometry: object
) -> tuple[Tensor | None, ...]:
    """Emulate the gradients of input, weight and bias, those that the caller requests."""
    gradients = native(grad_output.float(), input.float(), weight.float(), *geometry)
    return tuple(None if gradient is None else gradient.to(input.dtype) for gradient in gradients)


def _in_place(product: Replacement) -> Replacement:
    """Emulate `addmm_` and the like by the emulation of `addmm`."""

    def kernel(native: Kernel, result: Tensor, *operands: Tensor, **factors: float) -> Tensor:
        # Only a float32 copy of the first operand is written by the native kernel.
        return result.copy_(product(native, result, *operands, **factors))

    return kernel


def _into(product: Replacement) -> Replacement:
    """Emulate `mm.out` and the like by the emulation of `mm`."""

    def kernel(native: Kernel, *operands: Tensor, out: Tensor, **factors: float) -> Tensor:
        if out.dtype != operands[0].dtype:
            return native(*operands, out=out, **factors)  # raises torch's error

        def allocating(*wide: Tensor, **options: float) -> object:
            return native(*wide, out=wide[0].new_empty(0), **options)

        result = product(allocating, *operands, **factors)
        if out.shape != result.shape:
            out.resize_(result.shape)
        return out.copy_(result)

    return kernel


_PRODUCTS: Mapping[str, Replacement] = MappingProxyType(
    {
        **dict.fromkeys(("mm", "bmm", "mv", "dot"), _product),
        **dict.fromkeys(("addmm", "baddbmm", "addmv"), _product_and_sum),
        "addbmm": _sum_of_products,
    }
)

EMULATED: Mapping[str, Replacement] = MappingProxyType(
    {
        **_PRODUCTS,
        **{f"{name}.out": _into(product) for name, product in _PRODUCTS.items()},
        **{f"{name}_": _in_place(_PRODUCTS[name]) for name in ("addmm", "baddbmm", "addmv")},
        "addbmm_": _in_place(_sum_of_products),
        "convolution": _convolution,
        "convolution_backward": _convolution_backward,
    }
)

KEEP_LAYER = "keep this layer in float32 (ampft.keep_in_fp32; in ampft train, --fp32_modules)"
_SDPA = "call torch.nn.functional.scaled_dot_product_attention"
_FAST_PATH = "call torch.backends.mha.set_fastpath_enabled(False)"

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "_addmm_activation": "use addmm and the activation",
        "conv_tbc": "use conv1d",
        "mkldnn_rnn_layer": KEEP_LAYER,
        "mkldnn_rnn_layer_backward": KEEP_LAYER,
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


SUMS = ("add.Tensor", "sub.Tensor", "add_.Tensor", "sub_.Tensor")
"""Operators that are replaced; `torch.rsub` and the foreach operators call them."""

Operand = Tensor | float


def _sum_kernel(native: Kernel, *, in_place: bool) -> Kernel:
    def kernel(left: Operand, right: Operand, *, alpha: float = 1) -> object:
        is_half = _takes_number((left, right), alpha)
        first, second = _wide(left, is_half), _wide(right, is_half)
        # The kernel accepts tensors only, and the dispatcher passes a number as a number.
        result = native(_as_tensor(first, second), _as_tensor(second, first), alpha=alpha)
        if not is_half:
            return result
        return left.copy_(result) if in_place and isinstance(left, Tensor) else result.half()

    return kernel


def _takes_number(operands: tuple[Operand, Operand], alpha: float) -> bool:
    return (
        (alpha != 1 or not all(isinstance(operand, Tensor) for operand in operands))
        and all_have(torch.float16, operands)
        and not any(_is_complex(value) for value in (*operands, alpha))
    )


def _is_complex(value: Operand) -> bool:
    return value.is_complex() if isinstance(value, Tensor) else isinstance(value, complex)


def _wide(operand: Operand, is_half: bool) -> Operand:
    if is_half and isinstance(operand, Tensor) and operand.dtype is torch.float16:
        return operand.float()
    return operand


def _as_tensor(operand: Operand, other: Operand) -> Tensor:
    """Return a number as a tensor of the dtype that the number and the other operand promote to."""
    if isinstance(operand, Tensor):
        return operand
    return torch.tensor(operand, dtype=torch.result_type(operand, other))


def arithmetic_kernels(dtype: torch.dtype) -> dict[str, Kernel]:
    """Return the CPU kernels of all operators that are emulated or refused in a dtype."""
    names = (*EMULATED, *SUMS) if dtype is torch.float16 else tuple(EMULATED)
    natives = {name: native_kernel(name, "CPU") for name in names}
    kernels = {
        name: replacing_kernel(twin, natives[name], dtype) for name, twin in EMULATED.items()
    }
    if dtype is torch.float16:
        refused = {name: remedy for name, remedy in REFUSED.items() if is_operator(name)}
        kernels |= {name: _refusing(name, remedy) for name, remedy in refused.items()}
        kernels |= {name: _sum_kernel(natives[name], in_place="_." in name) for name in SUMS}
    return kernels
