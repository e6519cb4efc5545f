"""Memory that runs out: steps repeated in smaller micro-batches, and the largest ones that fit."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from ampft.data.step_batches import MicroBatch, StepBatch, StepBatches
from ampft.engine.generators import device_random_state, restore_device_random_state
from ampft.errors import InputError, TrainingStopped
from ampft.machine import available_memory_bytes, status_bytes
from ampft.precision.accelerator import is_sharded
from ampft.text.terminal import labelled

if TYPE_CHECKING:
    from accelerate import Accelerator

# Messages of a RuntimeError that is not an OutOfMemoryError, from the CPU allocator, cuBLAS or MPS.
_PHRASES = (
    "not enough memory: you tried",
    "can't allocate memory",
    "out of memory",
    "ALLOC_FAILED",
    # Of cuDNN, where no algorithm of a convolution has room for its workspace.
    "CUDNN_STATUS_NOT_SUPPORTED",
    "unable to find an engine to execute",
)
MEMORY_ADVICE = (
    "To use less memory, add --gradient_checkpointing or --lora_r 8, shorten texts "
    "(--max_seq_length) or sounds (--max_length_seconds), or choose a smaller model."
)


class OutOfMemory(TrainingStopped):
    """A step does not fit into memory, and smaller micro-batches are not possible or not enough."""

    status = "interrupted"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed, on the device or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Turn errors of allocations outside of training steps into a message.

    Raises:
        OutOfMemory: An allocation failed inside the context.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"ran out of memory: {_one_line(error)}. During an evaluation, lower "
            "--per_device_eval_batch_size; otherwise use a smaller model."
        ) from error


class RandomAndBufferSnapshot:
    """The state that forward and backward passes change: random state and buffers.

    Gradients are not stored; they must be empty.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        self._random = torch.get_rng_state()
        # SpecAugment of transformers draws its masks from numpy's global generator.
        self._numpy_random = np.random.get_state()  # noqa: NPY002
        self._device = device = next(model.parameters()).device
        self._device_random = device_random_state(device)

    def restore(self, *, releases: bool = True) -> None:
        """Restore the state and drop the gradients; `releases` frees memory too, in up to 0.5 s."""
        for parameter in self._model.parameters():
            parameter.grad = None
        for buffer, value in self._buffers:
            buffer.copy_(value)
        torch.set_rng_state(self._random)
        np.random.set_state(self._numpy_random)  # noqa: NPY002
        restore_device_random_state(self._device_random, self._device)
        if releases:
            release_memory(self._device)


def release_memory(device: torch.device) -> None:
    """Free objects in reference cycles, and return freed memory to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def reset_peak_memory(device: torch.device) -> None:
    """Begin the measurement of peak memory again, after a trial; on a CPU that is not possible."""
    if device.type == "cuda" and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats(device)


@dataclass
class OutOfMemoryRetries:
    """Computes the gradient of a step, and retries in smaller micro-batches if memory runs out."""

    # Model, whose buffers and random state are restored before a step is repeated.
    model: nn.Module
    step_batches: StepBatches  # Step batches with the current number of micro-batches.
    # Whether a step may be repeated. Several processes cannot repeat one, because they communicate
    # in the backward pass.
    can_repeat: bool
    advice: str  # Advice for the user if the step may not be repeated.
    write: Callable[[str], None]  # Function that prints a line above the progress bar.

    def gradient(
        self, compute: Callable[[StepBatch], list[Tensor]], step_batch: StepBatch
    ) -> tuple[StepBatch, list[Tensor]]:
        """Call `compute` with a step batch until it fits into memory.

        Args:
            compute: Function that accumulates the gradient of a step batch and returns the losses
                of its micro-batches. Gradients are empty when it is called.

        Returns:
            The step batch with the micro-batches that were used, and the result of `compute`.

        Raises:
            OutOfMemory: The step does not fit, and cannot be repeated or already has single
                examples as micro-batches.
        """
        if self.step_batches.rounds(step_batch) > len(step_batch.micro_batches):
            step_batch = self.step_batches.recut(step_batch)
        snapshot = RandomAndBufferSnapshot(self.model) if self.can_repeat else None
        while True:
            try:
                return step_batch, compute(step_batch)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                if snapshot is None:
                    message = f"ran out of memory: {_one_line(error)}. {self.advice}"
                    raise OutOfMemory(message) from error
                if all(len(micro_batch.ids) == 1 for micro_batch in step_batch):
                    raise OutOfMemory(
                        f"ran out of memory with a single example: {_one_line(error)}. "
                        f"{MEMORY_ADVICE}"
                    ) from error
            # After the except block, which has freed the error and the tensors of its frames.
            snapshot.restore()
            step_batch = self._split_further(step_batch)

    def _split_further(self, step_batch: StepBatch) -> StepBatch:
        """Double the number of micro-batches of a step batch and of all later ones."""
        doubled = 2 * len(step_batch.micro_batches)
        number = max(doubled, self.step_batches.micro_batches)
        self.step_batches = replace(self.step_batches, micro_batches=number)
        smaller = self.step_batches.recut(step_batch)
        text = (
            f"ran out in epoch {step_batch.epoch + 1}, step {step_batch.step + 1}: this step and "
            f"all later ones now use {len(smaller.micro_batches)} micro-batches"
        )
        self.write(labelled("memory", text))
        return smaller


def _one_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].split(". ")[0].rstrip(".") or type(error).__name__


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
    if is_sharded(accelerator):
        raise InputError(
            "--auto_micro_batch is not supported with FSDP, which shards the weights and "
            "communicates in every pass, so that a process cannot measure on its own. Remove the "
            "flag and set --gradient_accumulation_steps."
        )
    budget = None
    if accelerator.device.type == "cpu":
        # No process allocates memory before all have read how much is available.
        accelerator.wait_for_everyone()
        budget = available_memory_bytes(
            int(os.environ.get("LOCAL_WORLD_SIZE", accelerator.num_processes))
        )
        accelerator.wait_for_everyone()
    trial = MicroBatchTrial(model, loss, step_batches, averages_weights, state_per_weight)
    number = trial.fewest_micro_batches(budget)
    local = torch.tensor([_NOTHING_FITS if number is None else number], device=accelerator.device)
    largest = int(accelerator.gather(local).max())
    if largest == _NOTHING_FITS:
        raise InputError(
            f"--auto_micro_batch: single examples do not fit into memory. {MEMORY_ADVICE}"
        )
    return replace(step_batches, micro_batches=largest)


@dataclass
class MicroBatchTrial:
    """Runs the costliest step batch of a process with several numbers of micro-batches."""

    model: nn.Module  # Model, without the wrapper for communication.
    loss: Loss  # Function that returns the summed loss of a micro-batch.
    # Step batches of the training split, with any number of micro-batches.
    step_batches: StepBatches
    # Whether the training keeps a float32 average of the trained weights.
    averages_weights: bool = False
    state_per_weight: int = 2  # Numbers of optimizer state per weight.
    # What a training would keep, once it is allocated.
    state: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Choose the numbers to try: powers of two, and the number of examples."""
        self._trainable = [p for p in self.model.parameters() if p.requires_grad]
        examples = len(self.step_batches.costliest_ids)
        doublings = range((examples - 1).bit_length())
        self._candidates = [*(2**power for power in doublings), examples]

    def fewest_micro_batches(self, memory_budget: int | None) -> int | None:
        """Return the smallest number with which the step batch fits; None if none does.

        With a budget, the search starts with single examples and doubles the size of the
        micro-batches for as long as the growth of the peak resident set predicts that they fit.
        Without one, it starts with one micro-batch and doubles their number for as long as memory
        runs out. The model and the random states are restored afterwards.

        Args:
            memory_budget: Bytes by which the process may grow, where the kernel kills processes
                that run out of memory; None where allocations raise instead.
        """
        snapshot, was_training = RandomAndBufferSnapshot(self.model), self.model.training
        self.model.train()
        try:
            if memory_budget is not None:
                return self._search_from_smallest(memory_budget)
            if not self._fits(self._allocate_state):
                return None
            return next((n for n in self._candidates if self._fits(self._run, n)), None)
        finally:
            self.model.train(was_training)
            snapshot.restore()
            reset_peak_memory(self._trainable[0].device)

    def _search_from_smallest(self, memory_budget: int) -> int | None:
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
        for number in reversed(self._candidates):
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
