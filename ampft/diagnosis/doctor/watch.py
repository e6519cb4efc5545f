"""Watches every operation of forward and backward passes for values that are not finite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampft.diagnosis.doctor.causes import (
    Operation,
    cause_of,
    floating,
    is_mask,
    largest_result,
    ranges_of,
)
from ampft.diagnosis.doctor.findings import Cause, ValueRange
from ampft.diagnosis.doctor.module_stack import ModuleStack
from ampft.diagnosis.doctor.places import BatchShape, Places, named_tensors
from ampft.diagnosis.doctor.source import Frame, calling_frame

# Their results are memory that is not initialized.
_UNINITIALIZED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_NO_VALUES = ("detach", "lift_fresh", "is_same_size")
_TOO_LARGE = "without overflow"  # torch: "value cannot be converted to type c10::Half without ..."

Key = tuple[str, str, str, int]
"""Module, direction, operator, and how many such calls preceded it in the pass."""


@dataclass(eq=False)
class Event:
    """An operation whose result has a NaN or an infinity that its operands did not have.

    Attributes:
        key: Which operation it was, so that another pass finds it.
        cause: Its cause, judged by this pass only.
        is_mask: Whether it is a mask of minus infinity, which a softmax turns into zeros.
        largest: Largest absolute value that float64 has for the result; None if not finite.
        inputs: Ranges of the operands.
        frame: Line of the model's source.
        places: Examples and tokens, as soon as an operation shows them.
        has_nan: Whether the result has a NaN, and not only infinities.
    """

    key: Key
    cause: Cause
    is_mask: bool = False
    largest: float | None = None
    inputs: tuple[ValueRange, ...] = ()
    frame: Frame | None = None
    places: Places | None = None
    has_nan: bool = False


@dataclass(frozen=True)
class _Origin:
    """Where a forward operation was called, for the backward operations that belong to it."""

    module: str
    frame: Frame | None


class OperationWatch(TorchDispatchMode):
    """Context that watches every operation of the code inside it, forward and backward.

    It leaves no hook behind. Values and random numbers do not change.

    Attributes:
        events: Operations that made values that are not finite, in their order.
        has_failed: Whether an operation raised, because a number does not exist in its dtype.
        probed: The operation that `probe` names, as seen in this pass; None if it did not occur.

    Args:
        model: Model whose modules are named.
        shape: How the batch is laid out; None does not name examples.
        batch: Batch, whose floating-point tensors are checked; None checks none.
        probe: Operation to be kept in `probed`.
    """

    def __init__(
        self,
        model: nn.Module,
        shape: BatchShape | None = None,
        batch: Any = None,
        probe: Key | None = None,
    ) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.has_failed = False
        self.probed: Operation | None = None
        self._model = model
        self._shape = shape
        self._probe = probe
        self._modules = ModuleStack(model)
        self._calls: Counter[tuple[str, str, str]] = Counter()
        self._origins: dict[int, _Origin] = {}
        self._last = _Origin("", None)
        # By address of the storage. Whoever allocates it again is seen, and replaces the entry.
        self._taints: dict[int, frozenset[Event]] = {}
        self._weights = {tuple(p.shape) for p in model.parameters() if p.dim() > 1}
        self._weights |= {shape[::-1] for shape in self._weights}
        self._contexts = ExitStack()
        self._check_weights()
        self._check_batch(batch)

    def __enter__(self) -> OperationWatch:
        """Start watching."""
        self._contexts.enter_context(self._modules)
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._contexts.close()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operator, and look at its result."""
        kwargs = kwargs or {}
        name = func._schema.name.rpartition(":")[2].rstrip("_")
        if name in _UNINITIALIZED or name in _NO_VALUES or func.is_view:
            self._trace()
            return func(*args, **kwargs)
        origin, direction, node = self._trace()
        key = (origin.module, direction, name, self._calls[origin.module, direction, name])
        self._calls[key[:3]] += 1
        before = _before(func, args)
        operation = Operation(func, name, before, kwargs, node)
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            if _TOO_LARGE in str(error):
                self.has_failed = True
                self._add(key, operation, Cause.MASK, origin.frame)
            raise
        for output in floating(result):
            if bool(output.isfinite().all()):
                self._taints.pop(_address(output), None)
            else:
                self._judge(key, operation, output, origin.frame)
        if key == self._probe:
            self.probed = operation.with_result(result)
        return result

    def events_of(self, tensors: Iterable[Tensor]) -> list[Event]:
        """Return the events that made values of these tensors not finite, in their order."""
        found: set[Event] = set()
        for tensor in tensors:
            if not bool(tensor.isfinite().all()):
                found |= self._taints.get(_address(tensor), frozenset())
        return [event for event in self.events if event in found]

    def _trace(self) -> tuple[_Origin, str, str]:
        """Return module and source of the current operation, its direction, and autograd's node."""
        node = torch._C._current_autograd_node()
        if node is not None and not self._modules.path:
            origin = self._origins.get(node._sequence_nr(), self._last)
            self._last = origin
            return origin, "backward", node.name()
        origin = _Origin(self._modules.path or "", calling_frame())
        # Autograd numbers its nodes, and that of this operation was the last one.
        self._origins.setdefault(torch._C._autograd._get_sequence_nr() - 1, origin)
        return origin, "forward", ""

    def _judge(self, key: Key, operation: Operation, output: Tensor, frame: Frame | None) -> None:
        inherited: frozenset[Event] = frozenset()
        has_nan = has_infinity = False
        for operand in operation.tensors:
            if not bool(operand.isfinite().all()):
                inherited |= self._taints.get(_address(operand), frozenset())
                has_nan |= bool(operand.isnan().any())
                has_infinity |= bool(operand.isinf().any())
        is_new = not has_nan and (bool(output.isnan().any()) or not has_infinity)
        places = None if self._shape is None else self._places(output, key[1])
        if is_new:
            event = self._add(key, operation.with_result(output), None, frame)
            event.places, event.has_nan = places, bool(output.isnan().any())
            inherited |= {event}
        for event in inherited:
            event.places = event.places or places
        self._taints[_address(output)] = inherited

    def _add(
        self, key: Key, operation: Operation, cause: Cause | None, frame: Frame | None
    ) -> Event:
        with _plain_arithmetic():
            event = Event(
                key,
                cause or cause_of(operation),
                is_mask=cause is None and is_mask(operation),
                largest=None if cause else largest_result(operation),
                inputs=ranges_of(operation),
                frame=frame,
            )
        self.events.append(event)
        return event

    def _places(self, output: Tensor, direction: str) -> Places | None:
        assert self._shape is not None
        if direction == "backward" and tuple(output.shape) in self._weights:
            return None
        return self._shape.places(~output.isfinite())

    def _check_weights(self) -> None:
        """Find parameters, and buffers that are not masks, which are not finite before the pass."""
        for name, tensor in (*self._model.named_parameters(), *self._model.named_buffers()):
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                module, _, own = name.rpartition(".")
                self._seed(tensor, (module, "forward", f"parameter {own}", 0), Cause.PARAMETER)

    def _check_batch(self, batch: Any) -> None:
        for name, tensor in named_tensors(batch).items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                event = self._seed(tensor, ("", "forward", name, 0), Cause.INPUT)
                event.places = (
                    None if self._shape is None else self._shape.places(~tensor.isfinite())
                )

    def _seed(self, tensor: Tensor, key: Key, cause: Cause) -> Event:
        bad = tensor[~tensor.isfinite()]
        # Models keep causal masks in buffers, and users pass masks.
        only_masks = bool((bad == -torch.inf).all()) and not isinstance(tensor, nn.Parameter)
        event = Event(key, cause, is_mask=only_masks)
        self.events.append(event)
        self._taints[_address(tensor)] = frozenset({event})
        return event


def _before(func: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments as they are now: an operator in place overwrites its first one."""
    if func._schema.is_mutable and args and isinstance(args[0], Tensor):
        return (args[0].clone(), *args[1:])
    return args


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def _plain_arithmetic() -> Iterator[None]:
    """Return a context in which the watch can compute: no gradients, no autocast."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    with ExitStack() as contexts:
        contexts.enter_context(torch.no_grad())
        for device in devices:
            contexts.enter_context(torch.autocast(device, enabled=False))
        yield
