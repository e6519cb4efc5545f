"""Model weights: their storage dtype, their hash, and the perturbation for a placebo run."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from ampft.models.sharded import local_part, reshard, sharded_like
from ampft.precision.resolve import Precision


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be trained.

    Attributes:
        model: Model, whose trainable weights are float32 until `cast_weights` is called.
        name: Name that is displayed and recorded: a hub id, a folder, or a description.
        padding_free: Whether its encoder runs only on real tokens.
        notes: Sentences to print, such as the reason for a new head.
        float32_sha256: `weights_hash` of the float32 weights; empty until `cast_weights` is called.
        base_sha256: Hash of the float32 weights to which adapters were added; empty without any.
        is_random: Whether no weight is pretrained.
    """

    model: nn.Module
    name: str
    padding_free: bool
    notes: tuple[str, ...]
    float32_sha256: str = ""
    base_sha256: str = ""
    is_random: bool = False


def cast_weights(loaded: LoadedModel, precision: Precision) -> LoadedModel:
    """Cast the weights of a float32 model to the storage dtype of `precision`, in place.

    Call it before creating the optimizer. The hash of the float32 weights is kept, as evidence that
    runs in different modes started from the same weights.

    Args:
        loaded: Result of `Task.load_model`.
        precision: Precision of the run; modes with float32 weights do not change the model.
    """
    loaded = replace(loaded, float32_sha256=weights_hash(loaded.model))
    if precision.storage_dtype != torch.float32:
        cast_in_place(loaded.model, precision.storage_dtype)
    return loaded


def cast_in_place(model: nn.Module, dtype: torch.dtype, kept: Sequence[str] = ()) -> None:
    """Cast floating-point parameters and persistent buffers, in place.

    Buffers that are computed rather than saved are not cast: with rotary frequencies in bfloat16,
    neighbouring positions could not be told apart.

    Args:
        model: The model.
        dtype: Dtype to cast to.
        kept: Paths of modules that are not cast, nor are the modules inside them.
    """
    inside = {each for path in kept for each in model.get_submodule(path).modules()}
    for module in (each for each in model.modules() if each not in inside):
        for parameter in module.parameters(recurse=False):
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(dtype)
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and name not in module._non_persistent_buffers_set:
                module._buffers[name] = buffer.to(dtype)


def weights_hash(model: nn.Module) -> str:
    """Return the SHA-256 of all weights and buffers with their names, dtypes and shapes."""
    return tensors_hash(model.state_dict())


def tensors_hash(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the SHA-256 of tensors with their names, dtypes and shapes, in order of the names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def weights_size(model: nn.Module) -> int:
    """Return the size of all weights in bytes; shared ones count once."""
    return sum(parameter.nbytes for parameter in model.parameters())


def perturb_weights(model: nn.Module, seed: int) -> None:
    """Change every trainable weight by one unit in the last place, up or down at random.

    Two trainings that differ by so little can still end in different models (Summers and Dinneen,
    2021, "Nondeterminism and Instability in Neural Network Optimization"). Their difference is the
    scale against which other differences are judged.

    Zeros are not changed: a relative error of zero is zero, and the subnormal numbers next to zero
    are slow on a CPU. Buffers and frozen weights are not changed either, because they are not
    trained. Torch's global generator is not used, so that dropout draws the same masks.

    Args:
        model: Model whose trainable floating-point parameters change in place; tied ones once.
        seed: Seed of a generator on the CPU, so that the change is equal on all processes and
            devices.
    """
    generator = torch.Generator().manual_seed(seed)
    reshard(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                up = torch.randint(2, parameter.shape, generator=generator, dtype=torch.bool)
                weight = local_part(parameter)
                weight.copy_(_neighbour(weight, local_part(sharded_like(up, parameter))))


def _neighbour(weight: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    limit = torch.full_like(weight, math.inf)
    neighbour = torch.nextafter(weight, torch.where(up, limit, -limit))
    # The largest finite numbers have only one finite neighbour.
    return torch.where((weight == 0) | ~neighbour.isfinite(), weight, neighbour)
