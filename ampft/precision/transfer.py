"""Copies of tensors from the host to the device of a model."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor on `device`, without waiting for the copy if the device is a CUDA device.

    CUDA has copied a tensor of pageable memory, or has kept its pinned memory, when the tensor is
    freed. MPS has not: a copy without waiting from a temporary tensor can contain other data
    (https://github.com/pytorch/pytorch/issues/189690).

    Args:
        tensor: Tensor on any device.
        device: Device of the result.
        dtype: Dtype of the result; None keeps `tensor.dtype`.
    """
    return tensor.to(device, dtype, non_blocking=device.type == "cuda")
