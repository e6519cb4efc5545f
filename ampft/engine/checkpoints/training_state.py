"""The states of an optimizer, by names of parameters, and of all random generators of a process.

Dropout draws from torch's default generators, on the padding-free path too. The order of examples
and the seeds of loader workers depend only on the seed and the epoch.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ampft.engine.generators import device_random_state, restore_device_random_state
from ampft.models.weights import gather_tensors, sharded_like


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the tensors of the state as "parameter/key", such as "encoder.weight/exp_avg".

    Sharded ones are gathered on the main process; all processes must call it.
    """
    entries = _entries(model, optimizer)
    return gather_tensors({n: value for n, value in entries if isinstance(value, Tensor)})


def optimizer_values(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Return the groups of parameters, and the state that is not tensors, as JSON values."""
    names = _names(model)
    groups = [
        {
            # A learning rate can be a tensor.
            **{k: v.item() if isinstance(v, Tensor) else v for k, v in group.items()},
            "params": [names[id(parameter)] for parameter in group["params"]],
        }
        for group in optimizer.param_groups
    ]
    rest = {
        name: value for name, value in _entries(model, optimizer) if not isinstance(value, Tensor)
    }
    return {"groups": groups, "state": rest}


def add_groups(model: nn.Module, optimizer: Any, saved_groups: Sequence[Mapping[str, Any]]) -> None:
    """Add the groups of parameters that an optimizer had, and lacks now.

    Raises:
        ValueError: Its groups, or parameters of the model, are others than the saved ones.
    """
    names, parameters = _names(model), dict(model.named_parameters())
    current = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
    saved = [list(group["params"]) for group in saved_groups]
    unknown = [name for group in saved for name in group if name not in parameters]
    if unknown:
        raise ValueError(f"the optimizer trained {unknown[0]}, which the model does not have")
    can_add = isinstance(optimizer, Optimizer) or len(saved) == len(current)
    if current != saved[: len(current)] or not can_add:
        raise ValueError("the optimizer trains other parameters than the saved one")
    for group in saved_groups[len(current) :]:
        optimizer.add_param_group({**group, "params": [parameters[n] for n in group["params"]]})


def load_optimizer(
    model: nn.Module, optimizer: Optimizer, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
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


def random_state(device: torch.device) -> dict[str, Any]:
    """Return the states of the generators of Python, numpy and torch, and of the device."""
    # The global generator, which a model from elsewhere may use.
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(numpy_state, dict)
    of_device = device_random_state(device)
    return {
        "python": python_state(random.getstate()),
        "numpy": {
            **numpy_state,
            "state": {**numpy_state["state"], "key": numpy_state["state"]["key"].tolist()},
        },
        "torch": _hex(torch.get_rng_state()),
        "cuda": None,
        **({} if of_device is None else {device.type: _hex(of_device)}),
    }


def restore_random_state(values: Mapping[str, Any], device: torch.device) -> None:
    """Restore what `random_state` returned.

    Args:
        device: Device of the training. Its own generator keeps its state if the states come from
            another type of device.
    """
    random.setstate(as_python_state(values["python"]))
    np.random.set_state(_numpy_state(values["numpy"]))  # noqa: NPY002
    torch.set_rng_state(_tensor(values["torch"]))
    if device.type != "cpu" and values.get(device.type) is not None:
        restore_device_random_state(_tensor(values[device.type]), device)


def check_random_state(values: Mapping[str, Any]) -> None:
    """Restore what `random_state` returned into generators that nobody uses.

    Raises:
        Exception: Anything that Python, numpy and torch raise about states that are not theirs.
    """
    random.Random().setstate(as_python_state(values["python"]))
    np.random.RandomState().set_state(_numpy_state(values["numpy"]))
    torch.Generator().set_state(_tensor(values["torch"]))
    for kind in ("cuda", "xpu", "mps"):
        if values.get(kind) is not None and torch.get_device_module(kind).is_available():
            torch.Generator(kind).set_state(_tensor(values[kind]))


def _numpy_state(values: Mapping[str, Any]) -> dict[str, Any]:
    key = np.array(values["state"]["key"], dtype=np.uint32)
    return {**values, "state": {**values["state"], "key": key}}


def python_state(state: tuple[Any, ...]) -> list[Any]:
    """Return the state of a `random.Random` as JSON values."""
    version, numbers, gauss = state
    return [version, list(numbers), gauss]


def as_python_state(values: list[Any]) -> tuple[Any, ...]:
    """Return JSON values as the state of a `random.Random`."""
    version, numbers, gauss = values
    return version, tuple(numbers), gauss


def _hex(state: torch.Tensor) -> str:
    return state.numpy().tobytes().hex()


def _tensor(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
