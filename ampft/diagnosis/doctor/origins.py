"""Events, and which of them made the entries of tensors not finite, entry by entry.

Tensors are known by the address of their storage, which several views share and an operator in
place changes in part. Whoever allocates an address again is seen, and replaces what was known.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ampft.diagnosis.doctor.findings import Cause, ValueRange
from ampft.diagnosis.doctor.places import Frame, Places

Key = tuple[str, str, str, int]
"""Module, direction, operator, and how many such calls preceded it in the pass."""

_GARBAGE = -1  # memory that nothing has written: what it contains means nothing


@dataclass(eq=False)
class Event:
    """An operation whose result has a NaN or an infinity that its operands did not have.

    Attributes:
        key: Which operation it was, so that another pass finds it.
        cause: Its cause, judged by this pass only.
        writes_mask: Whether it makes a few entries infinite by a constant that no weight decides.
        is_hidden: Whether a softmax has turned these entries into zeros.
        is_used: Whether another operation has computed with them before.
        largest: Largest absolute value that float64 has for the result; None if not finite.
        inputs: Ranges of the operands.
        frame: Line of the model's source.
        places: Examples and tokens, as soon as an operation shows them.
        has_nan: Whether the result has a NaN, and not only infinities.
    """

    key: Key
    cause: Cause
    writes_mask: bool = False
    is_hidden: bool = False
    is_used: bool = False
    largest: float | None = None
    inputs: tuple[ValueRange, ...] = ()
    frame: Frame | None = None
    places: Places | None = None
    has_nan: bool = False

    @property
    def is_mask(self) -> bool:
        """Whether it is a mask, as seen so far: constants that only a softmax reads."""
        return self.writes_mask and self.is_hidden and not self.is_used


Events = frozenset[Event]


class Origins:
    """The events of every entry that is not finite, by storage."""

    def __init__(self) -> None:
        # An entry has the number of its set of events. None: all of the storage is garbage.
        self._owners: dict[int, Tensor | None] = {}
        self._sets: list[Events] = [frozenset()]
        self._numbers: dict[Events, int] = {frozenset(): 0}

    def allocated(self, tensor: Tensor) -> None:
        """Record that the storage of a tensor is new memory without values."""
        self._owners[address(tensor)] = None

    def forget(self, tensor: Tensor) -> None:
        """Forget the storage of a tensor."""
        self._owners.pop(address(tensor), None)

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Give the entries of `target`, which fills its storage, the events of `source`."""
        self.forget(target)
        if address(source) in self._owners:
            owners = self._view(source)
            assert owners is not None, "a view of owners exists where the storage is known"
            flat = torch.zeros(_elements(target), dtype=torch.int16, device=target.device)
            flat.as_strided(target.shape, target.stride(), target.storage_offset()).copy_(owners)
            self._owners[address(target)] = flat

    def bad(self, tensor: Tensor) -> Tensor:
        """Return where a tensor is not finite, without garbage; booleans in its shape."""
        bad = ~tensor.isfinite()
        owners = self._view(tensor)
        return bad if owners is None else bad & (owners != _GARBAGE)

    def events(self, tensor: Tensor) -> Events:
        """Return the events that made entries of a tensor not finite."""
        if self._owners.get(address(tensor)) is None:
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
        elif address(tensor) in self._owners:
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
        key = address(tensor)
        known = self._owners.get(key)
        if known is None or known.numel() != _elements(tensor):
            start = _GARBAGE if key in self._owners and known is None else 0
            known = torch.full((_elements(tensor),), start, dtype=torch.int16, device=tensor.device)
            self._owners[key] = known
        return known.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _view(self, tensor: Tensor) -> Tensor | None:
        """Return the owners of a tensor's entries; None if its storage is not known."""
        return self._materialized(tensor) if address(tensor) in self._owners else None


def address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()


def _elements(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes() // tensor.element_size()
