"""Predict a split: without gradients, sorted by length, streamed, and counted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from accelerate.utils import gather_object
from torch import nn
from tqdm import tqdm

from ampft.data.dataset import label_codes
from ampft.data.steps import Examples, IntArray
from ampft.errors import TrainingStopped
from ampft.metrics.predictions import Predictions, check_census
from ampft.tasks.task import Task

if TYPE_CHECKING:
    from accelerate import Accelerator


def evaluate(
    accelerator: Accelerator, model: nn.Module, task: Task, split: str, *, batch_size: int
) -> Predictions:
    """Return the predictions of a split, the same in any number of processes.

    Args:
        accelerator: The one that prepared `model`.
        model: Left in training mode or not, as it was.
        task: Of the data.
        split: Such as "validation".
        batch_size: Examples per forward pass and process.

    Raises:
        TrainingStopped: A probability is not finite.
    """
    examples = task.examples(split)
    longest_first = np.argsort(-examples.lengths, kind="stable")
    ids = longest_first[accelerator.process_index :: accelerator.num_processes]
    was_training = model.training
    model.eval()
    probabilities = _probabilities(accelerator, model, task, examples, ids, batch_size, split)
    model.train(was_training)
    # Ids travel with their rows, so that nothing depends on the order in which they arrive.
    gathered = gather_object([(ids, probabilities)])
    all_ids = np.concatenate([part[0] for part in gathered])
    all_probabilities = np.concatenate([part[1] for part in gathered])
    count = len(examples.weights)
    check_census(all_ids, count)
    if not np.isfinite(all_probabilities).all():
        bad = int((~np.isfinite(all_probabilities).all(axis=1)).sum())
        raise TrainingStopped(
            f"evaluation on {split}: {bad} of {count} examples have a probability that is not "
            "finite. In fp16 an activation above 65504 does this: use --mixed_precision bf16, or "
            "fp32. Where training diverged (see the loss in history.jsonl): lower --learning_rate, "
            "or add --warmup_ratio."
        )
    order = np.argsort(all_ids)
    return Predictions(
        example_ids=all_ids[order],
        labels=label_codes(task.data.splits[split]),
        probabilities=all_probabilities[order],
        label_names=task.label_names,
        split=split,
    )


def _probabilities(
    accelerator: Accelerator,
    model: nn.Module,
    task: Task,
    examples: Examples,
    ids: IntArray,
    batch_size: int,
    split: str,
) -> npt.NDArray[np.float32]:
    """Return (m, C) softmax probabilities in float32; logits leave the device batch by batch."""
    # Every process goes through the model equally often: DistributedDataParallel broadcasts the
    # buffers in a forward pass, and sharded models communicate in each.
    largest_share = -(-len(examples.weights) // accelerator.num_processes)
    result = np.empty((len(ids), len(task.label_names)), dtype=np.float32)
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
            part = ids[start : start + batch_size]
            dummy = np.zeros(1, dtype=np.int64)
            logits = task.logits(model, examples.collate(part if len(part) else dummy))
            # Of a dummy's one row, none is kept.
            result[start : start + len(part)] = logits[: len(part)].softmax(dim=-1).cpu().numpy()
            bar.update(len(part))
    return result
