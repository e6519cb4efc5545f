"""The result of `ampft ops`: `OperationsReport`."""

from __future__ import annotations

from dataclasses import dataclass

from ampft.diagnosis.operations.probe import Operation
from ampft.diagnosis.operations.unlisted import UnlistedOperation


@dataclass(frozen=True)
class OperationsReport:
    """What autocast does in a mode on this device.

    Attributes:
        mode: Precision.
        execution: `native` or `emulated`.
        device: Device type.
        table: Device whose documented lists are compared: that of the emulated hardware.
        torch: Version of torch.
        operations: Operations with an autocast kernel, found by probing.
        undocumented: Operations that PyTorch documents nowhere or under another policy.
        not_found: Documented operations that have another policy or no autocast kernel.
        model: Name of the model; None if none was examined.
        unlisted: Its operations that are on no list.
    """

    mode: str
    execution: str
    device: str
    table: str
    torch: str
    operations: tuple[Operation, ...]
    undocumented: tuple[str, ...]
    not_found: tuple[str, ...]
    model: str | None = None
    unlisted: tuple[UnlistedOperation, ...] = ()
