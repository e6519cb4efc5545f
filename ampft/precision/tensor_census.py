"""Which dtypes the weights, gradients and optimizer state of a model have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from ampft.errors import InputError

if TYPE_CHECKING:
    from ampft.precision.executed import ExecutedDtypes
    from ampft.precision.resolve import Precision


@dataclass(frozen=True)
class TensorCensus:
    """How many tensors of each dtype a model and its optimizer hold (dtype name -> tensors)."""

    parameters: Mapping[str, int] = field(default_factory=dict)
    gradients: Mapping[str, int] = field(default_factory=dict)
    optimizer_state: Mapping[str, int] = field(default_factory=dict)


def dtype_name(dtype: torch.dtype) -> str:
    """Return `float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


def tensor_census(model: nn.Module | None, optimizer: torch.optim.Optimizer | None) -> TensorCensus:
    """Count the tensors of each dtype in a model, its gradients and its optimizer's state.

    Args:
        model: None counts no parameters and no gradients.
        optimizer: None counts no state. Scalars (step counters) are left out.
    """
    parameters = list(model.parameters()) if model is not None else []
    states = optimizer.state.values() if optimizer is not None else ()
    state = [
        value
        for entry in states
        for value in entry.values()
        if isinstance(value, torch.Tensor) and value.ndim > 0
    ]
    return TensorCensus(
        parameters=_count(parameters),
        gradients=_count(p.grad for p in parameters if p.grad is not None),
        optimizer_state=_count(state),
    )


def stored_otherwise(precision: Precision, executed: ExecutedDtypes) -> str | None:
    """Return what a mode with bfloat16 weights held in another dtype, or None.

    Nothing is asked of modes with float32 weights: those that train were checked before, and
    frozen ones may have any dtype.
    """
    if precision.storage_dtype == torch.float32:
        return None
    censuses = {
        "weights": executed.parameters,
        "gradients": executed.gradients,
        "optimizer state": executed.optimizer_state,
    }
    for what, census in censuses.items():
        others = sorted(set(census) - {dtype_name(precision.storage_dtype)})
        if others:
            stored = f"{what} were stored in {' and '.join(others)}"
            return f"mode {precision.mode} was asked for, but {stored}"
    return None


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of tensors; one that is given twice, or is another's view, counts once.

    Of a sharded tensor, the part on this process counts.
    """
    places: dict[tuple[torch.device, int], int] = {}
    for tensor in tensors:
        local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        place = (local.device, local.data_ptr())
        places[place] = max(places.get(place, 0), local.numel() * local.element_size())
    return sum(places.values())


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the bytes of an optimizer's state, step counters included; 0 before its first step."""
    return tensor_bytes(
        value
        for entry in optimizer.state.values()
        for value in entry.values()
        if isinstance(value, torch.Tensor)
    )


def _count(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    return dict(Counter(dtype_name(t.dtype) for t in tensors))


def check_storage(model: nn.Module, dtype: torch.dtype) -> None:
    """Check that all weights that train are stored in `dtype`.

    Raises:
        InputError: Names the first parameter that is not.
    """
    if dtype == torch.float32:
        check_trainable_float32(model)
        return
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != dtype:
            raise InputError(
                f"parameter {name} is {dtype_name(parameter.dtype)}; this mode stores weights in "
                f"{dtype_name(dtype)}. Cast the model with ampft.cast_weights before the optimizer "
                "is made."
            )


def check_trainable_float32(model: nn.Module) -> None:
    """Check that all weights that train are float32, which mixed precision relies on.

    Raises:
        InputError: Names the first parameter that is not.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise InputError(
                f"parameter {name} is {dtype_name(parameter.dtype)}; weights that train have to be "
                f"float32, since updates smaller than a 16-bit weight's spacing would be lost. "
                f"Load the model with dtype=torch.float32, or call model.float()."
            )
