"""Whole weights of a model that FSDP2 has sharded over processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor


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


def local_part(tensor: Tensor) -> Tensor:
    """Return the part of a sharded tensor on this process, or the tensor if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part_like(whole: Tensor, tensor: Tensor) -> Tensor:
    """Return the part of `whole` that belongs to `local_part(tensor)`, on the same device.

    Args:
        whole: Tensor of the same shape as `tensor`, equal in all processes.
        tensor: Tensor, sharded or not.
    """
    if not isinstance(tensor, DTensor):
        return whole.to(tensor.device)
    whole = whole.to(tensor.device)
    # With no source rank nothing is communicated.
    return distribute_tensor(
        whole, tensor.device_mesh, tensor.placements, src_data_rank=None
    ).to_local()
