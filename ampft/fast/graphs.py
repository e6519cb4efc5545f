"""Gradients of micro-batches by CUDA graphs, which start all kernels of a step with one launch.

Forward pass, loss and backward pass of a micro-batch are captured once per shape, and then
repeated with other contents of the same memory. The update is a graph of its own
(`graphed_update`), which follows the last micro-batch, whatever shapes the step had.

Every graph adds to the same gradients, so that steps of several micro-batches, in several shapes,
accumulate as usual. Dropout draws from the device's generator, which advances with each replay as
it does without graphs: masks differ from step to step, and a resumed run draws the same.

The first replays of each graph are compared with the same computation without a graph. A graph that
differs, or a failed capture, ends the use of graphs with one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    _get_current_dispatch_mode,
)
from torch.utils._pytree import tree_leaves

from ampft.data.step_batches import MicroBatch, StepBatch
from ampft.engine.out_of_memory import RandomAndBufferSnapshot, is_out_of_memory
from ampft.fast.queue_timer import QueueTimer
from ampft.fast.static_shapes import CannotCapture, Key, StaticBatch, StaticShapes, graph_key
from ampft.models.freezing import CASTS
from ampft.text.terminal import labelled

MAX_GRAPHS = 15  # 16 with the one of the update
WARM_UPS = 2
# Replays of each graph that are compared with the same computation without it. The second one has
# another batch, so that a number that the capture has made constant is found.
VERIFIED = 2
# Relative error of the whole gradient, and of the loss. Kernels of a GPU may add in another order
# each time, which changes results in 16 bits by up to a percent. Another dropout mask, another
# batch or memory that has moved changes them by half and more.
GRADIENT_TOLERANCE = 1e-2

T = TypeVar("T")

Compute = Callable[[StepBatch], list[Tensor]]
"""Accumulates the gradient of a step batch, and returns the losses of its micro-batches."""


class Recorder(Protocol):
    """Captures operators, to repeat them with the same memory."""

    def warming_up(self) -> AbstractContextManager[None]:
        """Return a context for runs before a capture."""
        ...

    def capture(self, function: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Capture a function; return what repeats it, and its result, which is then updated."""
        ...


class CudaRecorder:
    """Captures CUDA graphs, which share one pool of memory.

    They may share it, because what a graph leaves there is copied before the next one runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Run on the stream of the captures, where libraries then have their workspaces."""
        current = torch.cuda.current_stream()
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)

    def capture(self, function: Callable[[], T]) -> tuple[Callable[[], None], T]:
        """Capture a function, which is not run.

        After an error, the stream, the memory and the random generator work as before, but graphs
        that were captured earlier must not be replayed.
        """
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        has_begun = False
        # The thread that collates ahead may allocate pinned memory in the meantime.
        mode = "thread_local"
        try:
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode=mode
            ):
                has_begun = True
                result = function()
        except BaseException:
            self._leave_pool(graph, has_begun=has_begun)
            # torch leaves the stream of the capture in place, and a generator that refuses to draw
            # ("Offset increment outside graph capture encountered unexpectedly").
            torch.cuda.set_stream(current)
            device = self._stream.device
            generator = torch.cuda.default_generators[device.index]
            fresh = torch.Generator(device)  # with the same seed and offset
            fresh.set_state(generator.get_state())
            generator.graphsafe_set_state(fresh.graphsafe_get_state())
            raise
        return graph.replay, result

    def _leave_pool(self, graph: torch.cuda.CUDAGraph, *, has_begun: bool) -> None:
        """Give memory that a failed capture has reserved back to the allocator.

        If CUDA refuses to end a capture, torch 2.13 neither stops to allocate in its pool nor
        releases it (`CUDAGraph::capture_end` and `reset`): no other capture could use the pool, and
        its memory would never be free. The pool of pinned memory has no such functions in Python.
        """
        device, is_held = self._stream.device.index, False
        with suppress(RuntimeError):  # the capture has ended, or has not begun
            torch._C._cuda_endAllocateToPool(device, self._pool)
            is_held = True
        if has_begun and not is_held:
            try:
                graph.pool()  # a graph with a pool releases it at its own end
            except RuntimeError:
                is_held = True
        if is_held:
            torch._C._cuda_releasePool(device, self._pool)
        # The next capture must not reserve memory in a pool that the last of its graphs has left.
        self._pool = torch.cuda.graph_pool_handle()


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


@contextmanager
def _choosing_as_in_a_capture() -> Iterator[None]:
    """Let models choose their kernels as in a capture.

    transformers reads whether a mask hides anything, to leave out one that does not, except in a
    capture (`transformers.utils.import_utils.is_tracing`). So a micro-batch has the same kernels
    with a graph and without, and no capture is refused because of what it would not contain.
    """
    former = torch.cuda.is_current_stream_capturing
    torch.cuda.is_current_stream_capturing = lambda: True
    try:
        yield
    finally:
        torch.cuda.is_current_stream_capturing = former


@dataclass
class GraphedGradient:
    """Computes gradients by graphs, and without them where that is not possible."""

    model: nn.Module  # Model as loaded.
    device: torch.device  # Its device.
    shapes: StaticShapes  # Gives micro-batches few different shapes.
    recorder: Recorder  # Captures graphs.
    write: Callable[[str], None]  # Function that prints a line.
    # Finds out whether launching kernels bounds the steps, without which nothing is captured; None
    # captures in any case.
    timer: QueueTimer | None = None
    reason: str | None = None  # Why nothing is captured; None if it is.
    # Memory in which all graphs accumulate, by parameter.
    gradients: dict[nn.Parameter, Tensor] = field(default_factory=dict, repr=False)
    replayed: int = 0  # Micro-batches computed by a graph.
    others: int = 0  # Micro-batches computed without one, those before a capture included.
    _is_checked: bool = False
    _has_shapes: bool = True
    _batches: dict[Key, StaticBatch] = field(default_factory=dict, repr=False)
    _graphs: dict[Key, tuple[Callable[[], None], Tensor]] = field(default_factory=dict, repr=False)
    _unverified: dict[Key, int] = field(default_factory=dict, repr=False)
    _kept: list[Any] = field(default_factory=list, repr=False)

    @property
    def is_in_use(self) -> bool:
        """Whether graphs may be captured and replayed now: not in a step that is recorded."""
        is_wanted = self.timer is None or self.timer.is_launch_bound
        return self.reason is None and is_wanted and _get_current_dispatch_mode() is None

    def gradient(self, compute: Compute, step_batch: StepBatch) -> list[Tensor]:
        """Accumulate the gradient of a step batch; gradients are empty before.

        Args:
            compute: Function that does so without graphs. It is captured with a step batch of one
                micro-batch, whose tensors are on the device.
        """
        if not self._is_checked:
            self._check(compute, step_batch)
        if not self._has_shapes:
            self.others += len(step_batch.micro_batches)
            return compute(step_batch)
        self._attach_zeros()
        with _choosing_as_in_a_capture():
            return self._timed_parts(compute, step_batch)

    def _timed_parts(self, compute: Compute, step_batch: StepBatch) -> list[Tensor]:
        parts = [self.shapes.shaped(micro_batch) for micro_batch in step_batch]
        if self.timer is None or self.timer.is_decided or _get_current_dispatch_mode() is not None:
            return [self._part(compute, step_batch, part) for part in parts]
        with self.timer.step():
            losses = [self._part(compute, step_batch, part) for part in parts]
        if self.timer.is_decided:
            self.write(labelled("graphs", self.timer.decision()))
        return losses

    def as_dict(self) -> dict[str, object]:
        """Return what was captured in this process, for the record."""
        return {
            "graphs": len(self._graphs),
            "replayed_micro_batches": self.replayed,
            "other_micro_batches": self.others,
            "reason": self.reason,
            "choice": None if self.timer is None else self.timer.as_dict(),
        }

    def give_up(self, error: Exception | str) -> None:
        """Use no graphs any more, and say why."""
        self.reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        # A failed capture has replaced the random generator that they advance.
        self._graphs.clear()
        self.write(labelled("graphs", f"not used: {self.reason}"))

    def _check(self, compute: Compute, step_batch: StepBatch) -> None:
        """Decide before the first step, so that a resumed run decides the same."""
        self._is_checked = True
        part = self.shapes.shaped(next(iter(step_batch)))
        batch = StaticBatch(part, self.device)
        snapshot = RandomAndBufferSnapshot(self.model)
        try:
            # The modes are such as the recorder of the first step's dtypes.
            with _disable_current_modes(), _choosing_as_in_a_capture():
                batch.load(step_batch, part)
                compute(batch.step_batch)  # what is made on first use is not part of a graph
                with CaptureCheck(self.device):
                    compute(batch.step_batch)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._has_shapes = False
            self.give_up(error)
        finally:
            snapshot.restore()

    def _attach_zeros(self) -> None:
        if self.gradients:
            torch._foreach_zero_(list(self.gradients.values()))
        for parameter, gradient in self.gradients.items():
            parameter.grad = gradient

    def _part(self, compute: Compute, step_batch: StepBatch, part: MicroBatch) -> Tensor:
        key = graph_key(part)
        batch = self._batches.get(key) or StaticBatch(part, self.device)
        batch.load(step_batch, part)
        if key not in self._graphs and self.is_in_use and len(self._graphs) < MAX_GRAPHS:
            self._batches[key] = batch
            self._capture(key, compute, batch)
        if key not in self._graphs or not self.is_in_use:
            self.others += 1
            (loss,) = compute(batch.step_batch)
            return loss
        replay, loss = self._graphs[key]
        if self._unverified[key] > 0:
            return self._verified(key, compute, batch)
        replay()
        self.replayed += 1
        return loss.clone()  # the next replay overwrites it

    def _capture(self, key: Key, compute: Compute, batch: StaticBatch) -> None:
        """Capture the gradient of a batch, or say why not. Nothing is computed."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        held = [parameter.grad for parameter in parameters]
        snapshot = RandomAndBufferSnapshot(self.model)

        def run() -> Tensor:
            for parameter in parameters:
                parameter.grad = None
            (loss,) = compute(batch.step_batch)
            return loss

        def run_and_add() -> Tensor:
            loss = run()
            fresh = {p: p.grad for p in parameters if p.grad is not None}
            torch._foreach_add_([self.gradients[p] for p in fresh], list(fresh.values()))
            for parameter in fresh:
                parameter.grad = None  # so that other graphs can use its memory
            return loss

        try:
            with self.recorder.warming_up():
                for _ in range(WARM_UPS):
                    run()
            for parameter, gradient in zip(parameters, held, strict=True):
                if parameter.grad is not None:  # kept: what the step has accumulated, or zeros
                    zeros = torch.zeros_like(parameter, requires_grad=False)
                    self.gradients.setdefault(parameter, zeros if gradient is None else gradient)
            # A frozen layer would replace its cast weights if its weights were loaded again.
            self._kept += [dict(module.__dict__.get(CASTS, {})) for module in self.model.modules()]
            self._graphs[key] = self.recorder.capture(run_and_add)
            self._unverified[key] = VERIFIED
        except Exception as error:  # also if memory runs out, which it does not without graphs
            self.give_up(error)
        finally:
            snapshot.restore()
            for parameter, gradient in zip(parameters, held, strict=True):
                parameter.grad = self.gradients.get(parameter, gradient)

    def _verified(self, key: Key, compute: Compute, batch: StaticBatch) -> Tensor:
        """Accumulate a gradient by a graph and without it, and keep the graph if both agree."""
        kept = list(self.gradients.values())
        former = [gradient.clone() for gradient in kept]
        start = RandomAndBufferSnapshot(self.model)
        for parameter in self.model.parameters():
            parameter.grad = None
        (plain,) = compute(batch.step_batch)
        expected = [
            torch.zeros_like(kept_one) if parameter.grad is None else parameter.grad
            for parameter, kept_one in self.gradients.items()
        ]
        end = RandomAndBufferSnapshot(self.model)
        start.restore()
        self._attach_zeros()
        replay, loss = self._graphs[key]
        replay()
        pairs = [_distance(*pair) for pair in (([loss], [plain]), (kept, expected))]
        is_finite = all(size < float("inf") for _, size in pairs)  # not after an overflow in fp16
        self._unverified[key] -= is_finite
        if is_finite and any(error > GRADIENT_TOLERANCE * size for error, size in pairs):
            self.give_up("the gradient of a graph is not the one without it")
        is_kept = self.reason is None and is_finite
        self.replayed += is_kept
        self.others += not is_kept
        if not is_kept:
            end.restore()
            loss = plain
            torch._foreach_copy_(kept, expected)
            for parameter, gradient in self.gradients.items():
                parameter.grad = gradient
        torch._foreach_add_(kept, former)
        return loss.clone()


@torch.no_grad()
def _distance(actual: list[Tensor], expected: list[Tensor]) -> tuple[float, float]:
    """Return the norms of a difference and of what is expected, by a single read."""
    differences = torch._foreach_sub(actual, expected)
    norms = [torch.stack(torch._foreach_norm(each)).norm() for each in (differences, expected)]
    error, size = torch.stack(norms).tolist()
    return error, size
