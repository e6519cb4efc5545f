"""Measurements of the first optimizer step, and checks of the dtypes of random later ones."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ampft.engine.checkpoints.training_state import as_python_state, python_state
from ampft.engine.generators import device_random_state
from ampft.errors import PrecisionContradicted
from ampft.precision.compilation import uncompiled
from ampft.precision.executed import ExecutedDtypes, ProductRecorder, precision_contradiction
from ampft.precision.resolve import Precision

# Share of the later steps whose products are recorded, so that recording costs next to nothing.
CHECKED_SHARE = 1 / 200


@dataclass
class FirstStepMonitor:
    """Measures the first optimizer step, and checks the dtypes of random later ones."""

    precision: Precision  # Precision requested for the step.
    # Dtypes that the step used, or an evaluation without a training; None before it has ended.
    executed: ExecutedDtypes | None = None
    # Bytes of weights, gradients, optimizer_state and activations, by these names.
    memory: dict[str, int] | None = None
    # SHA-256 of the states of the generators that dropout draws from, after the step; None if
    # nothing was drawn. On a CPU, runs with equal layers and equal states used the same dropout
    # masks, in any precision. On a GPU this is true for equal dtypes only, because each kernel
    # numbers the elements in its own way.
    random_state: str | None = None
    # The first step after a resume is checked too: another machine may compute it.
    _is_resumed: bool = field(default=False, repr=False)
    # A separate generator: same steps in all processes, no draws from the training's generators.
    _draws: Random = field(default_factory=lambda: Random(0), repr=False)

    @contextmanager
    def measured(self, model: nn.Module, optimizer: Any) -> Iterator[None]:
        """Return a context that measures the step inside it, if it is the first one.

        Args:
            model: Model, whose gradients must not be cleared inside the context.
            optimizer: Optimizer as prepared by Accelerate.

        Raises:
            PrecisionContradicted: A later step used other dtypes than the mode. The caller judges
                the first one by `executed`.
        """
        if self.executed is None:
            recorder, saved = ProductRecorder(self.precision), SavedTensorBytes(model.parameters())
            before = _random_state()
            with recorder, saved:
                yield
            after = _random_state()
            self.random_state = None if after == before else after
            self.executed = recorder.census(model, optimizer.optimizer)
            gradients = (p.grad for p in model.parameters() if p.grad is not None)
            self.memory = {
                "weights": tensor_bytes(model.parameters()),
                "gradients": tensor_bytes(gradients),
                "optimizer_state": 0,
                "activations": saved.peak,
            }
        elif self._draws.random() < CHECKED_SHARE or self._is_resumed:
            with self.checked("a later step"):
                yield
            self._is_resumed = False
        else:
            yield
        # A step that fp16 skips does not create the optimizer state.
        if self.memory is not None and self.memory["optimizer_state"] == 0:
            self.memory["optimizer_state"] = state_bytes(optimizer.optimizer)

    def state(self) -> dict[str, Any]:
        """Return the measurements as JSON values, for a checkpoint."""
        return {
            "executed": None if self.executed is None else self.executed.as_dict(),
            "memory": self.memory,
            "random_state": self.random_state,
            "draws": python_state(self._draws.getstate()),
        }

    def restore(
        self,
        executed: ExecutedDtypes | None,
        memory: dict[str, int] | None,
        random_state: str | None,
        draws: Sequence[Any],
    ) -> None:
        """Restore what `state` returned; the next step is checked."""
        self.executed, self.memory, self.random_state = executed, memory, random_state
        self._draws.setstate(as_python_state(list(draws)))
        self._is_resumed = True

    @contextmanager
    def checked(self, where: str) -> Iterator[None]:
        """Return a context that checks the dtypes of the products inside it.

        Args:
            where: What the context contains, for the message.

        Raises:
            PrecisionContradicted: They differ from the mode's dtypes.
        """
        with ProductRecorder(self.precision) as recorder:
            yield
        executed = recorder.census()
        if self.executed is None:  # nothing is trained
            self.executed = executed
        wrong = precision_contradiction(self.precision, executed, where=where)
        if wrong is not None:
            raise PrecisionContradicted(wrong)


def _random_state() -> str:
    states = [torch.get_rng_state()]
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is not None and (state := device_random_state(device)) is not None:
        states.append(state)
    digest = hashlib.sha256()
    for state in states:
        digest.update(state.numpy().tobytes())
    return digest.hexdigest()


def tensor_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of tensors; repeated tensors and views of the same data count once.

    Of a sharded tensor, only the part on this process counts.
    """
    sizes: dict[tuple[torch.device, int], int] = {}
    for tensor in tensors:
        local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        address = (local.device, local.data_ptr())
        sizes[address] = max(sizes.get(address, 0), local.numel() * local.element_size())
    return sum(sizes.values())


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimizer's state, step counters included; 0 before its first step."""
    return tensor_bytes(
        value
        for entry in optimizer.state.values()
        for value in entry.values()
        if isinstance(value, Tensor)
    )


_StorageKey = tuple[torch.device, int]


class SavedTensorBytes:
    """Context that counts the bytes of storages that autograd saves, except parameters.

    A storage counts once, from the moment a forward pass saves it until the backward pass releases
    it, so `peak` belongs to the micro-batch that saves most. Weights cast by autocast are
    included, because they are saved too. Tensors that gradient checkpointing saves while it
    recomputes are not included. Values and random numbers do not change.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.current = 0  # Bytes that are saved now.
        self.peak = 0  # Largest number of bytes that were saved at the same time.
        parameters = list(parameters)
        self._excluded = {key for parameter in parameters for key, _ in _storages(parameter)}
        # FSDP gathers sharded parameters in new storages for each pass.
        self._excludes_all_parameters = any(isinstance(p, DTensor) for p in parameters)
        self._references: Counter[_StorageKey] = Counter()
        self._hooks = saved_tensors_hooks(self._pack, _unpack)

    def __enter__(self) -> SavedTensorBytes:
        self._hooks.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._hooks.__exit__(kind, error, traceback)

    @uncompiled
    def _pack(self, tensor: Tensor) -> _Saved:
        is_parameter = isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)
        if self._excludes_all_parameters and is_parameter:
            return _Saved(self, tensor, [])
        storages = _storages(tensor)
        return _Saved(self, tensor, [each for each in storages if each[0] not in self._excluded])

    def count(self, storages: Iterable[tuple[_StorageKey, int]], references: int) -> None:
        """Add a reference to storages of these bytes, or remove one if `references` is -1."""
        for key, size in storages:
            self._references[key] += references
            if self._references[key] == max(references, 0):  # the first one, or none is left
                self.current += references * size
                self.peak = max(self.peak, self.current)


class _Saved:
    """A saved tensor, which lives as long as autograd refers to it."""

    def __init__(
        self, counter: SavedTensorBytes, tensor: Tensor, counted: list[tuple[_StorageKey, int]]
    ) -> None:
        # Detached, because an output saved by its own node would never be freed.
        self.tensor = tensor.detach()
        self._counter, self._storages = counter, counted
        counter.count(counted, 1)

    def __del__(self) -> None:
        self._counter.count(self._storages, -1)


@uncompiled
def _unpack(saved: _Saved) -> Tensor:
    return saved.tensor


def _storages(tensor: Any) -> Iterator[tuple[_StorageKey, int]]:
    """Yield key and bytes of each storage of a tensor; sharded and fp8 tensors have several."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            inner = getattr(tensor, name)
            if isinstance(inner, Tensor):  # a sharded tensor also names its mesh of devices
                yield from _storages(inner)
    else:
        storage = tensor.untyped_storage()
        yield (tensor.device, storage.data_ptr()), storage.nbytes()
