"""The Accelerator for a resolved precision, checked to be what was asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, parse_flag_from_env, patch_environment

from ampft.errors import InputError
from ampft.precision.resolve import FLAG, VARIABLE, Precision
from ampft.precision.tf32 import apply_float32_policy, float32_policy, verify_float32_policy

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker


def training_device(*, cpu: bool = False) -> torch.device:
    """Return the device that Accelerate gives this process; joins the process group.

    Args:
        cpu: Leave accelerators alone. `accelerate launch --cpu` means the same.
    """
    # Said outright, because Accelerate joins several processes on CPUs only when it is told.
    told = cpu or parse_flag_from_env("ACCELERATE_USE_CPU")
    device: torch.device = PartialState(told or not torch.accelerator.is_available()).device
    return device


def make_accelerator(
    precision: Precision,
    *,
    gradient_accumulation_steps: int = 1,
    log_with: str | list[str] | list[GeneralTracker] | None = None,
    project_dir: str | Path | None = None,
) -> Accelerator:
    """Build the Accelerator that computes in `precision`, and in nothing else.

    Args:
        precision: From `ampft.precision.resolve.resolve`, for the device of this process.
        gradient_accumulation_steps: Micro-batches per optimizer step. The environment
            (`ACCELERATE_GRADIENT_ACCUMULATION_STEPS`) overrides it: read the number that holds
            from the Accelerator.
        log_with: Trackers, as Accelerate names them; None for none.
        project_dir: Where trackers write; None for the working directory.

    Returns:
        An Accelerator. In emulated fp16 it has `torch.amp.GradScaler("cpu")` and clips unscaled
        gradients; the products are emulated inside `numerics(precision)` alone.

    Raises:
        InputError: Accelerate would compute in another precision or on another device.
    """
    apply_float32_policy(precision)
    options: dict[str, Any] = {
        "gradient_accumulation_steps": gradient_accumulation_steps,
        "log_with": log_with,
        "project_dir": None if project_dir is None else str(project_dir),
        "cpu": precision.device_type == "cpu",
    }
    # DeepSpeed's plugin reads the variable and not the argument.
    with patch_environment(**{VARIABLE: precision.accelerate_name}):
        try:
            accelerator = Accelerator(mixed_precision=precision.accelerate_name, **options)
        except ValueError as error:
            if "has already been initialized" not in str(error):
                raise
            raise InputError(
                f"{FLAG} {precision.mode}: this process already has an Accelerator in another "
                f"precision or on another device, and Accelerate keeps one per process. Use a "
                f"process for each precision."
            ) from error
    _refuse_deepspeed(accelerator)
    _check_same(accelerator, precision)
    if precision.emulates_binary16:
        _scale_on_cpu(accelerator)
    return accelerator


@contextmanager
def separate_accelerators() -> Iterator[None]:
    """Let this process have several Accelerators, each in a precision of its own.

    Accelerate keeps one state per process. Inside, `forget_accelerator` makes the next Accelerator
    start with a state of its own; the earlier state is back afterwards.
    """
    before = AcceleratorState._shared_state
    try:
        yield
    finally:
        AcceleratorState._shared_state = before


def forget_accelerator() -> None:
    """Give the next Accelerator a state of its own; earlier ones hold on to theirs."""
    AcceleratorState._shared_state = {}


def _refuse_deepspeed(accelerator: Accelerator) -> None:
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        raise InputError(
            "accelerate launch was asked for DeepSpeed, whose engine steps within each backward "
            "pass: an exact step over micro-batches is not proven for it. Use FSDP2 "
            "(accelerate_configs/fsdp2.yaml), which shards the same."
        )


def _check_same(accelerator: Accelerator, precision: Precision) -> None:
    if accelerator.mixed_precision != precision.accelerate_name:
        raise InputError(
            f"{FLAG} {precision.mode}: Accelerate chose {accelerator.mixed_precision!r} in its "
            f"place. Ask for that mode by name if it is what you want."
        )
    if accelerator.device.type != precision.device_type:
        raise InputError(
            f"{FLAG} {precision.mode} was resolved for {precision.device_type}, but Accelerate "
            f"runs on {accelerator.device.type}. Resolve it for `training_device()`."
        )


def _scale_on_cpu(accelerator: Accelerator) -> None:
    """Give Accelerate the scaler and the autocast that it leaves out for fp16 on a CPU.

    Both, and before `prepare`: with the scaler alone `unscale_gradients` has no effect, and
    clipping acts on scaled gradients.
    """
    backend = accelerator.state.dynamo_plugin.backend.value
    if backend != "NO":
        raise InputError(
            f"--dynamo_backend {backend.lower()}: compiled code bypasses emulated fp16. Launch "
            f"with --dynamo_backend no, or train in bf16."
        )
    accelerator.native_amp = True
    accelerator.scaler = torch.amp.GradScaler("cpu")


def refuse_compiled_packing(accelerator: Accelerator) -> None:
    """Refuse to compile a model that runs without padding: its dropout masks cannot be compiled.

    Raises:
        InputError: Accelerate was asked to compile.
    """
    backend = accelerator.state.dynamo_plugin.backend.value
    if backend != "NO":
        raise InputError(
            f"--dynamo_backend {backend.lower()}: compiled code cannot run without padding, which "
            f"saves more. Launch with --dynamo_backend no, or compile the padded model: --padding."
        )


@contextmanager
def numerics(precision: Precision) -> Iterator[None]:
    """Compute the whole run, training and evaluation, with the products of a precision.

    float32 products are exact float32, or TF32 in the mode tf32; and binary16 products are emulated
    where the hardware has none. All settings are back afterwards.
    """
    with float32_policy(precision):
        if not precision.emulates_binary16:
            yield
            return
        from ampft.precision.emulation import Binary16Emulation

        with Binary16Emulation():
            yield


def verify_prepared(accelerator: Accelerator, precision: Precision) -> None:
    """Check, after `Accelerator.prepare`, that the precision is still the one asked for.

    Raises:
        InputError: A setting was changed on the way.
    """
    _check_same(accelerator, precision)
    verify_float32_policy(precision, accelerator.device)
    if precision.uses_scaler and accelerator.scaler is None:
        raise InputError(
            f"{FLAG} {precision.mode}: the Accelerator has no gradient scaler, so small gradients "
            f"would become zero. Build it with ampft.make_accelerator."
        )


def check_world_size(accelerator: Accelerator, environ: Mapping[str, str] = os.environ) -> None:
    """Check that as many processes train together as were started.

    Args:
        accelerator: Any Accelerator of this process.
        environ: The environment, where launchers write what they were asked for.

    Raises:
        InputError: A launcher was asked for more processes than take part.
    """
    stated = environ.get("WORLD_SIZE", "")
    if stated.isdigit() and int(stated) != accelerator.num_processes:
        raise InputError(
            f"WORLD_SIZE={stated}, but {accelerator.num_processes} process(es) take part in the "
            "training. Start all with `torchrun --nproc_per_node N`, on CPUs with --use_cpu, or "
            "unset WORLD_SIZE."
        )
    # Accelerate's launcher for a single process sets the address exactly when it was asked for
    # several, as `--cpu --num_processes 2` does; it starts one all the same.
    by_launcher = "ACCELERATE_DYNAMO_MODE" in environ
    if by_launcher and not stated and "MASTER_ADDR" in environ and accelerator.num_processes == 1:
        raise InputError(
            "accelerate launch was asked for several processes (MASTER_ADDR is set) and started "
            "one: on CPUs it does. Use `torchrun --nproc_per_node N` for several, or "
            "--num_processes 1 and unset MASTER_ADDR for one."
        )
