"""Model weights: their storage dtype and hash, a perturbation, and whole ones of sharded models."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.distributed import get_rank
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from ampft.errors import check_type
from ampft.precision.resolve import Precision

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to be trained."""

    model: nn.Module  # Model, whose trainable weights are float32 until `cast_weights` is called.
    name: str  # Name that is displayed and recorded: a hub id, a folder, or a description.
    padding_free: bool  # Whether its encoder runs only on real tokens.
    notes: tuple[str, ...]  # Sentences to print, such as the reason for a new head.
    # `weights_hash` of the float32 weights; empty until `cast_weights` is called.
    float32_sha256: str = ""
    # Hash of the float32 weights to which adapters were added; empty without any.
    base_sha256: str = ""
    is_random: bool = False  # Whether no weight is pretrained.
    begins_at_probe: bool = False  # Whether the head begins at a probe unless the user says how.
    # Weights and biases of the regression that the head began at, in full size; None without any.
    probe: tuple[Tensor, Tensor] | None = None


def cast_weights(loaded: LoadedModel, precision: Precision) -> LoadedModel:
    """Cast the weights of a float32 model to the storage dtype of `precision`, in place.

    Call it before creating the optimizer. The hash of the float32 weights is kept, as evidence that
    runs in different modes started from the same weights.

    Args:
        loaded: Result of `Task.load_model`.
        precision: Precision of the run; modes with float32 weights do not change the model.
    """
    check_type("cast_weights", "loaded", loaded, LoadedModel)
    check_type("cast_weights", "precision", precision, Precision)
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
    check_type("perturb_weights", "model", model, nn.Module)
    check_type("perturb_weights", "seed", seed, int)
    generator = torch.Generator().manual_seed(seed)
    reshard(model)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                up = torch.randint(2, parameter.shape, generator=generator, dtype=torch.bool)
                weight = local_shard(parameter)
                weight.copy_(_neighbour(weight, local_shard(sharded_like(up, parameter))))


def _neighbour(weight: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    limit = torch.full_like(weight, math.inf)
    neighbour = torch.nextafter(weight, torch.where(up, limit, -limit))
    # The largest finite numbers have only one finite neighbour.
    return torch.where((weight == 0) | ~neighbour.isfinite(), weight, neighbour)


def gather_sharded_weights(model: nn.Module) -> dict[str, Tensor] | None:
    """Return the state of a sharded model, gathered on the main process; None if not sharded.

    All processes must call it. On the others the result is empty.

    Args:
        model: Model, prepared by Accelerate.
    """
    if not isinstance(model, FSDPModule):
        return None
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    # The values are tensors: modules with other state are not part of transformers.
    return cast("dict[str, Tensor]", get_model_state_dict(model, options=options))


def gather_model_state(accelerator: Accelerator, model: nn.Module) -> Mapping[str, Tensor]:
    """Return the state of a prepared model, with the names of the model as it was loaded.

    All processes must call it. Of a sharded model, only the main process gets the weights.

    Args:
        accelerator: Accelerator that prepared the model.
        model: Model, prepared by Accelerate: in several processes, compiled or sharded.
    """
    state = gather_sharded_weights(model)
    if state is not None:
        return state
    # Accelerate's `get_state_dict` would take a compiled model out of its DistributedDataParallel.
    plain: nn.Module = accelerator.unwrap_model(model, keep_torch_compile=False)
    return plain.state_dict()


def load_into_sharded_model(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state into a sharded model. All processes must call it.

    Args:
        model: Sharded model.
        state: Whole tensors on the main process; the other processes receive their part from it.
    """
    reshard(model)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_model_state_dict(model, dict(state), options=options)


def reshard(model: nn.Module) -> None:
    """Make the parameters of a model the sharded ones; without FSDP it has no effect.

    Some stay gathered after a forward pass, in copies whose changes would be lost.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def has_shards(model: nn.Module) -> bool:
    """Return whether parameters of `model` are sharded over the processes."""
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def local_shard(tensor: Tensor) -> Tensor:
    """Return the part of a sharded tensor on this process, or the tensor if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def sharded_like(whole: Tensor, tensor: Tensor) -> Tensor:
    """Return a copy of `whole` on the device of `tensor`, with the same layout or sharding.

    The processes do not communicate.

    Args:
        whole: Tensor of the same shape, equal in all processes.
        tensor: Tensor, sharded or not.
    """
    if not isinstance(tensor, DTensor):
        # Fused optimizers walk through the memory of a weight and its state side by side.
        return torch.empty_like(tensor, dtype=whole.dtype, requires_grad=False).copy_(whole)
    whole = whole.to(tensor.device, copy=True)
    return distribute_tensor(whole, tensor.device_mesh, tensor.placements, src_data_rank=None)


def gather_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return sharded tensors as whole ones on the CPU; others are returned as they are.

    All processes must call it. Except on the main process, sharded tensors become empty.
    """
    return {name: _gathered(tensor) for name, tensor in tensors.items()}


def _gathered(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return tensor
    whole = tensor.full_tensor()
    return whole.cpu() if get_rank() == 0 else whole.new_empty(0)


def class_name(model: nn.Module) -> str:
    """Return the name of a model's class, which FSDP changes."""
    return type(model).__name__.removeprefix("FSDP")
