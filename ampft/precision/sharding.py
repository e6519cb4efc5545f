"""FSDP2 as Accelerate configures it, with the numbers of one process, and on CPUs too."""

from __future__ import annotations

import os
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import (
    DistributedType,
    convert_outputs_to_fp32,
    gather_object,
    parse_flag_from_env,
)
from accelerate.utils.modeling import get_mixed_precision_context_manager
from torch import nn

from ampft.errors import InputError
from ampft.precision.resolve import FLAG, Precision

if TYPE_CHECKING:
    from torch.optim import Optimizer

SHARDING_VARIABLE = "ACCELERATE_USE_FSDP"


def is_sharded(accelerator: Accelerator) -> bool:
    """Return whether the weights are sharded over the processes."""
    return bool(accelerator.distributed_type == DistributedType.FSDP)


def sharding_plugin(precision: Precision) -> FullyShardedDataParallelPlugin | None:
    """Return the settings of FSDP from the launcher's environment; None if it is not requested.

    Every process then reads the model itself, because it is checked and hashed before it is
    sharded.

    Raises:
        InputError: A setting, or the precision, is not known to compute what one process does.
    """
    if not parse_flag_from_env(SHARDING_VARIABLE):
        return None
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"  # read by transformers too
    os.environ["FSDP_SYNC_MODULE_STATES"] = "false"  # of version 1; fails without a GPU
    plugin = FullyShardedDataParallelPlugin()
    if plugin.fsdp_version != 2:
        raise InputError(
            f"fsdp_version: received {plugin.fsdp_version}, and only FSDP2 is supported. Set "
            "fsdp_version: 2, as accelerate_configs/fsdp2.yaml does."
        )
    if plugin.activation_checkpointing:
        raise InputError(
            "fsdp_activation_checkpointing: Accelerate recomputes activations with other dropout "
            "masks, so that the gradient would be wrong. Set it to false, and pass "
            "--gradient_checkpointing."
        )
    if parse_flag_from_env("FSDP_OFFLOAD_PARAMS"):
        raise InputError(
            "fsdp_offload_params: received true, which is not supported. Set it to false."
        )
    if precision.properties.stores_16_bits or precision.properties.replaces_layers:
        raise InputError(
            f"{FLAG} {precision.mode}: FSDP supports only modes with float32 weights (fp32, tf32, "
            "bf16, fp16). Choose one of them, or train without FSDP."
        )
    return plugin


def configure_sharding(
    accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin | None
) -> None:
    """Make FSDP gather float32 weights, which autocast then casts as it does in one process.

    Accelerate would gather, compute and sum gradients in 16 bits, norms and embeddings included.
    On CPUs it would not shard.

    Args:
        accelerator: Accelerator that received `plugin`, before `prepare`.
        plugin: Result of `sharding_plugin`.

    Raises:
        InputError: Accelerate was configured to compile.
    """
    if plugin is None or accelerator.num_processes == 1:
        return
    # Whenever Accelerate looks its state up, it copies the type from the process's state.
    PartialState().distributed_type = accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
    plugin.mixed_precision_policy = None
    backend = accelerator.state.dynamo_plugin.backend.value
    if backend != "NO":
        raise InputError(
            f"--dynamo_backend {backend.lower()}: compiling is not supported with FSDP. Launch "
            "with --dynamo_backend no."
        )


def prepare_training_objects(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    gathers_bfloat16: bool = False,
) -> tuple[nn.Module, Any]:
    """Return model and optimizer prepared by Accelerate, with autocast under FSDP too.

    Args:
        accelerator: Accelerator from `make_accelerator`.
        model: Model, which FSDP changes in place.
        optimizer: Optimizer of its parameters.
        gathers_bfloat16: Whether FSDP gathers weights in bfloat16, which is half of the
            communication and changes results: norms, embeddings and what runs between layers are
            then rounded too. Gradients are summed over the processes in float32.
    """
    if is_sharded(accelerator):
        if gathers_bfloat16:
            from torch.distributed.fsdp import MixedPrecisionPolicy

            accelerator.state.fsdp_plugin.mixed_precision_policy = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32
            )
        choose_units(accelerator.state.fsdp_plugin, model)
    model, optimizer = accelerator.prepare(model, optimizer)
    if is_sharded(accelerator) and accelerator.native_amp:
        _add_autocast(accelerator, model)
    return model, optimizer


def check_equal_weights(accelerator: Accelerator, weights_sha256: str) -> None:
    """Check that all processes loaded the same weights; each process keeps only its part.

    Args:
        accelerator: Accelerator of this process.
        weights_sha256: Hash of the loaded weights.

    Raises:
        InputError: They differ.
    """
    hashes = set(gather_object([weights_sha256])) if is_sharded(accelerator) else {weights_sha256}
    if len(hashes) > 1:
        raise InputError(
            f"--model_name_or_path: the processes loaded {len(hashes)} different sets of weights. "
            "Provide the same files on every machine."
        )


def choose_units(plugin: FullyShardedDataParallelPlugin, model: Any) -> None:
    """Shard per layer, as the model names its layers, but no module around the embedding table.

    Accelerate shards the table separately, and torch cannot shard a weight twice.

    Args:
        plugin: Settings of FSDP, whose classes of layers are set unless the user has set them.
        model: Model to be sharded.
    """
    if plugin.transformer_cls_names_to_wrap is not None:
        return
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    names = set(getattr(model, "_no_split_modules", None) or map(_class_name, next(lists, ())))
    table = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    layers = [module for module in model.modules() if _class_name(module) in names]
    around = {_class_name(layer) for layer in layers if table in set(layer.modules())}
    plugin.transformer_cls_names_to_wrap = sorted({*map(_class_name, layers)} - around)


def _class_name(module: nn.Module) -> str:
    return type(module).__name__


def _add_autocast(accelerator: Accelerator, model: Any) -> None:
    """Wrap the forward pass in autocast, as `Accelerator.prepare_model` does without FSDP2."""
    context = get_mixed_precision_context_manager(True, accelerator.autocast_handler)
    model._original_forward = model.forward
    model.forward = MethodType(convert_outputs_to_fp32(context(model.forward.__func__)), model)
