"""The Accelerator of a resolved precision: built, checked, and with FSDP2 where it is requested."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import (
    AORecipeKwargs,
    DistributedType,
    convert_outputs_to_fp32,
    gather_object,
    parse_flag_from_env,
    patch_environment,
)
from accelerate.utils.modeling import get_mixed_precision_context_manager
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ampft.errors import InputError, check_type
from ampft.precision.compilation import configure_compilation
from ampft.precision.extension_points import EMULATION
from ampft.precision.resolve import ENV_VARIABLE, FLAG, Precision, resolve, usable_modes
from ampft.precision.tf32 import apply_float32_policy, float32_policy, verify_float32_policy

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker
    from torch.optim import Optimizer

FP8_VARIABLE = "ACCELERATE_FP8_BACKEND"


def training_device(*, cpu: bool = False) -> torch.device:
    """Return the device of this process, with its index, after joining the process group.

    Nothing else chooses a device: Accelerate's own states have this one from then on.

    Args:
        cpu: Whether to use the CPU even where an accelerator is available, as
            `accelerate launch --cpu` does.

    Raises:
        InputError: A variable of a launcher is not a number, or another one is missing.
    """
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):  # Accelerate reads them as numbers
        if not os.environ.get(name, "0").isdecimal():
            raise InputError(
                f"{name}={os.environ[name]} in the environment: must be a number that a launcher "
                f"has set. Run `unset {name}`, or start with accelerate launch or torchrun."
            )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not os.environ.get("MASTER_ADDR"):
        raise InputError(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']} in the environment: no MASTER_ADDR is set with "
            "it, as a launcher does. Run `unset WORLD_SIZE`, or start with accelerate launch or "
            "torchrun."
        )
    _refuse_deepspeed()
    # Passed explicitly: Accelerate connects several processes on CPUs only when told to use them.
    use_cpu = cpu or parse_flag_from_env("ACCELERATE_USE_CPU")
    state = PartialState(use_cpu or not torch.accelerator.is_available())
    device: torch.device = state.device
    if device.type != "cpu" and device.index is None:
        # Accelerate gives a single process "cuda" without an index, which is unequal to "cuda:0",
        # where its tensors are. All its states share this attribute.
        state.device = device = torch.device(device.type, torch.accelerator.current_device_index())
    return device


def resolved(precision: Precision | str, device: torch.device | str | None = None) -> Precision:
    """Return a precision, which a mode stands for on a device.

    Args:
        precision: Result of `resolve`, or a mode such as "fp16".
        device: Device for a mode; None for the one that Accelerate uses.

    Raises:
        InputError: The device does not support the mode.
    """
    if isinstance(precision, Precision):
        return precision
    return resolve(precision, training_device() if device is None else device, flag="precision")


def make_accelerator(
    precision: Precision | str,
    *,
    gradient_accumulation_steps: int = 1,
    log_with: str | list[str] | list[GeneralTracker] | None = None,
    project_dir: str | Path | None = None,
) -> Accelerator:
    """Build an Accelerator that computes in `precision` and in no other.

    Args:
        precision: Result of `ampft.resolve` for the device of this process, or a mode.
        gradient_accumulation_steps: Micro-batches per optimizer step. The environment variable
            `ACCELERATE_GRADIENT_ACCUMULATION_STEPS` overrides it; read the effective value from
            the Accelerator.
        log_with: Trackers, as Accelerate names them; None for none.
        project_dir: Folder that trackers write to; None for the working directory.

    Returns:
        An Accelerator. In emulated fp16 it has `torch.amp.GradScaler("cpu")` and clips unscaled
        gradients; the products are emulated only inside `numerics(precision)`.

    Raises:
        InputError: Accelerate would compute in another precision, on another device, or in fp8
            with a library other than torchao.
    """
    _refuse_deepspeed()
    precision = resolved(precision)
    options: dict[str, Any] = {
        "gradient_accumulation_steps": gradient_accumulation_steps,
        "log_with": log_with,
        "project_dir": None if project_dir is None else str(project_dir),
        "cpu": precision.device_type == "cpu",
        "fsdp_plugin": sharding_plugin(precision),
        "kwargs_handlers": _fp8_recipe() if precision.properties.replaces_layers else None,
    }
    training_device(cpu=precision.device_type == "cpu")
    with patch_environment(**{ENV_VARIABLE: precision.accelerate_name}):
        try:
            accelerator = Accelerator(mixed_precision=precision.accelerate_name, **options)
        except ValueError as error:
            if "has already been initialized" not in str(error):
                raise
            raise InputError(
                f"{FLAG} {precision.mode}: this process already has an Accelerator with another "
                f"precision or device, and Accelerate allows one per process. Use a separate "
                f"process for each precision."
            ) from error
    # Afterwards, because Accelerate allows TF32 if a compile backend is configured.
    apply_float32_policy(precision)
    _configure_sharding(accelerator, options["fsdp_plugin"])
    configure_compilation(accelerator)
    _check_matches(accelerator, precision)
    if precision.emulates_binary16:
        _add_cpu_scaler(accelerator)
    return accelerator


@contextmanager
def separate_accelerators() -> Iterator[None]:
    """Allow several Accelerators in this process, each with its own precision.

    Accelerate keeps one state per process. Inside this context, `forget_accelerator` makes the next
    Accelerator start with a new state. The previous state is restored on exit.
    """
    previous_state = AcceleratorState._shared_state
    try:
        yield
    finally:
        AcceleratorState._shared_state = previous_state


def forget_accelerator() -> None:
    """Make the next Accelerator start with a new state; existing ones keep theirs."""
    AcceleratorState._shared_state = {}


def _fp8_recipe() -> list[AORecipeKwargs]:
    """Return the settings of torchao, whose layers keep the parameters of those they replace.

    Accelerate's default, `enable_fsdp_float8_all_gather=True`, makes torchao create new parameters,
    which the optimizer does not have.

    Raises:
        InputError: Another library was chosen.
    """
    backend = os.environ.get(FP8_VARIABLE, "").upper()
    if backend not in ("", "NO", "AO"):
        raise InputError(
            f"{FP8_VARIABLE}={backend} (set by accelerate launch --fp8_backend, its config file or "
            "your shell): fp8 is supported only with torchao. Transformer Engine fails for numbers "
            "of tokens that 8 does not divide, and Accelerate no longer runs MS-AMP. Use "
            "--fp8_backend ao, or unset the variable."
        )
    return [AORecipeKwargs(pad_inner_dim=True, enable_fsdp_float8_all_gather=False)]


def _check_matches(accelerator: Accelerator, precision: Precision) -> None:
    if accelerator.mixed_precision != precision.accelerate_name:
        raise InputError(
            f"{FLAG} {precision.mode}: Accelerate chose {accelerator.mixed_precision!r} instead. "
            f"To train in that mode, request it by name."
        )
    if accelerator.device.type != precision.device_type:
        raise InputError(
            f"{FLAG} {precision.mode} was resolved for {precision.device_type}, but Accelerate "
            f"runs on {accelerator.device.type}. Resolve it for `training_device()`."
        )


def _add_cpu_scaler(accelerator: Accelerator) -> None:
    """Add the gradient scaler and autocast that Accelerate omits for fp16 on a CPU.

    Both must be set before `prepare`: with only the scaler, `unscale_gradients` has no effect and
    clipping acts on scaled gradients.
    """
    backend = accelerator.state.dynamo_plugin.backend.value
    if backend != "NO":
        raise InputError(
            f"--dynamo_backend {backend.lower()}: compiled code bypasses the emulation of fp16. "
            f"Launch with --dynamo_backend no, or train in bf16."
        )
    accelerator.native_amp = True
    accelerator.scaler = torch.amp.GradScaler("cpu")


@contextmanager
def numerics(precision: Precision | str) -> Iterator[None]:
    """Return the context for the numerics of a whole run, training and evaluation included.

    Inside, float32 products are exact float32, or TF32 in the mode tf32, and the products of
    an emulated mode are emulated. The previous settings are restored on exit. It does not cast:
    products are in 16 bits where their operands are, as inside `Precision.autocast`.

    Args:
        precision: Result of `ampft.resolve`, or a mode for the device that Accelerate uses.
    """
    precision = resolved(precision)
    with float32_policy(precision):
        if not precision.emulates_products:
            yield
            return
        with EMULATION.require().emulation(precision.compute_dtype):
            yield


def verify_precision_unchanged(accelerator: Accelerator, precision: Precision) -> None:
    """Check, after `Accelerator.prepare`, that the precision is still the requested one.

    Raises:
        InputError: A setting was changed in the meantime.
    """
    _check_matches(accelerator, precision)
    verify_float32_policy(precision, accelerator.device)
    if precision.uses_scaler and accelerator.scaler is None:
        raise InputError(
            f"{FLAG} {precision.mode}: the Accelerator has no gradient scaler, so small gradients "
            f"would become zero. Build it with ampft.make_accelerator."
        )


def _refuse_deepspeed() -> None:
    """Reject DeepSpeed before Accelerate asks for its installation.

    Raises:
        InputError: The launcher or its configuration file chose DeepSpeed.
    """
    if parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        raise InputError(
            "accelerate launch: DeepSpeed is not supported, because its engine updates the "
            "weights within a backward pass, so that steps over several micro-batches are not "
            "known to be exact. Use FSDP2 (--config_file accelerate_configs/fsdp2.yaml), which "
            "shards the model in the same way."
        )


def world_size() -> int:
    """Return the number of processes of the group; 1 without a group."""
    distributed = torch.distributed
    is_group = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if is_group else 1


def check_world_size(accelerator: Accelerator, environ: Mapping[str, str] = os.environ) -> None:
    """Check that all requested processes train together.

    Args:
        accelerator: Any Accelerator of this process.
        environ: Environment variables, in which launchers record the requested processes.

    Raises:
        InputError: The number of processes requested from a launcher differs from the number
            that take part.
    """
    check_type("check_world_size", "accelerator", accelerator, Accelerator)
    world_size = environ.get("WORLD_SIZE", "")
    if world_size.isdigit() and int(world_size) != accelerator.num_processes:
        raise InputError(
            f"WORLD_SIZE={world_size}, but {accelerator.num_processes} process(es) take part in "
            "the training. Start all of them with `torchrun --nproc_per_node N` (on CPUs, add "
            "--use_cpu), or unset WORLD_SIZE."
        )
    # When it starts a single process, Accelerate's launcher sets the address only if several were
    # requested, as by `--cpu --num_processes 2`.
    launched = "ACCELERATE_DYNAMO_MODE" in environ
    if launched and not world_size and "MASTER_ADDR" in environ and accelerator.num_processes == 1:
        raise InputError(
            "accelerate launch was asked for several processes (MASTER_ADDR is set) but started "
            "one, as it does on CPUs. For several processes, use `torchrun --nproc_per_node N`. "
            "For one, use --num_processes 1 and unset MASTER_ADDR."
        )


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
        usable = usable_modes(("bf16", "fp16", "tf32", "fp32"), torch.device(precision.device_type))
        raise InputError(
            f"{FLAG} {precision.mode}: FSDP supports only modes with float32 weights. Use {FLAG} "
            f"{usable}, or train without FSDP."
        )
    return plugin


def _configure_sharding(
    accelerator: Accelerator, plugin: FullyShardedDataParallelPlugin | None
) -> None:
    """Make FSDP gather float32 weights, which autocast then casts as it does in one process.

    Accelerate would gather, compute and sum gradients in 16 bits, norms and embeddings included.
    On CPUs it would not shard. Compilation by Accelerate is refused.
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
    plain: Any = getattr(model, "_orig_mod", model)  # of a compiled model
    if isinstance(plain, DistributedDataParallel) and accelerator.num_processes > 2:
        _settle_order_of_sums(plain)
    if is_sharded(accelerator) and accelerator.native_amp:
        # As `Accelerator.prepare_model` does without FSDP2.
        context = get_mixed_precision_context_manager(True, accelerator.autocast_handler)
        plain._original_forward = plain.forward
        forward = convert_outputs_to_fp32(context(plain.forward.__func__))
        plain.forward = MethodType(forward, plain)
    return model, optimizer


def _settle_order_of_sums(model: DistributedDataParallel) -> None:
    """Let the first step add gradients of several processes in the order of all later ones.

    After its first backward pass, `DistributedDataParallel` arranges gradients anew in the buffers
    that it sums, by the order in which they were ready. From three processes on, the place in a
    buffer decides which processes are added first, so that the first step after a continuation
    would round differently. A backward pass of zeros, in the reverse order of the parameters, which
    hooks of parameters see, lets it arrange them now. It never does if it looks for unused ones.
    """
    if model.find_unused_parameters:
        return
    parameters = [p for p in model.module.parameters() if p.requires_grad]
    model.reducer.prepare_for_backward([])
    views = [parameter.view_as(parameter) for parameter in parameters]  # the last one runs first
    torch.autograd.backward(views, [view.detach().new_zeros(()).expand_as(view) for view in views])
    model.zero_grad(set_to_none=True)
    model.reducer._rebuild_buckets()


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
    named = getattr(model, "_no_split_modules", None)
    names = set(named or [type(module).__name__ for module in next(lists, ())])
    table = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
    layers = [module for module in model.modules() if type(module).__name__ in names]
    around = {type(layer).__name__ for layer in layers if table in set(layer.modules())}
    found = {type(layer).__name__ for layer in layers}
    plugin.transformer_cls_names_to_wrap = sorted(found - around)
