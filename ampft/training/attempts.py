"""Steps that run out of memory: repeated exactly in smaller micro-batches, or refused clearly."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType

import torch
from torch import Tensor, nn

from ampft.data.steps import MicroBatch, StepBatch, StepBatches
from ampft.errors import TrainingStopped
from ampft.text.terminal import labelled

# What torch says in a RuntimeError that is no OutOfMemoryError: its CPU allocator, cuBLAS, MPS.
_PHRASES = (
    "not enough memory: you tried",
    "can't allocate memory",
    "out of memory",
    "ALLOC_FAILED",
)
NEEDS_LESS = "--gradient_checkpointing, a lower --max_seq_length or a smaller model need less."


class OutOfMemory(TrainingStopped):
    """A step does not fit into memory, and smaller micro-batches do not help or are not allowed."""

    status = "interrupted"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed, on the device or on the host."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in _PHRASES)


@contextmanager
def memory_explained() -> Iterator[None]:
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
            f"memory ran out: {_one_line(error)}. In an evaluation a lower "
            "--per_device_eval_batch_size needs less, else a smaller model."
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
        """Put the state back, drop the gradients, and give freed memory back to the device."""
        for parameter in self._model.parameters():
            parameter.grad = None
        for buffer, value in self._buffers:
            buffer.copy_(value)
        torch.set_rng_state(self._random)
        if self._cuda_random is not None:
            torch.cuda.set_rng_state(self._cuda_random, self._device)
        let_go(self._device)


def let_go(device: torch.device) -> None:
    """Free what only cycles hold, and give freed memory back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@dataclass
class Attempts:
    """Cuts step batches again in the middle of a training.

    Attributes:
        model: Its buffers and random state are put back, its gradients dropped.
        step_batches: In the current number of micro-batches.
        repeats: Whether a step that runs out of memory is repeated in more micro-batches. Several
            processes cannot: they communicate in the backward pass.
        advice: What to do where it is not.
        write: Prints a line above the progress bar.
    """

    model: nn.Module
    step_batches: StepBatches
    repeats: bool
    advice: str
    write: Callable[[str], None]

    def of(self, step_batch: StepBatch) -> Attempt:
        """Return a step batch of the loader, in the current number of micro-batches."""
        if self.step_batches.rounds(step_batch) > len(step_batch.micro_batches):
            step_batch = self.step_batches.recut(step_batch)
        return Attempt(self, step_batch)

    def cut_again(self, step_batch: StepBatch) -> StepBatch:
        """Return a step batch in twice as many micro-batches, as all that follow."""
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


class Attempt:
    """A step batch on its way through the model.

    It iterates over the micro-batches, and is the context that each goes through the model in.
    Where memory runs out, the iteration begins again with smaller micro-batches, everything as
    before the step.

    Attributes:
        step_batch: In the micro-batches that it is cut into now.
        losses: What `backward` returned, of this iteration.
    """

    def __init__(self, attempts: Attempts, step_batch: StepBatch) -> None:
        self.step_batch = step_batch
        self.losses: list[Tensor] = []
        self._attempts = attempts
        self._before = Snapshot(attempts.model) if attempts.repeats else None
        self._current: MicroBatch | None = None
        self._ran_out = False

    def __iter__(self) -> Iterator[MicroBatch]:
        while True:
            for micro_batch in self.step_batch:
                self._current = micro_batch
                yield micro_batch
                if self._ran_out:
                    break
            else:
                torch.clear_autocast_cache()  # the weights are about to change
                return
            assert self._before is not None
            self._before.restore()
            self.losses.clear()
            self._ran_out = False
            self.step_batch = self._attempts.cut_again(self.step_batch)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None or not is_out_of_memory(error):
            return False
        if self._before is None:
            message = f"memory ran out: {_one_line(error)}. {self._attempts.advice}"
            raise OutOfMemory(message) from error
        if self._current is None or len(self._current.ids) == 1:
            raise OutOfMemory(
                f"memory ran out with a single example: {_one_line(error)}. {NEEDS_LESS}"
            ) from error
        self._ran_out = True
        return True


def _one_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].split(". ")[0].rstrip(".") or type(error).__name__
