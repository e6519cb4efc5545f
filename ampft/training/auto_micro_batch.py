"""Finds the largest micro-batches that fit into memory, by trial before the training starts."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn

from ampft.data.steps import MicroBatch, StepBatches
from ampft.errors import InputError
from ampft.machine import headroom, status_bytes
from ampft.training.out_of_memory import (
    MEMORY_ADVICE,
    Snapshot,
    forget_peak_memory,
    is_out_of_memory,
    release_memory,
)

if TYPE_CHECKING:
    from accelerate import Accelerator

Loss = Callable[[nn.Module, MicroBatch], Tensor]

# Factor on the growth predicted for a larger micro-batch on a CPU, which is tried only if that
# fits: allocators round up and fragment, and attention scores grow faster than the tokens.
SAFETY_MARGIN = 1.25
_NOTHING_FITS = 2**31  # larger than any number of micro-batches, for the maximum over processes


def fit_micro_batches(
    accelerator: Accelerator,
    model: nn.Module,
    loss: Loss,
    step_batches: StepBatches,
    *,
    averages_weights: bool = False,
    state_per_weight: int = 2,
) -> StepBatches:
    """Return `step_batches` with the smallest number of micro-batches that fits into memory.

    The step batch of the longest examples is run forward and backward, with memory allocated for
    gradients, optimizer state and average. The model and the random state are restored afterwards.
    All processes use the largest number that one of them needs.

    Args:
        accelerator: Accelerator that prepared the model.
        model: Prepared model, without the wrapper for communication.
        loss: Function that returns the summed loss of a micro-batch.
        step_batches: Step batches of the training split, with any number of micro-batches.
        averages_weights: Whether the training keeps a float32 average of the trained weights.
        state_per_weight: Numbers of optimizer state per weight, such as AdamW's two moments, which
            the first step allocates after its backward pass.

    Raises:
        InputError: Single examples do not fit, or the weights are sharded over processes.
    """
    if accelerator.distributed_type == DistributedType.FSDP:
        raise InputError(
            "--auto_micro_batch is not supported with FSDP, which shards the weights and "
            "communicates in every pass, so that a process cannot measure on its own. Remove the "
            "flag and set --gradient_accumulation_steps."
        )
    budget = None
    if accelerator.device.type == "cpu":
        # No process allocates memory before all have read how much is available.
        accelerator.wait_for_everyone()
        budget = headroom(int(os.environ.get("LOCAL_WORLD_SIZE", accelerator.num_processes)))
        accelerator.wait_for_everyone()
    number = fewest_micro_batches(
        model,
        loss,
        step_batches,
        memory_budget=budget,
        averages_weights=averages_weights,
        state_per_weight=state_per_weight,
    )
    local = torch.tensor([_NOTHING_FITS if number is None else number], device=accelerator.device)
    largest = int(accelerator.gather(local).max())
    if largest == _NOTHING_FITS:
        raise InputError(
            f"--auto_micro_batch: single examples do not fit into memory. {MEMORY_ADVICE}"
        )
    return replace(step_batches, micro_batches=largest)


def fewest_micro_batches(
    model: nn.Module,
    loss: Loss,
    step_batches: StepBatches,
    *,
    memory_budget: int | None,
    averages_weights: bool = False,
    state_per_weight: int = 2,
) -> int | None:
    """Return the smallest number of micro-batches with which the costliest step batch fits.

    With a budget, the search starts with single examples and doubles the size of the micro-batches
    for as long as the growth of the peak resident set predicts that they fit. Without one, it
    starts with one micro-batch and doubles their number for as long as memory runs out.

    Args:
        model: Same as in `fit_micro_batches`.
        loss: Same as in `fit_micro_batches`.
        step_batches: Same as in `fit_micro_batches`.
        memory_budget: Bytes by which the process may grow, where the kernel kills processes that
            run out of memory; None where allocations raise instead.
        averages_weights: Same as in `fit_micro_batches`.
        state_per_weight: Same as in `fit_micro_batches`.

    Returns:
        A power of two or the number of examples; None if single examples do not fit.
    """
    snapshot, was_training = Snapshot(model), model.training
    trial = _Trial(model.train(), loss, step_batches, averages_weights, state_per_weight)
    try:
        if memory_budget is None:
            return trial.search_from_largest()
        return trial.search_from_smallest(memory_budget)
    finally:
        model.train(was_training)
        snapshot.restore()
        forget_peak_memory(next(model.parameters()).device)


@dataclass
class _Trial:
    """Runs the costliest step batch of a process with several numbers of micro-batches."""

    model: nn.Module
    loss: Loss
    step_batches: StepBatches
    averages_weights: bool
    state_per_weight: int
    state: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._trainable = [p for p in self.model.parameters() if p.requires_grad]
        examples = len(self.step_batches.costliest_ids)
        doublings = range((examples - 1).bit_length())
        self.candidates = [*(2**power for power in doublings), examples]

    def search_from_largest(self) -> int | None:
        if not self._fits(self._allocate_state):
            return None
        return next((number for number in self.candidates if self._fits(self._run, number)), None)

    def search_from_smallest(self, memory_budget: int) -> int | None:
        copies = 1 + self.state_per_weight
        memory_budget -= copies * sum(parameter.nbytes for parameter in self._trainable)
        if self.averages_weights:
            float32 = torch.float32.itemsize
            memory_budget -= float32 * sum(parameter.numel() for parameter in self._trainable)
        if memory_budget < 0 or not self._fits(self._allocate_state):
            return None
        initial = status_bytes("VmRSS")
        if initial is None:
            raise InputError(
                "--auto_micro_batch: on a CPU this requires /proc/self/status, which this system "
                "does not have. Remove the flag and set --gradient_accumulation_steps."
            )
        smallest, growth_per_cost = None, 0.0
        for number in reversed(self.candidates):
            cost = self.step_batches.largest_cost(number)
            predicted = growth_per_cost * cost * SAFETY_MARGIN
            if predicted > memory_budget or not self._fits(self._run, number):
                break
            # A peak from before the search makes the growth too large, never too small.
            growth_per_cost = ((status_bytes("VmHWM") or initial) - initial) / cost
            smallest = number
        return smallest

    def _fits(self, attempt: Callable[..., None], *args: int) -> bool:
        try:
            attempt(*args)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        else:
            fits = True
        if not fits:  # after the except block, which has freed the error and its frames' tensors
            release_memory(self._trainable[0].device)
        return fits

    def _allocate_state(self) -> None:
        """Allocate all that a training keeps, with ones so that the pages are touched."""
        dtypes: list[torch.dtype | None] = [None] * self.state_per_weight
        if self.averages_weights:
            dtypes.append(torch.float32)
        for parameter in self._trainable:
            parameter.grad = torch.ones_like(parameter)
            self.state += [
                torch.ones_like(parameter, dtype=dtype, requires_grad=False) for dtype in dtypes
            ]

    def _run(self, number: int) -> None:
        for micro_batch in self.step_batches.costliest(number):
            self.loss(self.model, micro_batch).backward()
