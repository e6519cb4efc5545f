"""Trains only a part of a model: parameters frozen by name, or all below its top layers.

Autograd records nothing below the lowest trained parameter, so that the frozen lower part costs a
forward pass without gradients. What is frozen has no gradient and no optimizer state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ampft.errors import InputError, listed
from ampft.precision.compilation import uncompiled
from ampft.precision.float32_modules import matches_path, split_patterns

NAMED = 8  # modules that a message names
POOLER = "pooler"  # belongs to the head: many checkpoints have none, or one that was not trained
CASTS = "casts"  # attribute of a frozen layer: its weights in the dtype of autocast


def base_model_of(model: nn.Module) -> nn.Module:
    """Return a model of transformers without its head."""
    base = getattr(model, str(getattr(model, "base_model_prefix", "")), model)
    return base if isinstance(base, nn.Module) else model


def head_names(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the modules of the head: those beside the encoder, and its pooler."""
    base = base_model_of(model)
    beside = [(name, child) for name, child in model.named_children() if child is not base]
    poolers = [
        (name, module)
        for name, module in model.named_modules()
        if name.rpartition(".")[2] == POOLER
    ]
    return tuple(name for name, module in (*beside, *poolers) if has_weights(module))


def last_layers(model: nn.Module, outputs: int) -> dict[str, nn.Linear]:
    """Return the linear layers of the head, by name, that are trained and have so many outputs."""
    head = head_names(model)
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and module.out_features == outputs
        and module.weight.requires_grad
        and is_inside_any(name, head)
    }


def has_weights(module: nn.Module) -> bool:
    """Return whether a module has parameters."""
    return next(module.parameters(), None) is not None


def is_inside_any(name: str, modules: Iterable[str]) -> bool:
    """Return whether a parameter or module is one of `modules`, or lies in one of them."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def freeze_matching(model: nn.Module, patterns: str) -> None:
    """Freeze the parameters that patterns name.

    Args:
        patterns: Comma-separated globs, such as "embeddings,layer.0". Each is compared with the
            path of a parameter and of the modules that contain it, as `matches_path` does.

    Raises:
        InputError: A pattern matches nothing, or is empty.
    """
    paths = {
        name: list(accumulate(name.split("."), "{}.{}".format))
        for name, _ in model.named_parameters()
    }
    frozen: set[str] = set()
    for pattern in split_patterns("--freeze", patterns):
        found = {
            parameter
            for parameter, around in paths.items()
            if any(matches_path(path, pattern) for path in around)
        }
        if not found:
            base = base_model_of(model)
            inside = [name for name, child in base.named_children() if has_weights(child)]
            beside = [name for name in head_names(model) if not name.endswith(f".{POOLER}")]
            raise InputError(
                f"--freeze {pattern}: no parameter or module of {type(model).__name__} has this "
                f"name. Its modules are {listed([*inside, *beside], limit=NAMED)}; * stands for "
                "any characters."
            )
        frozen |= found
    for name, parameter in model.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)


@dataclass(frozen=True)
class ParameterDepths:
    """The depths of the parameters of a model with L layers."""

    # Depth by name of the parameter: 1 to L in the layers; L + 1 in the head, the pooler and what
    # else follows the layers; 0 in embeddings and the rest.
    of_parameter: dict[str, int]
    head: int  # L + 1.


def parameter_depths(model: nn.Module) -> ParameterDepths | None:
    """Return the depths of the parameters; None if the layers of the model are not one list."""
    base, outside = base_model_of(model), head_names(model)
    lists = {name: m for name, m in base.named_modules() if name and isinstance(m, nn.ModuleList)}
    outer = [name for name in lists if not is_inside_any(name, lists.keys() - {name})]
    sizes = [sum(p.numel() for p in lists[name].parameters()) for name in outer]
    is_encoder_decoder = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    # The layers are the list with most weights, if it has more than all others together.
    if is_encoder_decoder or not sizes or 2 * max(sizes) <= sum(sizes):
        return None
    path = outer[sizes.index(max(sizes))]
    layers = lists[path]
    depth_of = {
        id(parameter): depth
        for depth, layer in enumerate(layers, start=1)
        for parameter in layer.parameters()
    }
    head = len(layers) + 1
    children = list(base.named_children())
    place = [name for name, _ in children].index(path.partition(".")[0])
    for _, child in children[place + 1 :]:
        if not any(isinstance(part, nn.Embedding) for part in child.modules()):
            depth_of |= {id(parameter): head for parameter in child.parameters()}
    return ParameterDepths(
        {
            name: head if is_inside_any(name, outside) else depth_of.get(id(parameter), 0)
            for name, parameter in model.named_parameters()
        },
        head,
    )


def train_top_layers(model: nn.Module, count: int) -> None:
    """Freeze all but the top layers of the encoder, what follows them, and the head.

    Args:
        count: Number of layers to train; with 0 only what follows the layers is trained, which is
            called linear probing.

    Raises:
        InputError: The layers of the model are not one list, or it has fewer.
    """
    depths = parameter_depths(model)
    if depths is None:
        raise InputError(
            f"--train_layers {count}: the layers of {type(model).__name__} are not a single list, "
            "so which are on top is not defined. Choose what to freeze with --freeze."
        )
    layers = depths.head - 1
    if count > layers:
        raise InputError(
            f"--train_layers {count}: {type(model).__name__} has {layers} layers. Use a number "
            f"from 0 to {layers}."
        )
    for name, parameter in model.named_parameters():
        is_top = depths.of_parameter[name] > layers - count
        # Those frozen before, as in an auxiliary head, stay so.
        parameter.requires_grad_(parameter.requires_grad and is_top)


def check_something_trains(model: nn.Module) -> None:
    """Check that a parameter of the model is trained.

    Raises:
        InputError: All are frozen.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError(
            "--freeze: the patterns freeze every parameter, so that nothing is trained. Leave at "
            f"least the head: {', '.join(head_names(model))}."
        )


def keep_frozen_in_evaluation(model: nn.Module, kind: type[nn.Module] = nn.Module) -> None:
    """Keep frozen modules in eval mode.

    Their dropout is then off, and the statistics of their batch norms do not change.
    """
    for module in model.modules():
        parameters = list(module.parameters())
        is_frozen = parameters and not any(parameter.requires_grad for parameter in parameters)
        if is_frozen and isinstance(module, kind):
            module.eval()
            module.train = MethodType(_stay_in_evaluation, module)  # type: ignore[method-assign]


def _stay_in_evaluation(module: nn.Module, mode: bool = True) -> nn.Module:
    del mode
    return module


def cache_frozen_casts(model: nn.Module) -> None:
    """Make frozen linear layers keep their weights in the dtype of autocast.

    Autocast caches the casts of trained weights only, and only within a step; it would cast frozen
    ones in every forward pass. The results are equal bit for bit. The copies take two bytes per
    frozen weight and are not saved.
    """
    for module in model.modules():
        if type(module) is nn.Linear and not any(p.requires_grad for p in module.parameters()):
            module.__class__ = FrozenLinear


def cast_frozen_anew(model: nn.Module) -> None:
    """Undo `cache_frozen_casts`: of a sharded model, each process would keep all copies whole."""
    for module in model.modules():
        if type(module) is FrozenLinear:
            module.__class__ = nn.Linear  # type: ignore[assignment] # its base
            clear_cached_casts(module)


def clear_cached_casts(layer: nn.Module) -> None:
    """Make a frozen layer cast its weights again, because they were changed through `Tensor.data`.

    Such a change keeps their version and their address.
    """
    layer.__dict__.pop(CASTS, None)


class FrozenLinear(nn.Linear):
    """An `nn.Linear` as changed by `cache_frozen_casts`."""

    def forward(self, input: Tensor) -> Tensor:
        """Return what `nn.Linear` returns."""
        device = self.weight.device.type
        if not torch.is_autocast_enabled(device) or self.weight.dtype != torch.float32:
            return super().forward(input)
        dtype = torch.get_autocast_dtype(device)
        bias = None if self.bias is None else self._cast("bias", self.bias, dtype)
        return functional.linear(input, self._cast("weight", self.weight, dtype), bias)

    @uncompiled
    def _cast(self, name: str, value: Tensor, dtype: torch.dtype) -> Tensor:
        casts: dict[str, Any] = self.__dict__.setdefault(CASTS, {})
        # Loading weights changes the version, and moving them the address.
        key = (dtype, value.device, value.data_ptr(), value._version)
        if name not in casts or casts[name][0] != key:
            with torch.no_grad():
                casts[name] = (key, value.detach().to(dtype))
        return casts[name][1]
