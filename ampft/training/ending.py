"""Ends training in several processes so that none of them waits forever."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import distributed_c10d

from ampft.errors import AlreadyFinished

if TYPE_CHECKING:
    from accelerate import Accelerator, PartialState

_FAILURE = "ampft/failure"  # key in the store of the process group
POLL_SECONDS = 0.5
# In this time most processes see by themselves that another has failed, and the one that failed
# has printed its error.
GRACE_SECONDS = 10.0

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


def first_failure(
    accelerator: Accelerator | PartialState, status: str, reason: str
) -> tuple[str, str]:
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


@contextmanager
def ended_with_others(
    accelerator: Accelerator | PartialState, record_stop: Callable[[str, str], None]
) -> Iterator[None]:
    """End this process if another one fails while this one waits for it.

    A collective operation of NCCL blocks in C++ until its timeout of ten minutes, where neither an
    exception nor a signal reaches Python. A thread therefore asks the store for a failure that
    another process has reported by `first_failure`. If this process is still in the context
    `GRACE_SECONDS` later, it exits with code 1, without cleaning up. It does so too if the store
    has ended, and with it the process that hosts it.

    Args:
        accelerator: Accelerator of this process; with only one process, nothing is watched.
        record_stop: Called with status and reason before this process ends.
    """
    if accelerator.num_processes == 1:
        yield
        return
    # A connection of its own, because the main thread may be waiting for an answer on the other.
    default: Any = distributed_c10d._get_default_store()  # torch's stubs lack `clone`
    store = default.clone()
    has_left = threading.Event()

    def watch() -> None:
        status, reason = "interrupted", "the process that hosts the process group's store has ended"
        while not has_left.wait(POLL_SECONDS):
            try:
                if not store.check([_FAILURE]):
                    continue
                process, status, reason = json.loads(store.get(_FAILURE))
                reason = f"process {process} failed first: {reason}"
            except (RuntimeError, ValueError):  # the store has ended
                pass
            break
        if has_left.wait(GRACE_SECONDS):
            return
        try:
            record_stop(status, reason)
            rank = accelerator.process_index
            print(f"[rank {rank}] error: {reason}", file=sys.stderr, flush=True)
        finally:
            os._exit(1)

    threading.Thread(target=watch, name="ended_with_others", daemon=True).start()
    try:
        yield
    finally:
        has_left.set()


@contextmanager
def ending_together(state: PartialState) -> Iterator[None]:
    """End all processes within seconds if one fails inside this context, before its training.

    Otherwise, the others would wait for it until a timeout, unless a launcher ends them.

    Args:
        state: State of this process, whose group exists.
    """
    with ended_with_others(state, lambda status, reason: None):
        try:
            yield
        except AlreadyFinished:  # of all processes alike, and not a failure
            raise
        except BaseException as error:
            first_failure(state, "interrupted", f"{type(error).__name__}: {error}")
            raise
