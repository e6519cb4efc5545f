"""Ends training in several processes so that none of them waits forever."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
from torch.distributed import distributed_c10d

if TYPE_CHECKING:
    from accelerate import Accelerator

_FAILURE = "ampft/failure"  # key in the store of the process group

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


def first_failure(accelerator: Accelerator, status: str, reason: str) -> tuple[str, str]:
    """Report a failure of this process; return status and reason of the first one to fail.

    When one process fails, the others see only that a connection was closed. The reason is passed
    on through the store of the process group, which needs no other process to take part.

    Args:
        accelerator: Accelerator of this process.
        status: Status of the run after the failure of this process.
        reason: Its reason.
    """
    if accelerator.num_processes == 1:
        return status, reason
    own = json.dumps([accelerator.process_index, status, reason])
    try:
        first = distributed_c10d._get_default_store().compare_set(_FAILURE, "", own)
    except (RuntimeError, ValueError):  # the store or the group has ended
        return status, reason
    process, status, reason = json.loads(first)
    is_own = process == accelerator.process_index
    return status, reason if is_own else f"process {process} failed first: {reason}"
