"""Whole weights of a model that FSDP2 has sharded over processes."""

from __future__ import annotations

from collections.abc import Mapping
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

if TYPE_CHECKING:
    from accelerate import Accelerator


def whole_weights(model: nn.Module) -> dict[str, Tensor] | None:
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


def whole_state(accelerator: Accelerator, model: nn.Module) -> Mapping[str, Tensor]:
    """Return the state of a prepared model, with the names of the model as it was loaded.

    All processes must call it. Of a sharded model, only the main process gets the weights.

    Args:
        accelerator: Accelerator that prepared the model.
        model: Model, prepared by Accelerate: in several processes, compiled or sharded.
    """
    state = whole_weights(model)
    if state is not None:
        return state
    # Accelerate's `get_state_dict` would take a compiled model out of its DistributedDataParallel.
    plain: nn.Module = accelerator.unwrap_model(model, keep_torch_compile=False)
    return plain.state_dict()


def load_whole_weights(model: nn.Module, state: Mapping[str, Tensor]) -> None:
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


def local_part(tensor: Tensor) -> Tensor:
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


def whole_on_main(tensor: Tensor) -> Tensor:
    """Return a sharded tensor as a whole one on the CPU; others are returned as they are.

    All processes must call it. Except on the main process, the result is empty.
    """
    if not isinstance(tensor, DTensor):
        return tensor
    whole = tensor.full_tensor()
    return whole.cpu() if get_rank() == 0 else whole.new_empty(0)


def class_name(model: nn.Module) -> str:
    """Return the name of a model's class, which FSDP changes."""
    return type(model).__name__.removeprefix("FSDP")
