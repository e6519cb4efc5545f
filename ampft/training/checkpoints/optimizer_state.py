"""The state of an optimizer by the names of its parameters, which do not depend on their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ampft.models.sharded import sharded_like, whole_on_main


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the tensors of the state as "parameter/key", such as "encoder.weight/exp_avg".

    Sharded ones are gathered on the main process; all processes must call it.
    """
    return {
        name: whole_on_main(value)
        for name, value in _entries(model, optimizer)
        if isinstance(value, Tensor)
    }


def optimizer_values(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return the rest of the state, and the groups of parameters, as JSON values."""
    names = _names(model)
    groups = [
        {**group, "params": [names[id(parameter)] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    rest = {
        name: value for name, value in _entries(model, optimizer) if not isinstance(value, Tensor)
    }
    return {"groups": groups, "state": rest}


def load_optimizer(
    model: nn.Module,
    optimizer: Optimizer,
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Any],
) -> None:
    """Restore an optimizer.

    Args:
        model: Model with the optimizer's parameters.
        optimizer: Optimizer with the same groups of parameters as the saved one.
        tensors: Result of `optimizer_tensors`.
        values: Result of `optimizer_values`.

    Raises:
        ValueError: The groups contain other parameters.
    """
    names = _names(model)
    saved_groups = values["groups"]
    current = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
    if current != [group["params"] for group in saved_groups]:
        raise ValueError("the optimizer trains other parameters than the saved one")
    indices = {name: index for index, name in enumerate(name for g in current for name in g)}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    for entry, value in {**values["state"], **tensors}.items():
        name, _, key = entry.rpartition("/")
        parameter = parameters[indices[name]]
        if isinstance(value, Tensor):
            is_counter = value.shape != parameter.shape
            # A copy, because tensors from a file may be read from it late.
            value = value.clone() if is_counter else sharded_like(value, parameter)
        state.setdefault(indices[name], {})[key] = value
    groups = [
        {
            **{k: tuple(v) if isinstance(v, list) else v for k, v in group.items()},
            "params": [indices[name] for name in group["params"]],
        }
        for group in saved_groups
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _entries(model: nn.Module, optimizer: Optimizer) -> list[tuple[str, Any]]:
    names = _names(model)
    return [
        (f"{names[id(parameter)]}/{key}", value)
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
    ]


def _names(model: nn.Module) -> dict[int, str]:
    return {
        id(parameter): name.replace("_orig_mod.", "")
        for name, parameter in model.named_parameters()
    }
