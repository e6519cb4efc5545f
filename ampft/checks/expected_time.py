"""How long a training will take, said before its first step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from ampft.arguments.classify import ADAMW
from ampft.engine.out_of_memory import RandomAndBufferSnapshot
from ampft.engine.step import accumulate_gradient
from ampft.features.resources import FORWARD, seconds_after_training
from ampft.precision.compilation import configured_backend
from ampft.runs.prepared import Prepared
from ampft.text.numbers import approximate_duration, counted
from ampft.text.terminal import labelled, print_line

STEPS = 50  # of the first epoch, from which one of medium length is timed
SLOW = 1.0  # seconds of a gradient that is computed once, not a second time without allocations
WEIGHTS = 2**21  # whose update is timed in the place of all


def print_expected_time(prepared: Prepared) -> None:
    """Print the expected time of the remaining steps and the evaluations; inside `numerics`.

    A gradient is computed, and dropped with what it changed. Only one process on a CPU is timed:
    elsewhere, the first steps prepare kernels, so that they say nothing about the others.
    """
    args, accelerator = prepared.args, prepared.accelerator
    is_alone = accelerator.device.type == "cpu" and accelerator.num_processes == 1
    if not is_alone or configured_backend(accelerator) is not None or args.optim != ADAMW:
        return
    point = prepared.resume_point
    checkpoint = None if point is None else point.checkpoint
    left = prepared.total_steps - (0 if checkpoint is None else checkpoint.manifest.cursor.step)
    try:
        gradient = _gradient_seconds(prepared)
    except Exception:  # the first step raises it again, where it is explained
        return
    rows = _evaluated_rows(prepared) * left / prepared.total_steps
    row = FORWARD * gradient / prepared.step_batches.effective_batch_size
    step = gradient + _update_seconds(prepared.loaded.model)
    seconds = left * step + rows * row
    duration = "less than 1 s" if seconds < 1 else f"about {approximate_duration(seconds)}"
    steps = counted(left, "training step")
    limited = _limit_text(prepared, step, row) if args.max_time is not None else ()
    print_line(labelled("time", f"{duration} for {steps} and the evaluations", *limited))


def _limit_text(prepared: Prepared, step: float, row: float) -> Iterator[str]:
    """Yield the sentence about what fits into `--max_time`, if not everything does."""
    args, splits = prepared.args, prepared.task.data.splits
    assert args.max_seconds is not None, "it is set"
    over = time.perf_counter() - prepared.started.seconds
    final = len(splits[prepared.final_split])
    validation = len(splits["validation"]) if prepared.selects_best else 0
    after = seconds_after_training(final + validation, row)
    every = args.eval_steps or len(prepared.step_batches) * prepared.validated_epochs
    fitting = int((args.max_seconds - over - after) / (step + validation * row / every))
    if fitting >= prepared.total_steps:
        return
    spent, kept = approximate_duration(over), approximate_duration(after)
    yield (
        f"--max_time {args.max_time} counts from the start of the command: {spent} of it are over, "
        f"and {kept} are kept for predicting and saving, so that "
        + (
            f"about {counted(fitting, 'step')} of {prepared.total_steps} fit"
            if fitting > 0
            else "no step fits: the run makes a few steps and takes longer. Raise --max_time, or "
            "lower --max_train_samples, --max_eval_samples or --max_predict_samples"
        )
    )


def _gradient_seconds(prepared: Prepared) -> float:
    """Return the mean time of a step's gradient, from a step of medium length."""
    batches = replace(prepared.step_batches, num_workers=0)
    lengths = batches.examples.lengths
    sizes = [lengths[batches.effective_ids(0, s)].sum() for s in range(min(STEPS, len(batches)))]
    step = int(np.argsort(sizes, kind="stable")[len(sizes) // 2])
    (step_batch,) = batches.epoch(0, start=step, stop=step + 1)
    snapshot = RandomAndBufferSnapshot(prepared.model)

    def once() -> float:
        started = time.perf_counter()
        accumulate_gradient(prepared.accelerator, prepared.model, prepared.task.loss, step_batch)
        return time.perf_counter() - started

    was_training = prepared.model.training
    prepared.model.train()
    try:
        seconds = _steady(once)
    finally:
        snapshot.restore(releases=False)
        prepared.model.train(was_training)
    return seconds * float(np.mean(sizes) / max(1, sizes[step]))


def _steady(once: Callable[[], float]) -> float:
    """Return the time of the second call, which allocates nothing, unless the first was slow."""
    first = once()
    return first if first > SLOW else min(first, once())


def _update_seconds(model: nn.Module) -> float:
    """Return the time of an update by AdamW, from other weights in the place of the model's."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    weights = nn.Parameter(torch.zeros(max(1, min(trained, WEIGHTS))))
    weights.grad = torch.zeros_like(weights)
    optimizer = torch.optim.AdamW([weights], fused=True)

    def once() -> float:
        started = time.perf_counter()
        optimizer.step()
        return time.perf_counter() - started

    return _steady(once) * trained / weights.numel()


def _evaluated_rows(prepared: Prepared) -> float:
    """Return the number of rows that all validations and the final evaluation predict."""
    args, splits = prepared.args, prepared.task.data.splits
    rows = len(splits[prepared.final_split])
    if not prepared.selects_best:
        return rows
    steps = args.eval_steps or len(prepared.step_batches) * prepared.validated_epochs
    return rows + -(-prepared.total_steps // steps) * len(splits["validation"])
