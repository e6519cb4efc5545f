"""What the first optimizer step shows of a run: its dtypes, its memory, what it drew at random."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ampft.precision.executed import ExecutedDtypes, ProductRecorder, state_bytes, tensor_bytes
from ampft.precision.resolve import Precision


@dataclass
class FirstStep:
    """Measures the first optimizer step and leaves the others alone.

    Attributes:
        precision: What the step was meant to compute in.
        executed: What it computed in; None before its end.
        memory: Bytes by name: weights, gradients, optimizer_state and activations.
        random_state: SHA-256 of the generators that dropout draws from, after the step: runs that
            agree in it dropped the same, as far as their layers are the same.
    """

    precision: Precision
    executed: ExecutedDtypes | None = None
    memory: dict[str, int] | None = None
    random_state: str | None = None

    @contextmanager
    def measured(self, model: nn.Module, optimizer: Any) -> Iterator[None]:
        """Measure what happens inside, if it is the first step.

        Args:
            model: Its gradients stay until the context is left.
            optimizer: As Accelerate prepared it.
        """
        if self.executed is None:
            recorder, saved = ProductRecorder(self.precision), SavedBytes(model.parameters())
            with recorder, saved:
                yield
            self.random_state = _random_state()
            self.executed = recorder.census(model, optimizer.optimizer)
            gradients = (p.grad for p in model.parameters() if p.grad is not None)
            self.memory = {
                "weights": tensor_bytes(model.parameters()),
                "gradients": tensor_bytes(gradients),
                "optimizer_state": 0,
                "activations": saved.peak,
            }
        else:
            yield
        # A step that fp16 skips leaves an optimizer as empty as it was.
        if self.memory is not None and self.memory["optimizer_state"] == 0:
            self.memory["optimizer_state"] = state_bytes(optimizer.optimizer)


def _random_state() -> str:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states.append(torch.cuda.get_rng_state())
    digest = hashlib.sha256()
    for state in states:
        digest.update(state.numpy().tobytes())
    return digest.hexdigest()


_Place = tuple[torch.device, int]


class SavedBytes:
    """Counts the storages that autograd keeps inside it, each once, without those of parameters.

    A storage counts from the moment a forward pass saves it until the backward pass has let it go,
    so that `peak` is that of the micro-batch that keeps most. What autocast casts of the weights
    counts: it is kept too. Values and random numbers are untouched; what gradient checkpointing
    saves while it computes again, it keeps from this count.

    Attributes:
        held: Bytes that are saved now.
        peak: The most that were saved at a time.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.held = 0
        self.peak = 0
        self._excluded = {place for parameter in parameters for place, _ in _storages(parameter)}
        self._holders: dict[_Place, int] = {}
        self._hooks = saved_tensors_hooks(self._pack, _unpack)

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._hooks.__exit__(kind, error, traceback)

    def _pack(self, tensor: Tensor) -> _Saved:
        return _Saved(self, tensor)

    def take(self, place: _Place, size: int) -> None:
        """Count one more holder of a storage of `size` bytes."""
        if place in self._excluded:
            return
        self._holders[place] = self._holders.get(place, 0) + 1
        if self._holders[place] == 1:
            self.held += size
            self.peak = max(self.peak, self.held)

    def release(self, place: _Place, size: int) -> None:
        """Count one holder less."""
        if place in self._excluded:
            return
        self._holders[place] -= 1
        if self._holders[place] == 0:
            del self._holders[place]
            self.held -= size


class _Saved:
    """A saved tensor, for as long as autograd holds it."""

    def __init__(self, counter: SavedBytes, tensor: Tensor) -> None:
        # Detached: an output that its own node holds would never be freed.
        self.tensor = tensor.detach()
        self._counter = counter
        self._storages = tuple(_storages(tensor))
        for place, size in self._storages:
            counter.take(place, size)

    def __del__(self) -> None:
        for place, size in self._storages:
            self._counter.release(place, size)


def _unpack(saved: _Saved) -> Tensor:
    return saved.tensor


def _storages(tensor: Any) -> Iterator[tuple[_Place, int]]:
    """Yield place and bytes of what a tensor lies in; sharded and fp8 ones consist of others."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _storages(getattr(tensor, name))
    else:
        storage = tensor.untyped_storage()
        yield (tensor.device, storage.data_ptr()), storage.nbytes()
