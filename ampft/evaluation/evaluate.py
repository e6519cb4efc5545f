"""Predict a split: without gradients, sorted by length, every example counted once."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate.utils import gather_object
from torch import nn
from tqdm import tqdm

from ampft.data.steps import IntArray
from ampft.errors import TrainingStopped
from ampft.tasks.outcome import Outcome, check_census
from ampft.tasks.task import LabelledExamples, Task

if TYPE_CHECKING:
    from accelerate import Accelerator

Kept = dict[str, npt.NDArray[Any]]


def evaluate(
    accelerator: Accelerator,
    model: nn.Module,
    task: Task,
    split: str,
    *,
    batch_size: int,
    first_batch: AbstractContextManager[None] | None = None,
) -> Outcome:
    """Return what the predictions of a split amount to, the same in any number of processes.

    Args:
        accelerator: The one that prepared `model`.
        model: Left in training or evaluation mode, as it was.
        task: Decodes the logits and makes the outcome.
        split: Name of the split, such as "validation".
        batch_size: Examples per forward pass and process.
        first_batch: Context of the first forward pass, which may measure it.

    Raises:
        TrainingStopped: A prediction is not finite.
    """
    examples = task.examples(split)
    longest_first = np.argsort(-examples.lengths, kind="stable")
    ids = longest_first[accelerator.process_index :: accelerator.num_processes]
    was_training = model.training
    model.eval()
    kept = _predict(accelerator, model, task, examples, ids, batch_size, split, first_batch)
    model.train(was_training)
    # Ids travel with their rows, so that nothing depends on the order in which they arrive.
    gathered = gather_object([(ids, kept)])
    all_ids = np.concatenate([part[0] for part in gathered])
    check_census(all_ids, len(examples.weights))
    order = np.argsort(all_ids)
    parts = [part[1] for part in gathered if len(part[0])]
    ordered = {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}
    _refuse_not_finite(ordered, split)
    return task.outcome(split, ordered)


def _predict(
    accelerator: Accelerator,
    model: nn.Module,
    task: Task,
    examples: LabelledExamples,
    ids: IntArray,
    batch_size: int,
    split: str,
    first_batch: AbstractContextManager[None] | None,
) -> Kept:
    """Return what is kept of the examples `ids`; it leaves the device batch by batch."""
    # Every process goes through the model equally often: DistributedDataParallel broadcasts the
    # buffers in a forward pass, and sharded models communicate in each.
    largest_share = -(-len(examples.weights) // accelerator.num_processes)
    parts: list[Kept] = []
    bar = tqdm(
        total=len(ids),
        desc=f"evaluating {split}",
        unit="example",
        disable=None if accelerator.is_main_process else True,
        file=sys.stderr,
        leave=False,
        dynamic_ncols=True,
    )
    with torch.no_grad(), bar:
        for start in range(0, largest_share, batch_size):
            batch = ids[start : start + batch_size]
            dummy = np.zeros(1, dtype=np.int64)
            inputs = examples.collate(batch if len(batch) else dummy)
            with first_batch if first_batch is not None and start == 0 else nullcontext():
                kept = task.decode(model, inputs)
            # Nothing is kept of a dummy's one row.
            parts.append({name: rows[: len(batch)].cpu().numpy() for name, rows in kept.items()})
            bar.update(len(batch))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _refuse_not_finite(kept: Kept, split: str) -> None:
    count = len(next(iter(kept.values())))
    bad = np.zeros(count, dtype=bool)
    for rows in kept.values():
        if np.issubdtype(rows.dtype, np.floating):
            bad |= ~np.isfinite(rows.reshape(count, -1)).all(axis=1)
    if bad.any():
        raise TrainingStopped(
            f"evaluation on {split}: {int(bad.sum())} of {count} examples have a probability that "
            "is not finite. In fp16 an activation above 65504 does this: use --mixed_precision "
            "bf16, or fp32. If training diverged (see the loss in history.jsonl), lower "
            "--learning_rate, or add --warmup_ratio."
        )
