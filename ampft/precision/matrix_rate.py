"""Measures how fast a device multiplies matrices of a dtype."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

_MAX_SECONDS = 0.6  # of one product
_REPETITIONS = 3
_SIZES = (512, 1024, 2048, 4096, 8192)
_LARGEST_ON_CPU = 2048


@dataclass(frozen=True)
class MatrixRate:
    """A measured rate."""

    device: str  # Device type.
    dtype: str  # Name of the operands' dtype, such as `bfloat16`, `tf32` or `float16 (emulated)`.
    size: int  # Rows and columns of the square matrices.
    # 10^9 floating-point operations per second in the fastest repetition; a product of size n
    # counts as 2 n^3 operations.
    gflops: float


def measure_matrix_rate(
    device: torch.device, dtype: torch.dtype, *, name: str, max_seconds: float = _MAX_SECONDS
) -> MatrixRate:
    """Measure the rate of the largest square product that is expected to fit into `max_seconds`.

    Smaller products run at a lower rate.

    Args:
        max_seconds: Limit on the expected seconds of one product; all of them together take up to
            four times as long.
    """
    sizes = [size for size in _SIZES if device.type != "cpu" or size <= _LARGEST_ON_CPU]
    size, seconds = sizes[0], 0.0
    for size in sizes:
        operand = torch.randn(size, size, device=device).to(dtype)
        # The fastest of several repetitions excludes the first call, which also selects a kernel,
        # and calls that other programs slowed down.
        seconds = min(_seconds(operand, device) for _ in range(_REPETITIONS))
        if 8 * seconds > max_seconds:  # twice the size is eight times the work
            break
    return MatrixRate(device.type, name, size, 2 * size**3 / seconds / 1e9)


def _seconds(operand: torch.Tensor, device: torch.device) -> float:
    on_cpu = device.type == "cpu"
    synchronize: Callable[[], object] = int if on_cpu else torch.accelerator.synchronize
    synchronize()
    started = time.perf_counter()
    torch.mm(operand, operand)
    synchronize()
    return time.perf_counter() - started
