"""Finds by probing what autocast does with every operation that it knows.

The dispatcher lists the operations that have an autocast kernel for a device. Each is called on
tiny tensors of float32, of 16 bits, and of both. What it receives is observed before it runs, so
that nothing is computed and shapes need not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ampft.emulation.kernels import operator_overload
from ampft.errors import InputError
from ampft.precision.resolve import Precision

LOWER, FLOAT32, WIDEST, REFUSED = "16 bits", "float32", "widest input", "refused"
POLICIES = (LOWER, FLOAT32, WIDEST, REFUSED)
_AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "mps": "AutocastMPS"}
_SHAPES = ((2, 2), (2, 2, 2), (2, 2, 2, 2), (2, 2, 2, 2, 2), (2,))
_VALUES = {
    "int": 1, "SymInt": 1, "float": 1.0, "number": 1.0, "Scalar": 1.0, "bool": False, "str": "mean",
    "ScalarType": torch.float32, "Layout": torch.strided,
}  # fmt: skip


# Without it, torch warns on standard error.
_OPTIONS: Mapping[str, dict[str, Any]] = {"aten::cross": {"dim": -1}}


class _ReachedError(Exception):
    """An operation was reached, whose inputs are known."""


class _BannedError(Exception):
    """Autocast raises an error for an operation."""


class _Observer(TorchDispatchMode):
    """Stops at the first cast, or otherwise at the first operation that is not a view."""

    def __init__(self) -> None:
        super().__init__()
        # Dtype of the cast, or of what the operation receives.
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.is_view:
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        tensors = (leaf for leaf in leaves if isinstance(leaf, Tensor))
        self.dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
        requested = {leaf for leaf in leaves if isinstance(leaf, torch.dtype)}
        if requested:  # of a cast, or of a sum
            self.dtypes = requested
        raise _ReachedError


@dataclass(frozen=True)
class AutocastOperation:
    """What autocast does with an operation."""

    name: str  # Name and overload in `torch.ops.aten`, such as `mm` or `norm.Scalar`.
    policy: str  # One of `POLICIES`.


def autocast_operations(precision: Precision) -> tuple[AutocastOperation, ...]:
    """Return what autocast does with every operation that it knows, sorted by name.

    Call it inside `numerics(precision)`. Of an emulated GPU, these are the operations that the
    GPU's autocast knows, and those that the emulation refuses.

    Raises:
        InputError: The mode has no autocast, or autocast on its device is not known here.
    """
    key = _AUTOCAST_KEYS.get(precision.device_type)
    if key is None or not precision.uses_autocast:
        raise InputError(
            f"--mixed_precision {precision.mode} on {precision.device_type}: autocast is not used. "
            f"Choose fp16 or bf16, on one of {', '.join(_AUTOCAST_KEYS)}."
        )
    found = []
    on_device = set(operators_with_kernel("AutocastCUDA")) if precision.emulates_binary16 else None
    for name in operators_with_kernel(key):
        policy = _policy(operator_overload(name), precision)
        # The emulation leaves other operations to the CPU's kernels, rounded as on a GPU.
        if on_device is None or name in on_device or policy == REFUSED:
            found += [] if policy is None else [AutocastOperation(name, policy)]
    return tuple(found)


def operators_with_kernel(key: str) -> list[str]:
    """Return the operations with a kernel for a dispatch key, such as `AutocastCPU`."""
    names = torch._C._dispatch_get_all_op_names()
    known = torch._C._dispatch_has_kernel_for_dispatch_key
    return sorted(
        name.removeprefix("aten::")
        for name in names
        if name.startswith("aten::") and known(name, key)
    )


def _policy(operator: OpOverload, precision: Precision) -> str | None:
    """Return what autocast does with an operation; None if it changes nothing."""
    lower, wide = precision.compute_dtype, torch.float32
    try:
        received = _received(operator, precision, (lower, wide))
        if received == {lower}:
            # Either its other tensors were cast, or it has a single one.
            return LOWER if _received(operator, precision, (wide,)) == {lower} else None
        if received == {wide}:
            return FLOAT32 if _received(operator, precision, (lower,)) == {wide} else WIDEST
    except (InputError, _BannedError):
        return REFUSED
    return None


def _received(
    operator: OpOverload, precision: Precision, dtypes: Sequence[torch.dtype]
) -> set[torch.dtype]:
    """Return the dtypes that an operation receives after autocast; empty if that is not known.

    Args:
        dtypes: Dtypes of its first tensor and of the others.
    """
    for shape in _SHAPES:
        observer = _Observer()
        arguments, options = _arguments(operator, precision.device_type, shape, dtypes)
        autocast = torch.autocast(
            precision.device_type, precision.compute_dtype, cache_enabled=False
        )
        try:
            with torch.no_grad(), autocast, observer:
                operator(*arguments, **options)
        except _ReachedError:
            return observer.dtypes
        except (TypeError, ValueError, IndexError, RuntimeError) as error:
            if "unsafe to autocast" in str(error) or "unsafe under" in str(error):
                raise _BannedError from error
    return set()


def _arguments(
    operator: OpOverload, device: str, shape: Sequence[int], dtypes: Sequence[torch.dtype]
) -> tuple[list[Any], dict[str, Any]]:
    """Return arguments of the right types for an operation."""
    turns = chain(dtypes, repeat(dtypes[-1]))

    def tensor() -> Tensor:
        return torch.ones(tuple(shape), dtype=next(turns), device=device)

    positional: list[Any] = []
    named: dict[str, Any] = dict(_OPTIONS.get(operator._schema.name, {}))
    for argument in operator._schema.arguments:
        if argument.has_default_value():
            continue
        value = _value(str(argument.type), tensor)
        if argument.kwarg_only:
            named[argument.name] = value
        else:
            positional.append(value)
    if operator._schema.name == "aten::einsum":
        positional[0] = "ij,jk->ik"
    return positional, named


def _value(kind: str, tensor: Callable[[], Tensor]) -> Any:
    if kind == "Tensor":
        return tensor()
    if kind in ("List[Tensor]", "Tensor[]"):
        return [tensor(), tensor()]
    if kind == "List[Optional[Tensor]]":
        return [torch.zeros(1, dtype=torch.int64)]
    if kind.startswith("Optional["):
        return None
    if kind.startswith("List["):
        return [_VALUES.get(kind[5:-1], 1)]
    return _VALUES.get(kind, 1)
