"""A head that was trained for the same labels in another order is kept: its rows are permuted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn


def reorder_head(model: nn.Module, trained: Sequence[str], wanted: Sequence[str]) -> bool:
    """Put the outputs of a head in the order of other labels; return whether that is possible.

    It is if the labels are the same, and each output comes from a linear layer or a convolution
    whose outputs no other layer of the head reads.

    Args:
        wanted: Labels in the wanted order.
    """
    count = len(wanted)
    if sorted(trained) != sorted(wanted) or len({*wanted}) < count:
        return False
    layers = [layer for layer in head_modules(model) if list(layer.parameters(recurse=False))]
    outputs = [layer for layer in layers if _sizes(layer)[1] == count]
    is_read = any(_sizes(layer)[0] in (None, count) for layer in layers)
    if not outputs or is_read:
        return False
    rows = torch.tensor([trained.index(name) for name in wanted])
    with torch.no_grad():
        for layer in outputs:
            for parameter in layer.parameters(recurse=False):
                parameter.copy_(parameter[rows.to(parameter.device)])
    return True


def head_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules outside the encoder."""
    encoder = getattr(model, str(getattr(model, "base_model_prefix", "")), None)
    inside = set(encoder.modules()) if isinstance(encoder, nn.Module) else set()
    yield from (module for module in model.modules() if module not in inside)


def _sizes(layer: nn.Module) -> tuple[int | None, int | None]:
    """Return the number of inputs and outputs of a layer; None for an unknown kind of layer."""
    match layer:
        case nn.Linear():
            return layer.in_features, layer.out_features
        case nn.Conv1d() | nn.Conv2d():
            return layer.in_channels, layer.out_channels
        case nn.BatchNorm1d() | nn.BatchNorm2d():
            return layer.num_features, layer.num_features
        case nn.LayerNorm():
            return layer.normalized_shape[-1], layer.normalized_shape[-1]
    return None, None
