"""Weights: the dtype that they are stored in, their hash in float32, the placebo's change."""

from __future__ import annotations

import hashlib
import math
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
        float32_sha256: `weights_hash` of the float32 weights; empty until `cast_weights`.
    """

    model: nn.Module
    name: str
    padding_free: bool
    notes: tuple[str, ...]
    float32_sha256: str = ""


def cast_weights(loaded: LoadedModel, precision: Precision) -> LoadedModel:
    """Store the weights of a float32 model as `precision` says, in place; before the optimizer.

    The hash of the float32 weights is kept, so that runs in different modes can show that they
    started alike.

    Args:
        loaded: From `Task.load_model`.
        precision: Modes with float32 weights leave the model as it is.
    """
    loaded = replace(loaded, float32_sha256=weights_hash(loaded.model))
    if precision.storage_dtype != torch.float32:
        store_in(loaded.model, precision.storage_dtype)
    return loaded


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


def perturb_weights(model: nn.Module, seed: int) -> None:
    """Move every trainable weight by one unit in its last place, up or down at random.

    Chaos can let two trainings that differ by so little end apart (Summers and Dinneen, 2021,
    "Nondeterminism and Instability in Neural Network Optimization"), so that their difference is
    the yardstick for every other.

    Zeros stay: a relative error of nothing is nothing, and a subnormal number in the place of a
    zero is slow on a CPU. Buffers and frozen weights stay too: they are no starting point of the
    training. Torch's global generator is not touched, so that dropout draws what it would have.

    Args:
        model: Its trainable floating-point parameters change in place; a tied one moves once.
        seed: Of a generator on the CPU, so that every process and device moves alike.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                up = torch.randint(2, parameter.shape, generator=generator, dtype=torch.bool)
                parameter.copy_(_next_to(parameter, up.to(parameter.device)))


def _next_to(weight: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    limit = torch.full_like(weight, math.inf)
    moved = torch.nextafter(weight, torch.where(up, limit, -limit))
    # The largest finite number has no finite neighbour on its far side.
    return torch.where((weight == 0) | ~moved.isfinite(), weight, moved)
