"""What one process found, and how the findings of several are merged."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ampft.diagnosis.doctor.findings import Fault
from ampft.diagnosis.doctor.ranges import Values
from ampft.precision.accelerator import world_size

MAX_TOKENS = 20  # positions that a fault lists


@dataclass
class Examination:
    """What one process found; several are merged before a diagnosis is made.

    Attributes:
        values: Values by module and direction, in float32.
        gradients: Values of all gradients, in float32.
        faults: Faults, the first one first.
        scale: Largest loss scale at which all batches had finite gradients; None if there is none.
        batches: Number of batches.
        ids: Example ids.
    """

    values: dict[tuple[str, str], Values] = field(default_factory=dict)
    gradients: Values = field(default_factory=Values)
    faults: list[Fault] = field(default_factory=list)
    scale: float | None = None
    batches: int = 0
    ids: set[int] = field(default_factory=set)

    def add_fault(self, fault: Fault) -> None:
        """Add a fault, or its examples to the same fault of another batch."""
        for position, known in enumerate(self.faults):
            if _same(known, fault):
                self.faults[position] = _joined(known, fault)
                return
        self.faults.append(fault)

    def merge(self, other: Examination) -> None:
        """Add what another process found."""
        for key, values in other.values.items():
            self.values.setdefault(key, Values()).merge(values)
        self.gradients.merge(other.gradients)
        for fault in other.faults:
            self.add_fault(fault)
        scales = (self.scale, other.scale)
        self.scale = None if None in scales else min(scale for scale in scales if scale)
        self.batches += other.batches
        self.ids |= other.ids


def merged(found: Examination) -> Examination:
    """Return what all processes of the group found; all of them call it."""
    count = world_size()
    if count == 1:
        return found
    every: list[Any] = [None] * count
    torch.distributed.all_gather_object(every, found)
    first, *others = every
    for other in others:
        first.merge(other)
    first.faults.sort(key=lambda fault: fault.is_harmless)
    assert isinstance(first, Examination)
    return first


def _same(one: Fault, other: Fault) -> bool:
    return (one.module, one.direction, one.operation, one.cause) == (
        other.module,
        other.direction,
        other.operation,
        other.cause,
    )


def _joined(one: Fault, other: Fault) -> Fault:
    sizes = [size for size in (one.largest, other.largest) if size is not None]
    return replace(
        one,
        largest=max(sizes, default=None),
        in_float32=one.in_float32 or other.in_float32,
        example_ids=tuple(sorted({*one.example_ids, *other.example_ids})),
        tokens=tuple(sorted({*one.tokens, *other.tokens}))[:MAX_TOKENS],
    )
