"""Predicts a split without gradients, by length, in the mode of the run or in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn

from ampft.errors import InputError, TrainingStopped, check_type
from ampft.models.weights import cast_in_place
from ampft.precision.extension_points import EMULATION
from ampft.precision.modes import BASELINE
from ampft.precision.resolve import Precision
from ampft.precision.tf32 import apply_float32_policy
from ampft.tasks.outcome import Outcome, check_ids_complete
from ampft.tasks.task import Task
from ampft.text.terminal import progress_bar

Decoded = dict[str, npt.NDArray[Any]]  # such as probabilities, one row per example


def evaluate(
    accelerator: Accelerator,
    model: nn.Module,
    task: Task,
    split: str,
    *,
    batch_size: int,
    first_batch: AbstractContextManager[None] | None = None,
    poll: Callable[[], None] | None = None,
) -> Outcome:
    """Predict a split and return the outcome, which is the same for any number of processes.

    Args:
        accelerator: Accelerator that prepared `model`.
        model: Model, whose training or evaluation mode is restored afterwards.
        task: Task that decodes the logits and makes the outcome.
        split: Name of the split, such as "validation".
        batch_size: Examples per forward pass and process.
        first_batch: Context of the first forward pass, which may measure it.
        poll: Callback before each forward pass, as often in all processes, which may raise.

    Raises:
        TrainingStopped: A prediction is not finite.
    """
    check_type("evaluate", "accelerator", accelerator, Accelerator)
    check_type("evaluate", "model", model, nn.Module)
    check_type("evaluate", "split", split, str)
    check_type("evaluate", "batch_size", batch_size, int)
    examples = task.examples(split)
    longest_first = np.argsort(-examples.lengths, kind="stable")
    ids = longest_first[accelerator.process_index :: accelerator.num_processes]
    # Every process must run as many forward passes as the others: DistributedDataParallel
    # broadcasts buffers in each, and sharded models communicate.
    largest_share = -(-len(examples.weights) // accelerator.num_processes)
    bar = progress_bar(
        shown=accelerator.is_main_process,
        total=len(ids),
        desc=f"evaluating {split}",
        unit="example",
        leave=False,
    )
    is_alone = accelerator.num_processes == 1
    decoded = _Rows(ids if is_alone else np.arange(len(ids)))
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), bar:
            for start in range(0, largest_share, batch_size):
                if poll is not None:
                    poll()
                batch = ids[start : start + batch_size]
                dummy = np.zeros(1, dtype=np.int64)
                inputs = examples.collate(batch if len(batch) else dummy)
                with first_batch if first_batch is not None and start == 0 else nullcontext():
                    rows = task.decode(model, inputs)
                # For the dummy, len(batch) is 0, so that its row is dropped.
                decoded.add({name: as_array(rows[name])[: len(batch)] for name in rows})
                bar.update(len(batch))
    finally:
        model.train(was_training)
    # Ids are gathered with their rows, so that the order of the processes does not matter.
    gathered = [(ids, {})] if is_alone else gather_object([(ids, decoded.arrays)])
    check_ids_complete(np.concatenate([part for part, _ in gathered]), len(examples.weights))
    ordered = decoded.arrays
    if not is_alone:
        ordered = _ordered([(part, rows) for part, rows in gathered if len(part)])
    _check_finite(ordered, split)
    return task.outcome(split, ordered)


class _Rows:
    """Decoded rows of one process, whose batches are written into one array of each name.

    Joining them later would need a second copy of all, which is the peak with many classes.
    """

    def __init__(self, places: npt.NDArray[np.int64]) -> None:
        self._places, self._start = places, 0
        self.arrays: Decoded = {}

    def add(self, batch: Decoded) -> None:
        """Add the rows of the next batch."""
        for name, rows in batch.items():
            if name not in self.arrays:
                self.arrays[name] = np.empty((len(self._places), *rows.shape[1:]), rows.dtype)
            kept = self.arrays[name]
            if (common := np.promote_types(kept.dtype, rows.dtype)) != kept.dtype:
                kept = self.arrays[name] = kept.astype(common)
            kept[self._places[self._start : self._start + len(rows)]] = rows
        self._start += len(next(iter(batch.values())))


def _ordered(parts: Sequence[tuple[npt.NDArray[np.int64], Decoded]]) -> Decoded:
    """Return the rows of all processes in the order of their ids, and take them from `parts`."""
    found: Decoded = {}
    for name in list(parts[0][1]):
        arrays = [(ids, rows.pop(name)) for ids, rows in parts]
        shape = (sum(len(ids) for ids, _ in arrays), *arrays[0][1].shape[1:])
        found[name] = np.empty(shape, np.result_type(*(array for _, array in arrays)))
        for ids, array in arrays:
            found[name][ids] = array
    return found


def as_array(rows: Any) -> npt.NDArray[Any]:
    """Return decoded rows as an array, which they are already if they are objects."""
    return rows.cpu().numpy() if isinstance(rows, torch.Tensor) else rows


def _check_finite(decoded: Decoded, split: str) -> None:
    count = len(next(iter(decoded.values())))
    nonfinite = np.zeros(count, dtype=bool)
    for rows in decoded.values():
        if np.issubdtype(rows.dtype, np.floating):
            nonfinite |= ~np.isfinite(rows.reshape(count, -1)).all(axis=1)
        elif rows.dtype == object and not isinstance(rows[0], bytes):
            nonfinite |= ~np.array([np.isfinite(row).all() for row in rows])
    if nonfinite.any():
        raise TrainingStopped(
            f"evaluation on {split}: {int(nonfinite.sum())} of {count} examples have a probability "
            "that is not finite. In fp16, activations above 65504 cause this: use "
            "--mixed_precision bf16 or fp32. If training diverged (see the loss in history.jsonl), "
            "lower --learning_rate or add --warmup_ratio."
        )


def check_float32_possible(precision: Precision) -> None:
    """Check that `--evaluate_fp32` is possible: the model was not changed for its precision.

    Raises:
        InputError: fp8 has replaced layers.
    """
    if precision.properties.replaces_layers:
        raise InputError(
            "--evaluate_fp32: fp8 replaces layers of the model, so that the same model cannot "
            "predict in float32. Remove the flag, and predict with the saved model: ampft predict "
            "--mixed_precision fp32."
        )


@contextmanager
def in_float32(
    accelerator: Accelerator, model: nn.Module, precision: Precision
) -> Iterator[nn.Module]:
    """Yield the model without autocast, TF32 and emulation, which are restored afterwards.

    Args:
        accelerator: Accelerator that prepared `model`.
        model: Model. Its bfloat16 weights are float32 in the context, with exactly equal values.
        precision: Precision of the run.
    """
    plain: Any = accelerator.unwrap_model(model, keep_torch_compile=False)
    # Accelerate stores the forward pass that it wraps in autocast; fp32 and tf32 have no wrapper.
    wrapped, original = plain.__dict__.get("forward"), plain.__dict__.get("_original_forward")
    is_16_bit = precision.storage_dtype != torch.float32
    apply_float32_policy(replace(precision, mode=BASELINE))
    try:
        if original is not None:
            plain.forward = original
        if is_16_bit:
            cast_in_place(plain, torch.float32)
        products = EMULATION.get()
        suspended = nullcontext() if products is None else products.suspended()
        with suspended, torch.autocast(accelerator.device.type, enabled=False):
            yield plain
    finally:
        if is_16_bit:
            cast_in_place(plain, precision.storage_dtype)
        if original is not None:
            plain.forward = wrapped
        apply_float32_policy(precision)
