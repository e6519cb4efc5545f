"""Watches every operation of forward and backward passes for values that are not finite.

Every entry that is not finite has events: the operations that made it so. Tensors are known by the
address of their storage, which several views share and an operator in place changes in part.
Whoever allocates an address again is seen, and replaces what was known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampft.lab.doctor.causes import (
    OperatorCall,
    carries_mask,
    cause_of,
    floating_tensors,
    hides_mask,
    largest_result,
    ranges_of,
    writes_mask,
)
from ampft.lab.doctor.diagnosis import Cause, ValueRange
from ampft.lab.doctor.places import (
    UNKNOWN_SHAPE,
    BatchPositions,
    BatchShape,
    SourceLine,
    calling_frame,
    named_tensors,
)

# Their results are memory that is not initialized.
_UNINITIALIZED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
_NO_VALUES = ("detach", "lift_fresh", "is_same_size")
_TOO_LARGE = "without overflow"  # torch: "value cannot be converted to type c10::Half without ..."

Key = tuple[str, str, str, int]
"""Module, direction, operator, and how many such calls preceded it in the pass."""

_GARBAGE = -1  # memory that nothing has written: what it contains means nothing


@dataclass(eq=False)
class NonfiniteEvent:
    """An operation whose result has a NaN or an infinity that its operands did not have."""

    key: Key  # Which operation it was, so that another pass finds it.
    cause: Cause  # Its cause, judged by this pass only.
    # Whether it makes a few entries infinite by a constant that no weight decides.
    writes_mask: bool = False
    is_hidden: bool = False  # Whether a softmax has turned these entries into zeros.
    is_used: bool = False  # Whether another operation has computed with them before.
    # Largest absolute value that float64 has for the result; None if not finite.
    largest: float | None = None
    inputs: tuple[ValueRange, ...] = ()  # Ranges of the operands.
    frame: SourceLine | None = None  # Line of the model's source.
    places: BatchPositions | None = None  # Examples and tokens, as soon as an operation shows them.
    has_nan: bool = False  # Whether the result has a NaN, and not only infinities.

    @property
    def is_mask(self) -> bool:
        """Whether it is a mask, as seen so far: constants that only a softmax reads."""
        return self.writes_mask and self.is_hidden and not self.is_used


Events = frozenset[NonfiniteEvent]


class NonfiniteOrigins:
    """The events that made each entry not finite, by the storage of its tensor."""

    def __init__(self) -> None:
        # An entry has the number of its set of events. None: all of the storage is garbage.
        self._owners: dict[int, Tensor | None] = {}
        self._sets: list[Events] = [frozenset()]
        self._numbers: dict[Events, int] = {frozenset(): 0}

    def allocated(self, tensor: Tensor) -> None:
        """Record that the storage of a tensor is new memory without values."""
        self._owners[storage_address(tensor)] = None

    def forget(self, tensor: Tensor) -> None:
        self._owners.pop(storage_address(tensor), None)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Give the entries of `target`, which fills its storage, the events of `source`."""
        self.forget(target)
        if storage_address(source) in self._owners:
            owners = self._view(source)
            assert owners is not None, "a view of owners exists where the storage is known"
            flat = torch.zeros(_elements(target), dtype=torch.int16, device=target.device)
            flat.as_strided(target.shape, target.stride(), target.storage_offset()).copy_(owners)
            self._owners[storage_address(target)] = flat

    def bad(self, tensor: Tensor) -> Tensor:
        """Return where a tensor is not finite, without garbage; booleans in its shape."""
        bad = ~tensor.isfinite()
        owners = self._view(tensor)
        return bad if owners is None else bad & (owners != _GARBAGE)

    def events(self, tensor: Tensor) -> Events:
        """Return the events that made entries of a tensor not finite."""
        if self._owners.get(storage_address(tensor)) is None:
            return frozenset()
        owners = self._view(tensor)
        assert owners is not None, "a view of owners exists where the storage is known"
        low, high = (int(end) for end in owners.aminmax()) if owners.numel() else (0, 0)
        numbers = [high]
        if low != high:  # `unique` would sort
            numbers = (
                (owners - low).flatten().long().bincount().nonzero().flatten().add(low).tolist()
            )
        numbers = [number for number in numbers if number > 0]
        return frozenset().union(*(self._sets[number] for number in numbers))

    def write_finite(self, tensor: Tensor) -> None:
        """Record that an operation wrote a tensor, all of it finite."""
        if tensor.numel() == _elements(tensor):
            self.forget(tensor)
        elif storage_address(tensor) in self._owners:
            self._materialized(tensor).zero_()

    def write(self, tensor: Tensor, events: Events, *, before: Tensor | None = None) -> None:
        """Record the events of the entries that an operation wrote.

        Args:
            tensor: Result of the operation, or the tensor that it changed, not all of it finite.
            events: Events of the entries that are not finite.
            before: Values before an operation in place, whose unchanged entries keep their events;
                None if all entries were written.
        """
        finite = tensor.isfinite()
        if before is None and tensor.numel() == _elements(tensor):
            self.forget(tensor)
        owners = self._materialized(tensor)
        number = self._numbers.setdefault(events, len(self._sets))
        if number == len(self._sets):
            self._sets.append(events)
        written = torch.where(finite, 0, number).to(torch.int16)
        if before is not None:
            is_same = (tensor == before) | (tensor.isnan() & before.isnan())
            written = torch.where(is_same & ~finite, owners, written)
        owners.copy_(written)

    def _materialized(self, tensor: Tensor) -> Tensor:
        """Return the owners of a tensor's entries, which can be changed."""
        key = storage_address(tensor)
        known = self._owners.get(key)
        if known is None or known.numel() != _elements(tensor):
            start = _GARBAGE if key in self._owners and known is None else 0
            known = torch.full((_elements(tensor),), start, dtype=torch.int16, device=tensor.device)
            self._owners[key] = known
        return known.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _view(self, tensor: Tensor) -> Tensor | None:
        """Return the owners of a tensor's entries; None if its storage is not known."""
        return self._materialized(tensor) if storage_address(tensor) in self._owners else None


def storage_address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()


def _elements(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.element_size()


class OperationWatch(TorchDispatchMode):
    """Context that watches every operation of the code inside it, forward and backward.

    It leaves no hook behind. Values and random numbers do not change.

    Args:
        model: Model whose modules are named.
        shape: How the batch is laid out; without it, examples are not named.
        batch: Batch, whose floating-point tensors are checked; None checks none.
        probe: Call to be kept in `probed`.
    """

    def __init__(
        self,
        model: nn.Module,
        shape: BatchShape = UNKNOWN_SHAPE,
        batch: Any = None,
        probe: Key | None = None,
    ) -> None:
        super().__init__()
        # Operations that made values that are not finite, in their order.
        self.events: list[NonfiniteEvent] = []
        # Whether an operation raised, because a number does not exist in its dtype.
        self.has_failed = False
        # The operation that `probe` names, as seen in this pass; None if it did not occur.
        self.probed: OperatorCall | None = None
        self._model = model
        self._shape = shape
        self._probe = probe
        self._running: list[str] = []  # paths of the modules that run, the innermost last
        self._calls: Counter[tuple[str, str, str]] = Counter()
        # Module and line of forward operations, for the backward operations that belong to them.
        self._origins: dict[int, tuple[str, SourceLine | None]] = {}
        self._last: tuple[str, SourceLine | None] = ("", None)
        self._events = NonfiniteOrigins()
        # Addresses of the storages whose values depend on weights.
        self._derived = {storage_address(parameter) for parameter in model.parameters()}
        self._weights = {tuple(p.shape) for p in model.parameters() if p.dim() > 1}
        self._weights |= {shape[::-1] for shape in self._weights}
        self._contexts = ExitStack()
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            module, _, own = name.rpartition(".")
            self._seed(tensor, (module, "forward", f"parameter {own}", 0), Cause.PARAMETER)
        for name, tensor in named_tensors(batch).items():
            self._seed(tensor, ("", "forward", name, 0), Cause.INPUT)

    def __enter__(self) -> OperationWatch:
        for path, module in self._model.named_modules():
            enter = partial(self._enter_module, path)
            before = module.register_forward_pre_hook(enter, prepend=True)
            after = module.register_forward_hook(self._leave_module, always_call=True)
            self._contexts.callback(before.remove)
            self._contexts.callback(after.remove)
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
        self._running.clear()

    def _enter_module(self, path: str, module: nn.Module, args: object) -> None:
        del module, args
        self._running.append(path)

    def _leave_module(self, module: nn.Module, args: object, output: object) -> None:
        del module, args, output
        self._running.pop()

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
            result = func(*args, **kwargs)
            self._add_memory(name, result)
            return result
        module, frame, direction, node = self._trace()
        key = (module, direction, name, self._calls[module, direction, name])
        self._calls[key[:3]] += 1
        operation = OperatorCall(func, name, args, kwargs, node)
        changed = self._keep(operation)
        if changed is not None:
            operation = replace(operation, args=(changed, *args[1:]))
        if direction == "forward":
            self._note_use(operation)
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            if _TOO_LARGE in str(error):
                self.has_failed = True
                cause = Cause.MASK if carries_mask(name) else Cause.CONVERSION
                self._add(key, operation, cause, frame)
            raise
        self._note_dependence(operation, result)
        for output in floating_tensors(result):
            if bool(output.isfinite().all()):
                self._events.write_finite(output)
            else:
                self._judge(key, operation, output, frame)
        if key == self._probe:
            self.probed = operation.with_result(result)
        if changed is not None:
            self._forget(changed)
        return result

    def events_of(self, tensors: Iterable[Tensor]) -> list[NonfiniteEvent]:
        """Return the events that made values of these tensors not finite, in their order."""
        found: set[NonfiniteEvent] = set()
        for tensor in tensors:
            if not bool(tensor.isfinite().all()):
                found |= self._events.events(tensor)
        return [event for event in self.events if event in found]

    def _trace(self) -> tuple[str, SourceLine | None, str, str]:
        """Return module and source of the current operation, its direction, and autograd's node."""
        node = torch._C._current_autograd_node()
        path = self._running[-1] if self._running else ""  # of the model, or outside of it
        if node is not None and not path:
            origin = self._origins.get(node._sequence_nr(), self._last)
            self._last = origin
            return *origin, "backward", node.name()
        origin = path, calling_frame()
        # Autograd numbers its nodes, and this operation got the last number.
        self._origins.setdefault(torch._C._autograd._get_sequence_nr() - 1, origin)
        return *origin, "forward", ""

    def _add_memory(self, name: str, result: Any) -> None:
        """Record the memory that an operator without arithmetic returns."""
        for tensor in floating_tensors(result):
            if name in _UNINITIALIZED:
                self._events.allocated(tensor)
                self._derived.discard(storage_address(tensor))
            elif name == "lift_fresh":  # from Python
                self._forget(tensor)

    def _forget(self, tensor: Tensor) -> None:
        self._events.forget(tensor)
        self._derived.discard(storage_address(tensor))

    def _keep(self, operation: OperatorCall) -> Tensor | None:
        """Return a copy of the tensor that an operator in place changes; None if there is none.

        The copy has the same events.
        """
        first = operation.before
        if first is None:
            return None
        changed = first.clone()
        if changed.is_floating_point():
            self._events.copy(first, changed)
            if self._depends(first):
                self._derived.add(storage_address(changed))
        return changed

    def _note_use(self, operation: OperatorCall) -> None:
        """Record what an operation does with entries that are not finite."""
        for tensor in operation.tensors:
            for event in self._events.events(tensor):
                if hides_mask(operation.name):
                    event.is_hidden = True
                elif not carries_mask(operation.name) and not event.is_hidden:
                    event.is_used = True

    def _note_dependence(self, operation: OperatorCall, result: Any) -> None:
        """Record whether a result depends on weights."""
        is_derived = any(storage_address(each) in self._derived for each in operation.tensors)
        for output in floating_tensors(result):
            if is_derived:
                self._derived.add(storage_address(output))
            else:
                self._derived.discard(storage_address(output))

    def _judge(
        self, key: Key, operation: OperatorCall, output: Tensor, frame: SourceLine | None
    ) -> None:
        operands = [(each, self._events.bad(each)) for each in operation.tensors]
        sick = [(operand, bad) for operand, bad in operands if bool(bad.any())]
        inherited = frozenset().union(*(self._events.events(operand) for operand, _ in sick))
        has_nan = any(bool(operand[bad].isnan().any()) for operand, bad in sick)
        is_new = not has_nan and (bool(output.isnan().any()) or not sick)
        places = self._places(output, key[1])
        failed: OperatorCall | None = operation.with_result(output)
        if not is_new:
            failed = self._of_other_examples(key[1], operation, places, [bad for _, bad in sick])
        if failed is not None and failed.result is not None:
            event = self._add(key, failed, None, frame)
            event.places = self._places(failed.result, key[1])
            event.has_nan = bool(failed.result.isnan().any())
            inherited |= {event}
        for event in inherited:
            event.places = event.places or places
        self._events.write(output, inherited, before=operation.before)

    def _of_other_examples(
        self,
        direction: str,
        operation: OperatorCall,
        places: BatchPositions | None,
        sick: Sequence[Tensor],
    ) -> OperatorCall | None:
        """Return an operation that fails for examples whose operands are finite; None otherwise.

        Args:
            direction: `forward` or `backward`.
            operation: Call with operands that are not finite.
            places: Where its result is not finite.
            sick: Where each of these operands is not finite.
        """
        if places is None or direction == "backward":
            return None
        known = [self._shape.places(bad) for bad in sick]
        if torch.Tag.nondeterministic_seeded in operation.func.tags or None in known:
            return None
        rows = frozenset().union(*(each.rows for each in known if each is not None))
        if places.rows <= rows:
            return None
        with _plain_arithmetic():
            healed = operation.with_finite_operands()
        found = self._shape.places(~healed.result.isfinite()) if healed.result is not None else None
        return healed if found is not None and not found.rows <= rows else None

    def _add(
        self, key: Key, operation: OperatorCall, cause: Cause | None, frame: SourceLine | None
    ) -> NonfiniteEvent:
        with _plain_arithmetic():
            event = NonfiniteEvent(
                key,
                cause or cause_of(operation),
                writes_mask=cause is None
                and key[1] == "forward"
                and writes_mask(operation, self._depends),
                largest=None if cause else largest_result(operation),
                inputs=ranges_of(operation),
                frame=frame,
            )
        self.events.append(event)
        return event

    def _depends(self, tensor: Tensor) -> bool:
        return storage_address(tensor) in self._derived

    def _places(self, output: Tensor, direction: str) -> BatchPositions | None:
        if direction == "backward" and tuple(output.shape) in self._weights:
            return None
        return self._shape.places(~output.isfinite())

    def _seed(self, tensor: Tensor, key: Key, cause: Cause) -> None:
        """Add an event if a tensor is not finite before the pass."""
        if not tensor.is_floating_point() or bool(tensor.isfinite().all()):
            return
        bad = tensor[~tensor.isfinite()]
        # Models keep causal masks in buffers, and users pass masks.
        only_masks = bool((bad == -torch.inf).all()) and not isinstance(tensor, nn.Parameter)
        places = self._shape.places(~tensor.isfinite()) if cause is Cause.INPUT else None
        event = NonfiniteEvent(key, cause, writes_mask=only_masks, places=places)
        self.events.append(event)
        self._events.write(tensor, frozenset({event}))


@contextmanager
def _plain_arithmetic() -> Iterator[None]:
    """Return a context in which the watch can compute: no gradients, no autocast."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    with ExitStack() as contexts:
        contexts.enter_context(torch.no_grad())
        for device in devices:
            contexts.enter_context(torch.autocast(device, enabled=False))
        yield
