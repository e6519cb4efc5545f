"""How fast a device multiplies matrices, per dtype."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

# Seconds that one product may be expected to take, and repetitions of each.
_TOO_LONG = 0.6
_REPETITIONS = 3
_SIZES = (512, 1024, 2048, 4096, 8192)
_LARGEST_ON_CPU = 2048


@dataclass(frozen=True)
class MatrixRate:
    """A measured rate.

    Attributes:
        device: Device type.
        dtype: Of the operands; `tf32` and `float16 (emulated)` are named as such.
        size: Rows and columns of the square matrices.
        gflops: 10^9 floating-point operations per second, of the fastest repetition; a product
            of size n counts 2 n^3 of them.
    """

    device: str
    dtype: str
    size: int
    gflops: float


def measure_matrix_rate(
    device: torch.device, dtype: torch.dtype, *, name: str, longest: float = _TOO_LONG
) -> MatrixRate:
    """Measure square products, the largest that take a moment only: small ones are slower.

    Args:
        device: Where to multiply.
        dtype: Of both operands.
        name: What to call the result.
        longest: Seconds that one product may be expected to take; all together take up to four
            times that.
    """
    sizes = [size for size in _SIZES if device.type != "cpu" or size <= _LARGEST_ON_CPU]
    size, seconds = sizes[0], 0.0
    for size in sizes:
        operand = torch.randn(size, size, device=device).to(dtype)
        # The first call of a size also chooses and prepares a kernel; the fastest of several
        # is not one that another program interrupted.
        seconds = min(_seconds(operand, device) for _ in range(_REPETITIONS))
        if 8 * seconds > longest:  # twice the size is eight times the work
            break
    return MatrixRate(device.type, name, size, 2 * size**3 / seconds / 1e9)


def _seconds(operand: torch.Tensor, device: torch.device) -> float:
    wait: Callable[[], object] = torch.accelerator.synchronize if device.type != "cpu" else int
    wait()
    started = time.perf_counter()
    torch.mm(operand, operand)
    wait()
    return time.perf_counter() - started
