"""Step batches: the examples of one optimizer step, and how they are cut into micro-batches.

The training loader yields one step batch per optimizer step, so lengths, schedules, logs and resume
count optimizer steps. The sequence of effective batches depends only on the seed, the epoch
and the effective batch size, not on the number of processes or micro-batches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils.pin_memory import pin_memory

from ampft.errors import InputError

if TYPE_CHECKING:
    from accelerate import Accelerator

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class InputExamples(Protocol):
    """The inputs of the examples of one split, as tensors on request."""

    @property
    def lengths(self) -> IntArray:
        """(n,) cost of each example: its number of tokens, or 1 if all cost the same."""

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        """Return the model's inputs of the examples `ids`, padded to one shape."""


class Examples(InputExamples, Protocol):
    """The examples of one split, whose tensors include `labels`."""

    @property
    def weights(self) -> FloatArray:
        """(n,) weight of each example in the loss: its class weight, or 1."""


@runtime_checkable
class AugmentedExamples(Protocol):
    """Examples that are augmented: training sees other tensors of them in each epoch or step."""

    def for_step(self, epoch: int, step: int) -> InputExamples:
        """Return the examples as a step of an epoch sees them; it depends only on these numbers."""


@runtime_checkable
class ScaledExamples(Protocol):
    """Examples whose tensors have another size in each step."""

    def in_largest_size(self) -> InputExamples:
        """Return the examples in the largest size that a step can have."""


@dataclass(frozen=True)
class TensorExamples:
    """Examples in memory, which all have the same cost."""

    # Tensors (n, ...) by name; the first dimension counts the examples.
    tensors: Mapping[str, Tensor]
    # (n,) weight of each example in the loss, such as `class_weights[labels]`; None for 1.
    example_weights: Tensor | FloatArray | None = None

    @property
    def weights(self) -> FloatArray:
        """(n,) weight of each example in the loss.

        Raises:
            InputError: There is not one finite weight of at least 0 per example.
        """
        n = len(next(iter(self.tensors.values())))
        if any(len(tensor) != n for tensor in self.tensors.values()):
            sizes = ", ".join(f"{name} {len(tensor)}" for name, tensor in self.tensors.items())
            raise InputError(
                f"TensorExamples: the tensors have different numbers of rows ({sizes}). Pass "
                "tensors with one row for each example."
            )
        if self.example_weights is None:
            return np.ones(n)
        weights = torch.as_tensor(self.example_weights).detach().cpu().numpy().astype(np.float64)
        found = f"has the shape {weights.shape}" if weights.shape != (n,) else ""
        if not found and len(bad := np.flatnonzero(~np.isfinite(weights) | (weights < 0))):
            found = f"has {weights[bad[0]]:g} at index {bad[0]}"
        if not found and n and not weights.any():
            found = "has only zeros"
        if found:
            raise InputError(
                f"TensorExamples: example_weights {found}; it must hold one finite weight of at "
                f"least 0 for each of the {n} examples, and one above 0."
            )
        return weights

    @property
    def lengths(self) -> IntArray:
        """(n,) ones."""
        return np.ones(len(next(iter(self.tensors.values()))), dtype=np.int64)

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        """Return the rows `ids` of every tensor."""
        return {name: tensor[ids] for name, tensor in self.tensors.items()}


@dataclass(frozen=True)
class MicroBatch:
    """The part of a step batch that goes through the model at once."""

    ids: IntArray  # (m,) example ids.
    # The model's inputs and `labels` (m,), on the CPU; of an own loop, what its collate function
    # returns.
    inputs: Mapping[str, Tensor]
    # Whether the loss counts; False for the dummy of a process with fewer examples than others. Its
    # loss and gradient are 0, see `engine.step.backward`.
    counted: bool
    is_last: bool  # Whether it is the last of its step, when gradients are synchronized.
    packing: Any = None  # Layout of a model without padding; None if the model computes its own.


@dataclass
class Pass:
    """A forward and backward pass, of which a backward pass asks whether its loss counts."""

    # The micro-batch; None if a loop has gone on to others before a backward pass of this one.
    micro_batch: MicroBatch | None
    has_run: bool = False  # Whether a backward pass has been made.


_CURRENT_PASS: ContextVar[Pass | None] = ContextVar("_CURRENT_PASS", default=None)


def current_pass() -> Pass | None:
    """Return the pass that is being made: of the micro-batch that a loop has reached."""
    return _CURRENT_PASS.get()


@contextmanager
def pass_of(micro_batch: MicroBatch | None) -> Iterator[Pass]:
    """Return a context in which backward passes are those of a micro-batch."""
    outer, inner = _CURRENT_PASS.get(), Pass(micro_batch)
    _CURRENT_PASS.set(inner)
    try:
        yield inner
    finally:  # not by a token, because a loop that is left early ends this in another context
        _CURRENT_PASS.set(outer)
        if outer is not None:
            outer.has_run |= inner.has_run


@dataclass(frozen=True)
class StepBatch:
    """The examples of one optimizer step on one process; iterates over its micro-batches."""

    epoch: int  # Epoch, from 0.
    step: int  # Optimizer step within the epoch, from 0.
    effective_ids: IntArray  # (n,) example ids of the step over all processes, in their order.
    effective_weight: float  # Sum of the example weights of the effective batch.
    effective_length: int  # Sum of the example lengths (tokens) of the effective batch.
    micro_batches: tuple[MicroBatch, ...]  # The micro-batches of this process, at least one.
    wait_seconds: float = 0.0  # Time that the loop waited for this step batch.

    def __iter__(self) -> Iterator[MicroBatch]:
        is_known = True
        for micro_batch in self.micro_batches:
            with pass_of(micro_batch if is_known else None) as each:
                yield micro_batch
            is_known &= each.has_run  # otherwise the loop collects micro-batches before it uses one

    @property
    def ids(self) -> IntArray:
        """Example ids of this process that count, in the order of their use."""
        parts = [micro.ids for micro in self.micro_batches if micro.counted]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


@dataclass(frozen=True)
class StepBatches:
    """The step batches of every epoch of a training split."""

    examples: Examples  # The examples of the split.
    effective_batch_size: int  # Number of examples of one optimizer step, over all processes.
    micro_batches: int = 1  # Number of micro-batches of a full step batch, per process.
    seed: int = 0  # Seed of the order of examples.
    rank: int = 0  # Index of this process.
    world_size: int = 1  # Number of processes.
    # Whether a micro-batch costs its size times its longest length; otherwise it costs its number
    # of tokens.
    padded: bool = True
    # Number of worker processes that collate in advance; 0 collates in this process.
    num_workers: int = 0
    # Whether tensors are copied to pinned memory, and one step batch is collated ahead.
    pinned: bool = False
    # Whether each epoch has an order of its own; otherwise all have that of the examples.
    shuffled: bool = True
    drops_last: bool = False  # Whether a last step batch that is smaller is left out.
    # Function that returns a micro-batch with its `packing`; called where step batches are collated
    # ahead.
    finish: Callable[[MicroBatch], MicroBatch] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        """Number of optimizer steps per epoch; the last one may be smaller."""
        whole, rest = divmod(len(self.examples.weights), self.effective_batch_size)
        return whole + (rest > 0 and not self.drops_last)

    def effective_ids(self, epoch: int, step: int) -> IntArray:
        """Return the (n,) example ids of one optimizer step over all processes."""
        size = self.effective_batch_size
        return self._order(epoch)[step * size : (step + 1) * size]

    @classmethod
    def for_process(
        cls,
        accelerator: Accelerator,
        examples: Examples,
        *,
        batch_size: int,
        seed: int = 0,
        padded: bool = True,
        num_workers: int = 0,
    ) -> StepBatches:
        """Return the share of this process.

        Args:
            accelerator: Source of the processes and of the number of micro-batches.
            examples: The examples of the training split.
            batch_size: Number of examples of a micro-batch.
            seed: Seed of the order of examples.
            padded: Whether micro-batches are padded.
            num_workers: Number of worker processes.

        Raises:
            InputError: `batch_size` is not a whole number of at least 1, or the examples have
                invalid weights.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or batch_size < 1:
            raise InputError(
                f"batch_size: received {batch_size!r}; it must be a whole number of at least 1."
            )
        micro_batches = accelerator.gradient_accumulation_steps
        return cls(
            examples,
            effective_batch_size=batch_size * micro_batches * accelerator.num_processes,
            micro_batches=micro_batches,
            seed=seed,
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
            padded=padded,
            num_workers=num_workers,
            pinned=accelerator.device.type == "cuda",
        )

    def epoch(self, epoch: int, *, start: int = 0, stop: int | None = None) -> Iterator[StepBatch]:
        """Yield the step batches of an epoch from step `start` up to, but not including, `stop`."""
        end = len(self) if stop is None else min(stop, len(self))
        loader = DataLoader(
            # Workers finish nothing, and could not receive a model.
            _EpochSteps(replace(self, finish=None), self._order(epoch), epoch, range(start, end)),
            batch_size=None,
            num_workers=self.num_workers,
            collate_fn=_identity,  # type: ignore[arg-type] # without batching it receives the item
            # A loader would draw its seed from torch's global generator, which dropout uses.
            generator=torch.Generator().manual_seed(self.seed + epoch),
        )
        start_time = time.perf_counter()
        step_batches = _pinned_ahead(iter(loader), self.finish) if self.pinned else iter(loader)
        for step_batch in step_batches:
            yield replace(step_batch, wait_seconds=time.perf_counter() - start_time)
            start_time = time.perf_counter()

    @property
    def costliest_ids(self) -> IntArray:
        """Ids of the longest examples, as many as one process has in a step."""
        share = -(-self.effective_batch_size // self.world_size)
        return np.argsort(-self.examples.lengths, kind="stable")[:share]

    def costliest(self, micro_batches: int) -> tuple[MicroBatch, ...]:
        """Return the one or two micro-batches of `costliest_ids` that can take the most memory.

        These are the one with the longest examples, whose attention takes more memory than their
        tokens suggest, and the one of `largest_cost`.
        """
        parts = self._parts(self.costliest_ids, micro_batches)
        largest = int(np.argmax([self._cost(part) for part in parts]))
        examples: InputExamples = self.examples
        if isinstance(examples, ScaledExamples):
            examples = examples.in_largest_size()
        return tuple(
            MicroBatch(ids, examples.collate(ids), counted=True, is_last=True)
            for ids in (parts[index] for index in sorted({0, largest}))
        )

    def largest_cost(self, micro_batches: int) -> int:
        """Return the largest cost of a micro-batch of `costliest_ids`, see `padded`."""
        return max(self._cost(part) for part in self._parts(self.costliest_ids, micro_batches))

    def rounds(self, step_batch: StepBatch) -> int:
        """Return the number of micro-batches of a step batch; each has at least one example."""
        share = -(-len(step_batch.effective_ids) // self.world_size)
        return min(self.micro_batches, share)

    def recut(self, step_batch: StepBatch) -> StepBatch:
        """Return the same step batch, cut into the micro-batches of these settings."""
        ids, epoch, step = step_batch.effective_ids, step_batch.epoch, step_batch.step
        micro_batches = self._micro_batches(ids, epoch, step)
        return replace(step_batch, micro_batches=micro_batches)

    def _cost(self, ids: IntArray) -> int:
        lengths = self.examples.lengths[ids]
        return int(len(ids) * lengths.max() if self.padded else lengths.sum())

    def _order(self, epoch: int) -> IntArray:
        if not self.shuffled:
            return np.arange(len(self.examples.weights))
        generator = np.random.Generator(np.random.PCG64([self.seed, epoch]))
        return generator.permutation(len(self.examples.weights))

    def _micro_batches(self, effective: IntArray, epoch: int, step: int) -> tuple[MicroBatch, ...]:
        examples: InputExamples = self.examples
        if isinstance(examples, AugmentedExamples):
            examples = examples.for_step(epoch, step)
        shares = np.array_split(effective, self.world_size)
        # Every process runs the model equally often, because sharded models communicate each time.
        rounds = min(self.micro_batches, len(shares[0]))
        parts = self._parts(shares[self.rank], rounds)
        dummies = rounds - len(parts)
        return tuple(
            MicroBatch(
                ids=ids,
                inputs=examples.collate(ids),
                counted=index >= dummies,
                is_last=index == rounds - 1,
            )
            for index, ids in enumerate([effective[:1]] * dummies + parts)
        )

    def _parts(self, ids: IntArray, rounds: int) -> list[IntArray]:
        lengths = self.examples.lengths[ids]
        return [ids[part] for part in balanced_micro_batches(lengths, rounds, padded=self.padded)]


@dataclass(frozen=True)
class _EpochSteps(Dataset[StepBatch]):
    """Some steps of one epoch, as a data set for a loader's workers."""

    batches: StepBatches
    order: IntArray
    epoch: int
    steps: range

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> StepBatch:
        batches, step = self.batches, self.steps[index]
        size, examples = batches.effective_batch_size, batches.examples
        effective = self.order[step * size : (step + 1) * size]
        return StepBatch(
            epoch=self.epoch,
            step=step,
            effective_ids=effective,
            # Of images whose masks have no labelled pixel in the size of the input, the loss is 0.
            effective_weight=float(examples.weights[effective].sum()) or 1.0,
            effective_length=int(examples.lengths[effective].sum()),
            micro_batches=batches._micro_batches(effective, self.epoch, step),
        )


def _pinned_ahead(
    step_batches: Iterator[StepBatch], finish: Callable[[MicroBatch], MicroBatch] | None
) -> Iterator[StepBatch]:
    """Yield step batches in pinned memory, each collated while the device computes the one before.

    Copies from pinned memory to the device do not wait. A thread is enough: tensors are copied and
    pinned without Python's lock, and between launches the host has time while the device computes.
    """

    def following() -> StepBatch | None:
        step_batch = next(step_batches, None)
        if step_batch is None:
            return None
        finished = (
            micro if finish is None else finish(micro) for micro in step_batch.micro_batches
        )
        pinned = (replace(micro, inputs=pin_memory(micro.inputs)) for micro in finished)
        return replace(step_batch, micro_batches=tuple(pinned))

    with ThreadPoolExecutor(1, thread_name_prefix="collate") as thread:
        waiting = thread.submit(following)
        while (item := waiting.result()) is not None:
            waiting = thread.submit(following)
            yield item


def _identity(step_batch: StepBatch) -> StepBatch:
    """Keep DataLoader from converting the arrays and numbers of a step batch."""
    return step_batch


def balanced_micro_batches(lengths: IntArray, k: int, padded: bool) -> list[IntArray]:
    """Cut a step batch into micro-batches of similar length and minimal largest cost.

    The examples are sorted by length (stable) and cut between neighbours. The cost of a micro-batch
    is its number of examples times its longest length if it is padded, otherwise its number of
    tokens. Bisection finds the smallest bound on the cost that k micro-batches can keep; for any
    bound, filling from the longest example downwards needs the fewest micro-batches.

    Args:
        lengths: (n,) tokens of each example of the step batch, positive.
        k: Number of micro-batches, at least 1; n if there are fewer examples.
        padded: Whether each micro-batch is padded to its longest example.

    Returns:
        min(k, n) arrays of indices into `lengths`, longest examples first, so that the first
        micro-batch determines the peak memory; every index is in exactly one. Empty for n = 0.

    Raises:
        InputError: `k` is below 1, or a length is not positive.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if k < 1:
        raise InputError(f"k: received {k}; it must be at least 1.")
    if lengths.size == 0:
        return []
    if lengths.min() < 1:
        raise InputError(
            f"lengths: received {int(lengths.min())} at index {int(lengths.argmin())}; all "
            "must be at least 1. Remove examples without tokens from the step batch."
        )
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    descending, k = lengths[order], min(k, lengths.size)

    low, high = int(descending[0]), int(descending[0]) * descending.size
    while low < high:
        middle = (low + high) // 2
        if len(_starts_within(descending, middle, padded)) <= k:
            high = middle
        else:
            low = middle + 1
    starts = _starts_within(descending, low, padded)
    # A bound can be met with fewer micro-batches than requested; cutting one never costs more.
    while len(starts) < k:
        ends = [*starts[1:], descending.size]
        sizes = [end - start for start, end in zip(starts, ends, strict=True)]
        widest = int(np.argmax(sizes))
        starts.insert(widest + 1, starts[widest] + sizes[widest] // 2)
    return np.split(order, starts[1:])


def _starts_within(descending: IntArray, bound: int, padded: bool) -> list[int]:
    """Return where micro-batches of at most this cost start, as few as possible."""
    starts, end = [0], 0
    while True:
        if padded:
            end += bound // int(descending[end])
        else:
            end += int(np.searchsorted(np.cumsum(descending[end:]), bound, side="right"))
        if end >= descending.size:
            return starts
        starts.append(end)


def ids_of_varied_length(lengths: IntArray, count: int = 4) -> IntArray:
    """Return the ids of up to `count` examples, from the shortest to the longest."""
    by_length = np.argsort(lengths, kind="stable")
    ids = by_length[np.linspace(0, len(by_length) - 1, num=count).astype(np.int64)]
    return np.unique(ids)
