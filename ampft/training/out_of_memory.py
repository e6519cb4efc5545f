"""Steps that run out of memory: repeated exactly in smaller micro-batches, or refused clearly."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ampft.data.steps import StepBatch, StepBatches
from ampft.errors import TrainingStopped
from ampft.text.terminal import labelled

# What torch says in a RuntimeError that is not an OutOfMemoryError: its CPU allocator, cuBLAS, MPS.
_PHRASES = (
    "not enough memory: you tried",
    "can't allocate memory",
    "out of memory",
    "ALLOC_FAILED",
)
MEMORY_ADVICE = "--gradient_checkpointing, a lower --max_seq_length or a smaller model need less."


class OutOfMemory(TrainingStopped):
    """A step does not fit into memory, and smaller micro-batches do not help or are not allowed."""

    status = "interrupted"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed, on the device or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)


@contextmanager
def explain_out_of_memory() -> Iterator[None]:
    """Turn memory that runs out outside of micro-batches into a message.

    Raises:
        OutOfMemory: In place of what torch raised.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(
            f"memory ran out: {_one_line(error)}. In an evaluation, lower "
            "--per_device_eval_batch_size; otherwise take a smaller model."
        ) from error


class Snapshot:
    """What a forward and backward pass changes: random state and buffers; gradients are empty."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        self._random = torch.get_rng_state()
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
        if self._cuda_random is not None:
            torch.cuda.set_rng_state(self._cuda_random, self._device)
        release_memory(self._device)


def release_memory(device: torch.device) -> None:
    """Free what only reference cycles hold, and return freed memory to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@dataclass
class OutOfMemoryRetries:
    """Computes the gradient of a step, again in smaller micro-batches when memory runs out.

    Attributes:
        model: Its buffers and random state are restored before a step is repeated.
        step_batches: In the current number of micro-batches.
        repeats: Whether a step is repeated. Several processes cannot: they communicate in the
            backward pass.
        advice: What the user can do where it is not.
        write: Prints a line above the progress bar.
    """

    model: nn.Module
    step_batches: StepBatches
    repeats: bool
    advice: str
    write: Callable[[str], None]

    def gradient(
        self, compute: Callable[[StepBatch], list[Tensor]], step_batch: StepBatch
    ) -> tuple[StepBatch, list[Tensor]]:
        """Call `compute` with a step batch until it fits into memory.

        Args:
            compute: Adds up the gradient of a step batch and returns the losses of its
                micro-batches. Gradients are empty when it is called.
            step_batch: As the loader cut it.

        Returns:
            The step batch in the micro-batches that it was computed in, and what `compute`
            returned.

        Raises:
            OutOfMemory: It does not fit, and cannot be repeated or has single examples already.
        """
        if self.step_batches.rounds(step_batch) > len(step_batch.micro_batches):
            step_batch = self.step_batches.recut(step_batch)
        before = Snapshot(self.model) if self.repeats else None
        while True:
            try:
                return step_batch, compute(step_batch)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                if before is None:
                    message = f"memory ran out: {_one_line(error)}. {self.advice}"
                    raise OutOfMemory(message) from error
                if all(len(micro_batch.ids) == 1 for micro_batch in step_batch):
                    raise OutOfMemory(
                        f"memory ran out with a single example: {_one_line(error)}. {MEMORY_ADVICE}"
                    ) from error
            # Here the error is gone, and with it the tensors of its frames.
            before.restore()
            step_batch = self._cut_again(step_batch)

    def _cut_again(self, step_batch: StepBatch) -> StepBatch:
        """Return a step batch in twice as many micro-batches, like all that follow."""
        twice = 2 * len(step_batch.micro_batches)
        more = max(twice, self.step_batches.micro_batches)
        self.step_batches = replace(self.step_batches, micro_batches=more)
        smaller = self.step_batches.recut(step_batch)
        text = (
            f"ran out: epoch {step_batch.epoch + 1}, step {step_batch.step + 1} is repeated in "
            f"{len(smaller.micro_batches)} micro-batches; later steps are cut likewise"
        )
        self.write(labelled("memory", text))
        return smaller


def _one_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].split(". ")[0].rstrip(".") or type(error).__name__
