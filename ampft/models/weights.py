"""Weights in the dtype that a mode stores them in, and their hash, which is of float32 always."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import torch
from torch import nn

from ampft.precision.resolve import Precision


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be trained.

    Attributes:
        model: Its trainable weights are float32, until `cast_weights` stores them otherwise.
        name: What is shown and recorded: a hub id, a folder, or a description.
        padding_free: Whether its encoder runs on real tokens alone.
        notes: Sentences to print, such as why the head is new.
        float32_sha256: `weights_hash` of the float32 weights; None where they are float32 still.
    """

    model: nn.Module
    name: str
    padding_free: bool
    notes: tuple[str, ...]
    float32_sha256: str | None = None


def cast_weights(loaded: LoadedModel, precision: Precision) -> LoadedModel:
    """Store the weights of a float32 model as `precision` says, in place; before the optimizer.

    The hash of the float32 weights is kept, so that runs in different modes can show that they
    began alike.

    Args:
        loaded: From `Task.load_model`.
        precision: Modes with float32 weights leave the model as it is.
    """
    if precision.storage_dtype == torch.float32:
        return loaded
    float32_sha256 = weights_hash(loaded.model)
    store_in(loaded.model, precision.storage_dtype)
    return replace(loaded, float32_sha256=float32_sha256)


def store_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast floating-point parameters, and the buffers that are saved with them, in place.

    Buffers that are computed rather than saved stay: rotary frequencies in bfloat16 would mistake
    one position for another.
    """
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and name not in module._non_persistent_buffers_set:
                module._buffers[name] = buffer.to(dtype)


def weights_hash(model: nn.Module) -> str:
    """Return the SHA-256 of all weights and buffers with their names, dtypes and shapes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
