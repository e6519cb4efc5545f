"""Sums of binary16 tensors with a number, or with a factor `alpha`, as CUDA computes them.

A GPU converts the number to float32, computes in float32 and rounds once. A CPU rounds the number
to binary16 first: 18 % of all binary16 values plus 0.1 differ. The other operators that take a
number, such as `mul`, `div` and `lerp`, agree. Source: torch,
`opmath_symmetric_gpu_kernel_with_scalars` in `aten/src/ATen/native/cuda/Loops.cuh`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ampft.precision.emulation.interception import Kernel, is_binary16, native_kernel

SUMS = ("add.Tensor", "sub.Tensor", "add_.Tensor", "sub_.Tensor")
"""Operators that are replaced; `torch.rsub` and the foreach operators call them."""

Operand = Tensor | float


def sum_kernels() -> dict[str, Kernel]:
    """Return the CPU kernels of all operators in `SUMS`."""
    return {name: _kernel(native_kernel(name, "CPU"), in_place="_." in name) for name in SUMS}


def _kernel(native: Kernel, *, in_place: bool) -> Kernel:
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
        and is_binary16(operands)
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
