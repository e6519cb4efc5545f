"""What bounds the speed of training: launching kernels, or waiting for data."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ampft.text.numbers import percent

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import Tensor, nn

    from ampft.data.step_batches import MicroBatch, StepBatches

# Twice the batch is twice the arithmetic, in as many kernels. If the time grows by less than a
# quarter, at least half of it does not depend on the arithmetic.
MAX_GROWTH = 1.25
WARM_UPS, REPEATS = 2, 5

PROTOCOL = (
    "doubled_batch_ratio: time of the forward and backward pass of a micro-batch with each "
    f"example twice, relative to the micro-batch itself; minimum of {REPEATS}, in turns, after "
    f"{WARM_UPS} of each, after training; measured on accelerators, in one process, unless CUDA "
    "graphs replayed most steps"
)


def doubled_batch_timings(
    accelerator: Accelerator,
    model: nn.Module,
    loss: Callable[[nn.Module, MicroBatch], Tensor],
    step_batches: StepBatches,
    graphs: Mapping[str, Any] | None = None,
) -> dict[str, float | str | None]:
    """Return how the time of a step grows with its batch, as two entries of a record's timings.

    The first is `doubled_batch_ratio`, on an accelerator and in one process; None elsewhere, and
    where CUDA graphs replayed most steps, because a replay is one launch. The second,
    `doubled_batch_protocol`, describes the measurement.

    Args:
        accelerator: Accelerator that prepared the model.
        model: Prepared model, whose training has ended. Its weights do not change.
        loss: Function that returns the summed loss of a micro-batch.
        graphs: What the record says about CUDA graphs.
    """
    graphs = graphs or {"replayed_micro_batches": 0, "other_micro_batches": 0}
    replays = graphs["replayed_micro_batches"] > graphs["other_micro_batches"]
    is_measured = (
        accelerator.device.type != "cpu" and accelerator.num_processes == 1 and not replays
    )
    ratio = doubled_batch_ratio(accelerator, model, loss, step_batches) if is_measured else None
    return {"doubled_batch_ratio": ratio, "doubled_batch_protocol": PROTOCOL}


def doubled_batch_ratio(
    accelerator: Accelerator,
    model: nn.Module,
    loss: Callable[[nn.Module, MicroBatch], Tensor],
    step_batches: StepBatches,
) -> float | None:
    """Return the ratio on any device; None if twice the batch does not fit into memory.

    Args:
        accelerator: Same as in `doubled_batch_timings`.
        model: Same as in `doubled_batch_timings`.
        loss: Same as in `doubled_batch_timings`.
        step_batches: Same as in `doubled_batch_timings`.
    """
    import torch

    from ampft.data.step_batches import MicroBatch
    from ampft.engine.out_of_memory import RandomAndBufferSnapshot, is_out_of_memory
    from ampft.engine.step import backward

    (step_batch,) = step_batches.epoch(0, stop=1)
    ids = step_batch.micro_batches[0].ids
    examples, snapshot = step_batches.examples, RandomAndBufferSnapshot(model)
    batches = [
        MicroBatch(rows, examples.collate(rows), counted=True, is_last=True)
        for rows in (ids, np.concatenate([ids, ids]))
    ]

    def synchronize() -> None:
        if accelerator.device.type != "cpu":
            torch.accelerator.synchronize(accelerator.device)

    def seconds(batch: MicroBatch) -> float:
        synchronize()
        started = time.perf_counter()
        backward(accelerator, loss(model, batch))
        synchronize()
        return time.perf_counter() - started

    model.train()
    try:
        for _ in range(WARM_UPS):
            for batch in batches:
                seconds(batch)
        once, twice = np.min([[seconds(b) for b in batches] for _ in range(REPEATS)], axis=0)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return None
    finally:
        snapshot.restore()
    return float(twice / once)


def is_launch_bound(timings: Mapping[str, Any]) -> bool:
    """Return whether the timings of a record state a growth below `MAX_GROWTH`."""
    ratio = timings.get("doubled_batch_ratio")
    return isinstance(ratio, int | float) and ratio < MAX_GROWTH


def launch_bound_note(timings: Mapping[str, Any]) -> str | None:
    """Return one sentence for a run that is launch-bound, with the rule; otherwise None."""
    if not is_launch_bound(timings):
        return None
    return (
        f"launch-bound: twice the batch takes {timings['doubled_batch_ratio']:.2f} times as long "
        f"(below {MAX_GROWTH:g} counts as launch-bound), so launching kernels limits the speed, "
        "and a precision with more casts can be slower. Raise --per_device_train_batch_size."
    )


MAX_WAITING = 0.2  # share of the step time
BOUND = 0.5  # share above which loading takes longer than computing


def data_waiting_note(timings: Mapping[str, Any], workers: int, *, has_files: bool) -> str | None:
    """Return the share of the step time spent waiting for data, and what to do if it is large.

    Args:
        timings: Timings of a record; `waiting_share` is 0 to 1.
        workers: Number of worker processes that load batches.
        has_files: Whether the data are files, which take time to decode.

    Returns:
        A sentence; None if nothing was measured, or if data without files were loaded fast enough.
    """
    share = timings.get("waiting_share")
    if not isinstance(share, float) or (not has_files and share <= MAX_WAITING):
        return None
    note = f"{percent(share, 1)} of the step time was spent waiting for data"
    if share <= MAX_WAITING:
        return note
    bound = ": loading it bounds the speed, not the model" if share > BOUND else ""
    return f"{note}{bound}. Raise --dataloader_num_workers (now {workers})."
