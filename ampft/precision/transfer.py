"""Copies of tensors from the host to the device of a model."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor on `device`, without waiting for the copy if the device is a CUDA device.

    CUDA has copied a tensor of pageable memory, or has kept its pinned memory, when the tensor is
    freed. MPS has not: a copy without waiting from a temporary tensor can contain other data
    (https://github.com/pytorch/pytorch/issues/189690).

    Args:
        dtype: Dtype of the result; None keeps `tensor.dtype`.
    """
    return tensor.to(device, dtype, non_blocking=device.type == "cuda")


def copy_into(target: Tensor, source: Tensor) -> None:
    """Copy a tensor into one on any device; see `to_device` about waiting."""
    target.copy_(source, non_blocking=target.device.type == "cuda")


def cached_device_constant(values: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return (n,) numbers as a tensor on `device`, where it stays for later calls.

    A copy in each step would be one more operation, and a CUDA graph cannot contain it.

    Args:
        values: (n,) numbers of any dtype that torch has.
        device: Device of the result, which must not be changed.
    """
    return _constant(values.tobytes(), values.dtype.str, device)


@cache  # without a limit, because a CUDA graph knows only the address
def _constant(content: bytes, dtype: str, device: torch.device) -> Tensor:
    return to_device(torch.from_numpy(np.frombuffer(content, dtype).copy()), device)
