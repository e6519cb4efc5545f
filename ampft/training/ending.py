"""Ends training in several processes so that none of them waits forever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from accelerate import Accelerator

# Process groups that have been destroyed, which this process keeps until its end.
_ended_groups: list[object] = []


def end_training(accelerator: Accelerator) -> None:
    """Finish the trackers and destroy the process group. All processes call it together.

    `DistributedDataParallel` also holds the group. If the model were the last to hold it, the
    destructor of Gloo's group would run with Python's lock, and wait for a thread that still
    releases the tensors of the last collective operation, for which it needs that lock:
    https://github.com/pytorch/pytorch/issues/56297 (seen in torch 2.13, about once in 30 runs on
    a busy machine).
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        _ended_groups.append(torch.distributed.group.WORLD)
    accelerator.end_training()
