"""Gradients of micro-batches by CUDA graphs, which start all kernels of a step with one launch.

Forward pass, loss and backward pass of a micro-batch are captured once per shape, and then
repeated with other contents of the same memory. The optimizer is not part of a graph: it updates
all weights together, its numbers change with the schedule, and steps that are not finite are left
out.

Every graph adds to the same gradients, so that steps of several micro-batches, in several shapes,
accumulate as usual. Dropout draws from the device's generator, which advances with each replay as
it does without graphs: masks differ from step to step, and a resumed run draws the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
)
from torch.utils._pytree import tree_leaves

from ampft.data.steps import MicroBatch, StepBatch
from ampft.models.freezing import CASTS
from ampft.text.terminal import labelled
from ampft.training.out_of_memory import Snapshot, is_out_of_memory
from ampft.training.static_shapes import CannotCapture, Key, StaticBatch, StaticShapes, key_of

MAX_GRAPHS = 16
WARM_UPS = 2

Compute = Callable[[StepBatch], list[Tensor]]
"""Accumulates the gradient of a step batch, and returns the losses of its micro-batches."""


class Recorder(Protocol):
    """Captures operators, to repeat them with the same memory."""

    def warming_up(self) -> AbstractContextManager[None]:
        """Return a context for runs before a capture."""
        ...

    def capture(self, function: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Capture a function; return what repeats it, and its result, which is then updated."""
        ...


class CudaRecorder:
    """Captures CUDA graphs, which share one pool of memory.

    They may share it, because what a graph leaves there is copied before the next one runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = None

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Run on the stream of the captures, where libraries then have their workspaces."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def capture(self, function: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Capture a function, which is not run."""
        graph = torch.cuda.CUDAGraph()
        # The thread that collates ahead may allocate pinned memory in the meantime.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            result = function()
        self._pool = graph.pool()
        return graph.replay, result


class CaptureCheck(TorchDispatchMode):
    """Refuses the operators that no capture can contain, on any device.

    These are operators whose result the host reads, whose shape depends on values, or that move
    tensors between host and device.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator if a capture can contain it."""
        if _waits(func, args):
            raise CannotCapture(f"the host waits for the device in {func.name()}")
        result = func(*args, **(kwargs or {}))
        if self._device.type != "cpu":
            tensors = [t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)]
            if any(t.device != self._device and t.dim() > 0 for t in tensors):
                raise CannotCapture(f"{func.name()} uses a tensor that is not on the device")
        return result


_WAITING = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def _waits(func: Any, args: Any) -> bool:
    """Return whether an operator makes the host wait for values on the device."""
    if "index" in func._schema.name and len(args) > 1 and isinstance(args[1], list | tuple):
        masks = (torch.bool, torch.uint8)  # other indices have a known number
        return any(isinstance(index, Tensor) and index.dtype in masks for index in args[1])
    return any(tag in func.tags for tag in _WAITING)


@dataclass
class GraphedGradient:
    """Computes gradients by graphs, and without them where that is not possible.

    Attributes:
        model: Model as loaded.
        device: Its device.
        shapes: Gives micro-batches few different shapes.
        recorder: Captures graphs.
        write: Function that prints a line.
        reason: Why nothing is captured; None if it is.
        replayed: Micro-batches computed by a graph.
        others: Micro-batches computed without one, those before a capture included.
    """

    model: nn.Module
    device: torch.device
    shapes: StaticShapes
    recorder: Recorder
    write: Callable[[str], None]
    reason: str | None = None
    replayed: int = 0
    others: int = 0
    _is_checked: bool = False
    _has_shapes: bool = True
    _batches: dict[Key, StaticBatch] = field(default_factory=dict, repr=False)
    _graphs: dict[Key, tuple[Callable[[], None], Tensor]] = field(default_factory=dict, repr=False)
    _gradients: dict[nn.Parameter, Tensor] = field(default_factory=dict, repr=False)
    _kept: list[Any] = field(default_factory=list, repr=False)

    def gradient(self, compute: Compute, step_batch: StepBatch) -> list[Tensor]:
        """Accumulate the gradient of a step batch; gradients are empty before.

        Args:
            compute: Function that does so without graphs. It is captured with a step batch of one
                micro-batch, whose tensors are on the device.
            step_batch: The step batch.
        """
        if not self._has_shapes:
            self.others += len(step_batch.micro_batches)
            return compute(step_batch)
        parts = [self.shapes.shaped(micro_batch) for micro_batch in step_batch]
        if not self._is_checked:
            self._check(compute, step_batch, parts[0])
            return self.gradient(compute, step_batch)
        self._attach_zeros()
        return [self._part(compute, step_batch, part) for part in parts]

    def as_dict(self) -> dict[str, object]:
        """Return what was captured in this process, for the record."""
        return {
            "graphs": len(self._graphs),
            "replayed_micro_batches": self.replayed,
            "other_micro_batches": self.others,
            "reason": self.reason,
        }

    def _check(self, compute: Compute, step_batch: StepBatch, part: MicroBatch) -> None:
        """Decide before the first step, so that a resumed run decides the same."""
        self._is_checked = True
        batch = StaticBatch(part, self.device)
        snapshot = Snapshot(self.model)
        try:
            with _disable_current_modes():  # such as the recorder of the first step's dtypes
                batch.load(step_batch, part)
                compute(batch.step_batch)  # what is made on first use is not part of a graph
                with CaptureCheck(self.device):
                    compute(batch.step_batch)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._has_shapes = False
            self._give_up(_first_line(error))
        finally:
            snapshot.restore()

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self.write(labelled("graphs", f"not used: {reason}"))

    def _attach_zeros(self) -> None:
        if self._gradients:
            torch._foreach_zero_(list(self._gradients.values()))
        for parameter, gradient in self._gradients.items():
            parameter.grad = gradient

    def _part(self, compute: Compute, step_batch: StepBatch, part: MicroBatch) -> Tensor:
        key = key_of(part)
        batch = self._batches.get(key) or StaticBatch(part, self.device)
        batch.load(step_batch, part)
        if key not in self._graphs and self._may_capture():
            self._batches[key] = batch
            self._capture(key, compute, batch)
        if key not in self._graphs or _get_current_dispatch_mode() is not None:
            self.others += 1
            (loss,) = compute(batch.step_batch)
            return loss
        replay, loss = self._graphs[key]
        replay()
        self.replayed += 1
        return loss.clone()  # the next replay overwrites it

    def _may_capture(self) -> bool:
        is_watched = _get_current_dispatch_mode() is not None
        return self.reason is None and not is_watched and len(self._graphs) < MAX_GRAPHS

    def _capture(self, key: Key, compute: Compute, batch: StaticBatch) -> None:
        """Capture the gradient of a batch, or say why not. Nothing is computed."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        held = [parameter.grad for parameter in parameters]
        snapshot = Snapshot(self.model)

        def run() -> Tensor:
            for parameter in parameters:
                parameter.grad = None
            (loss,) = compute(batch.step_batch)
            return loss

        def run_and_add() -> Tensor:
            loss = run()
            fresh = {p: p.grad for p in parameters if p.grad is not None}
            torch._foreach_add_([self._gradients[p] for p in fresh], list(fresh.values()))
            for parameter in fresh:
                parameter.grad = None  # so that other graphs can use its memory
            return loss

        try:
            with self.recorder.warming_up():
                for _ in range(WARM_UPS):
                    run()
            before = zip(parameters, held, strict=True)
            self._allocate({p: gradient for p, gradient in before if p.grad is not None})
            # A frozen layer would replace its cast weights if its weights were loaded again.
            self._kept += [dict(module.__dict__.get(CASTS, {})) for module in self.model.modules()]
            self._graphs[key] = self.recorder.capture(run_and_add)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._give_up(_first_line(error))
        finally:
            snapshot.restore()
            for parameter, gradient in zip(parameters, held, strict=True):
                parameter.grad = self._gradients.get(parameter, gradient)

    def _allocate(self, gradients: dict[nn.Parameter, Tensor | None]) -> None:
        """Keep a gradient for each parameter: what the step has accumulated so far, or zeros."""
        for parameter, gradient in gradients.items():
            zeros = torch.zeros_like(parameter, requires_grad=False)
            self._gradients.setdefault(parameter, zeros if gradient is None else gradient)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
