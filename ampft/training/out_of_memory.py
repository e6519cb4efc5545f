"""Repeats steps that run out of memory in smaller micro-batches, or stops with an explanation."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from ampft.data.steps import StepBatch, StepBatches
from ampft.errors import TrainingStopped
from ampft.text.terminal import labelled

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
    "To reduce memory, use --gradient_checkpointing, a lower --max_seq_length or a smaller model."
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


class Snapshot:
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
        on_cuda = device.type == "cuda"
        self._cuda_random = torch.cuda.get_rng_state(device) if on_cuda else None

    def restore(self) -> None:
        """Restore the state, drop the gradients, and return freed memory to the device."""
        for parameter in self._model.parameters():
            parameter.grad = None
        for buffer, value in self._buffers:
            buffer.copy_(value)
        torch.set_rng_state(self._random)
        np.random.set_state(self._numpy_random)  # noqa: NPY002
        if self._cuda_random is not None:
            torch.cuda.set_rng_state(self._cuda_random, self._device)
        release_memory(self._device)


def release_memory(device: torch.device) -> None:
    """Free objects in reference cycles, and return freed memory to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def forget_peak_memory(device: torch.device) -> None:
    """Begin the measurement of peak memory again, after a trial; on a CPU that is not possible."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


@dataclass
class OutOfMemoryRetries:
    """Computes the gradient of a step, and retries in smaller micro-batches if memory runs out.

    Attributes:
        model: Model, whose buffers and random state are restored before a step is repeated.
        step_batches: Step batches with the current number of micro-batches.
        can_repeat: Whether a step may be repeated. Several processes cannot repeat one, because
            they communicate in the backward pass.
        advice: Advice for the user if the step may not be repeated.
        write: Function that prints a line above the progress bar.
    """

    model: nn.Module
    step_batches: StepBatches
    can_repeat: bool
    advice: str
    write: Callable[[str], None]

    def gradient(
        self, compute: Callable[[StepBatch], list[Tensor]], step_batch: StepBatch
    ) -> tuple[StepBatch, list[Tensor]]:
        """Call `compute` with a step batch until it fits into memory.

        Args:
            compute: Function that accumulates the gradient of a step batch and returns the losses
                of its micro-batches. Gradients are empty when it is called.
            step_batch: Step batch from the loader.

        Returns:
            The step batch with the micro-batches that were used, and the result of `compute`.

        Raises:
            OutOfMemory: The step does not fit, and cannot be repeated or already has single
                examples as micro-batches.
        """
        if self.step_batches.rounds(step_batch) > len(step_batch.micro_batches):
            step_batch = self.step_batches.recut(step_batch)
        snapshot = Snapshot(self.model) if self.can_repeat else None
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
