"""One optimizer step: an exact gradient over micro-batches and processes, clipped and applied."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ampft.data.step_batches import MicroBatch, StepBatch, current_pass, pass_of
from ampft.engine.bfloat16_adamw import step_measuring_lost_updates
from ampft.engine.clipping import clip_gradient, scaled_by_update
from ampft.engine.extension_points import JOINT_WEIGHTS
from ampft.engine.optimizer import rate_of, rate_per_unit
from ampft.errors import InputError, TrainingStopped, check_type
from ampft.kinds.extension_points import PACKED_MODELS
from ampft.models.adapters import lora_config
from ampft.models.training_mode import checkpoints_gradients
from ampft.precision.accelerator import is_sharded
from ampft.precision.compilation import configured_backend
from ampft.precision.executed import products_not_recorded
from ampft.precision.resolve import usable_modes
from ampft.precision.transfer import to_device

# GradScaler has no lower limit: at a scale of 0, the next finite loss would turn weights into NaN.
MIN_LOSS_SCALE = 1.0

Losses = list[Tensor]
"""Results of `backward` for the micro-batches of a step."""

Update = Callable[[Tensor], list[Tensor]]
"""Clips the gradient and updates the weights of a step with this loss, without waiting.

Returns scalars on the device: the gradient's norm and, with a scaler, the loss scale before and
after.
"""

_CALLED_BY: ContextVar[Callable[[Update, Tensor], list[Tensor]] | None] = ContextVar(
    "_CALLED_BY", default=None
)


@dataclass(frozen=True)
class StepOutcome:
    """The outcome of an optimizer step."""

    loss: float  # Mean loss over the effective batch, weighted by the examples' weights.
    grad_norm: float  # L2 norm of the unscaled gradient before clipping; not finite if skipped.
    loss_scale: float | None  # Loss scale after the step; None without a scaler.
    # Whether the weights did not change, because the scaler skipped the step, or it was not finite
    # and there is no scaler.
    skipped: bool
    learning_rate: float  # Largest learning rate of a parameter in the step, even if skipped.
    # Share of the weight updates that rounding lost, 0 to 1. None if not measured; it is measured
    # for bfloat16 weights, in every step that `MEASURED_EVERY` divides.
    lost_updates: float | None = None
    votes: tuple[float, ...] = ()  # Sums over all processes of the `votes` of `apply_step`.


class StepStopped(TrainingStopped):
    """Training cannot continue after an optimizer step, whose `outcome` belongs in the history."""

    def __init__(self, message: str, outcome: StepOutcome) -> None:
        super().__init__(message, outcome)  # both, so that it can be copied and pickled
        self.outcome = outcome

    def __str__(self) -> str:
        return str(self.args[0])


@contextmanager
def synchronized_last(
    accelerator: Accelerator, model: nn.Module, micro_batch: MicroBatch
) -> Iterator[None]:
    """Return the context for the forward and backward pass of a micro-batch.

    Gradients are communicated only for the last micro-batch of a step. The context must enclose the
    forward pass too, in which DistributedDataParallel decides about this. A micro-batch that does
    not count adds nothing to the gradient of `model`, whatever its loss is.
    """
    check_type("synchronized_last", "accelerator", accelerator, Accelerator)
    check_type("synchronized_last", "model", model, nn.Module)
    check_type("synchronized_last", "micro_batch", micro_batch, MicroBatch)
    with ExitStack() as stack:
        stack.enter_context(pass_of(micro_batch))
        if not micro_batch.counted:
            stack.enter_context(_only_zeros(p for p in model.parameters() if p.requires_grad))
        if not micro_batch.is_last:
            stack.enter_context(accelerator.no_sync(model))
        yield


@contextmanager
def _only_zeros(leaves: Iterable[Tensor]) -> Iterator[None]:
    """Let a backward pass add zeros to the gradients of tensors, whatever it computes.

    A loss times zero is not enough: zero times an infinite derivative is not a number. The pass
    itself is made, because other processes wait for its communication.
    """
    hooks = [leaf.register_hook(torch.zeros_like) for leaf in leaves]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def leaves_behind(loss: Tensor) -> list[Tensor]:
    """Return the tensors in the graph of a loss to whose gradients a backward pass adds."""
    leaves: list[Tensor] = []
    seen: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):  # the node that accumulates a gradient
            leaves.append(node.variable)
        waiting += [following for following, _ in node.next_functions]
    return leaves


@contextmanager
def shared_autocast_cache(
    accelerator: Accelerator, model: nn.Module, step_batch: StepBatch
) -> Iterator[None]:
    """Return a context in which each weight is cast once for all micro-batches of a step.

    Autocast caches its casts until its outermost context exits. Without this context that is the
    end of the forward pass of a single micro-batch. The context itself does not enable autocast, so
    backward passes do not change, and gradients are still accumulated in the dtype of the weights.
    Exit it before `apply_step`, because forward passes inside it do not see updated weights.

    On one GPU, a model without padding and adapters has `joint_weights`: one operator casts them
    all, also for a single micro-batch.

    Args:
        accelerator: Accelerator that prepared the model. Under FSDP nothing is cached, because the
            casts would be full copies of sharded weights.
        model: Prepared model. With gradient checkpointing nothing is cached.
        step_batch: Step batch. With a single micro-batch nothing is cached by autocast.
    """
    check_type("shared_autocast_cache", "accelerator", accelerator, Accelerator)
    check_type("shared_autocast_cache", "model", model, nn.Module)
    check_type("shared_autocast_cache", "step_batch", step_batch, StepBatch)
    plain = accelerator.unwrap_model(model, keep_torch_compile=False)
    with ExitStack() as stack:
        if not (is_sharded(accelerator) or checkpoints_gradients(plain)):
            if len(step_batch.micro_batches) > 1:
                stack.enter_context(torch.autocast(accelerator.device.type, enabled=False))
            if _uses_joint_weights(accelerator, plain):
                by_mode = {"bf16": torch.bfloat16, "fp16": torch.float16}
                stored: torch.dtype = next(plain.parameters()).dtype
                dtype = by_mode.get(accelerator.mixed_precision, stored)
                stack.enter_context(JOINT_WEIGHTS.require()(plain, dtype))
        yield
        torch.clear_autocast_cache()  # because the weights will change


def _uses_joint_weights(accelerator: Accelerator, plain: nn.Module) -> bool:
    """Return whether one operator casts all weights, which is proven for models without padding."""
    if accelerator.device.type != "cuda" or "transformers" not in sys.modules:
        return False
    packing = PACKED_MODELS.get()  # it imports transformers, which such a model needs anyway
    is_alone = accelerator.num_processes == 1 and configured_backend(accelerator) is None
    # Adapters read the dtype of their weights, and cast their inputs to it.
    is_whole = packing is not None and packing.is_packed(plain) and lora_config(plain) is None
    return is_alone and is_whole


def backward(accelerator: Accelerator, loss: Tensor) -> Tensor:
    """Add the exact gradient of this process's part of the loss.

    DistributedDataParallel averages over processes, and `Accelerator.backward` divides by the
    accumulation steps. The loss is multiplied by both numbers to compensate. They are read from the
    Accelerator, because the environment can override its arguments.

    A process that has fewer examples than others computes a dummy in their place, which is not
    `counted`. Its loss and its gradient are zero here, whatever the loss function returned.

    Args:
        accelerator: Accelerator that prepared the model.
        loss: Summed loss of the micro-batch, divided by the weight of the whole effective batch.

    Returns:
        `loss`, detached, for `apply_step`; 0 for a dummy.

    Raises:
        InputError: In several processes, it is not known of which micro-batch the loss is.
    """
    check_type("backward", "accelerator", accelerator, Accelerator)
    check_type("backward", "loss", loss, Tensor)
    current = current_pass()
    micro_batch = None if current is None else current.micro_batch
    if micro_batch is None and accelerator.num_processes > 1:
        raise InputError(
            "backward: in several processes, it must be known whether the examples of a loss "
            "count, because a process without examples computes a dummy. Call it inside `with "
            "ampft.synchronized_last(accelerator, model, micro_batch):`, or in a loop over the "
            "step batch that uses each micro-batch before it takes the next."
        )
    if current is not None:
        current.has_run = True
    if micro_batch is not None and not micro_batch.counted:
        with _only_zeros(leaves_behind(loss)):
            _backward(accelerator, loss * 0.0)
        return torch.zeros_like(loss).detach()
    _backward(accelerator, loss)
    return loss.detach()


def _backward(accelerator: Accelerator, loss: Tensor) -> None:
    factor = accelerator.num_processes * accelerator.gradient_accumulation_steps
    try:
        accelerator.backward(loss * factor)
    except RuntimeError:
        # Otherwise a reference of the caller would keep the graph of the failed pass in memory.
        loss.detach_()
        raise


def accumulate_gradient(
    accelerator: Accelerator,
    model: nn.Module,
    loss: Callable[[nn.Module, MicroBatch], Tensor],
    step_batch: StepBatch,
) -> Losses:
    """Accumulate the gradient of a step batch over its micro-batches.

    Args:
        accelerator: Accelerator that prepared the model.
        model: Prepared model, whose gradients are empty.
        loss: Function that returns the loss of a micro-batch, summed over its examples, such as
            `Task.loss`. What it returns for a micro-batch that is not `counted` does not matter.
        step_batch: This process's part of the optimizer step.

    Returns:
        The results of `backward` for the micro-batches.

    Raises:
        InputError: The loss is not one number in float32.
    """
    check_type("accumulate_gradient", "accelerator", accelerator, Accelerator)
    check_type("accumulate_gradient", "model", model, nn.Module)
    check_type("accumulate_gradient", "step_batch", step_batch, StepBatch)
    losses = []
    for micro_batch in step_batch:
        with synchronized_last(accelerator, model, micro_batch):
            total = summed_loss(loss(model, micro_batch))
            losses.append(backward(accelerator, total / step_batch.effective_weight))
    return losses


def summed_loss(value: Any) -> Tensor:
    """Return what a loss function returned, as a scalar.

    Raises:
        InputError: It is not one number in float32.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(
            f"loss: it returned {shape}. Return the sum over the examples of the batch, one number "
            "in a tensor. In ampft.Training, a tuple of this sum and its weight is possible, too."
        )
    if not value.is_floating_point() or (torch.is_grad_enabled() and not value.requires_grad):
        raise InputError(
            f"loss: it returned a tensor of {value.dtype} without a gradient. Return a loss that is"
            " computed from the output of the model, without .detach(), .item() or torch.no_grad();"
            " for a batch that should not count, 0 times its loss."
        )
    if value.dtype.itemsize < torch.float32.itemsize:
        raise InputError(
            f"loss: it was summed in {value.dtype}, which loses digits. Convert the model's output "
            "with .float() before the sum."
        )
    return value.reshape(())


def apply_step(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Any,
    schedule: Any,
    *,
    losses: Sequence[Tensor],
    max_grad_norm: float | None,
    skip_nonfinite: bool = False,
    votes: Sequence[float] = (),
) -> StepOutcome:
    """Clip the unscaled gradient, step, and advance the schedule unless the step was skipped.

    The clipped gradients remain until `optimizer.zero_grad()`.

    A step was skipped if it lowered the loss scale. `optimizer.step_was_skipped` is not used,
    because it is never true for fused optimizers (accelerate#4242).

    Args:
        accelerator: Accelerator that prepared `model` and `optimizer`.
        model: Model with the gradient of the whole effective batch.
        optimizer: Prepared optimizer.
        schedule: Schedule that is not prepared; a prepared one would step once per process. None if
            the loop sets the learning rate, which is then only read.
        losses: Results of `backward` for the micro-batches of this process.
        max_grad_norm: L2 norm to clip the gradient to; None for no clipping.
        skip_nonfinite: Whether a step whose loss or gradient is not finite is skipped if there is
            no scaler, which would skip it anyway.
        votes: Numbers that are summed over all processes, together with the loss, so that they need
            no communication and no wait for the device of their own.

    Raises:
        StepStopped: The loss or the gradient is not finite, and the step is not skipped (raised
            before the weights change), or it still overflows at a scale of `MIN_LOSS_SCALE`.
    """
    check_type("apply_step", "accelerator", accelerator, Accelerator)
    check_type("apply_step", "model", model, nn.Module)
    limit = math.inf if max_grad_norm is None else max_grad_norm
    scaler, plain = accelerator.scaler, getattr(optimizer, "optimizer", optimizer)
    learning_rate = max(rate_per_unit(group, rate_of(group)) for group in plain.param_groups)
    # Without a scaler, nothing but a fused optimizer prevents an update with a bad gradient.
    reads_first = scaler is None and not getattr(plain, "_step_supports_amp_scaling", False)
    lost: float | None = None

    def update(loss: Tensor) -> list[Tensor]:
        nonlocal lost
        norm, divisor = clip_gradient(accelerator, model.parameters(), limit, plain)
        if reads_first:
            return [norm]
        if scaler is None:
            with _skipped_on_device(plain, loss, norm), scaled_by_update(plain, divisor):
                lost = _update(optimizer, schedule)
            return [norm]
        _let_scaler_see(loss, scaler)
        before = scaler._scale.clone()  # on the device, to be read once with the rest
        lost = _update(optimizer, schedule)
        return [norm, before, scaler._scale]

    loss, *counts = _reduced(accelerator, torch.stack(list(losses)).sum(), votes)
    call = _CALLED_BY.get()
    norm, *scales = update(loss) if call is None else call(update, loss)
    mean_loss, grad_norm, *rest = _read(loss, norm, *scales, *counts)
    scale = rest[1] if scales else None
    is_finite = math.isfinite(grad_norm) and math.isfinite(mean_loss)
    skipped = not is_finite if scale is None else scale < rest[0]
    outcome = StepOutcome(
        mean_loss, grad_norm, scale, skipped, learning_rate, votes=tuple(rest[len(scales) :])
    )
    if skipped:
        if scale is not None and scale < MIN_LOSS_SCALE:
            raise StepStopped(_overflows_at_every_scale(grad_norm, accelerator.device), outcome)
        if scale is None and not skip_nonfinite:
            raise StepStopped(_not_finite(mean_loss, grad_norm), outcome)
        return outcome
    if reads_first:
        lost = _update(optimizer, schedule)
    if schedule is not None:
        schedule.step()
    return replace(outcome, lost_updates=lost)


@contextmanager
def replace_update_call(call: Callable[[Update, Tensor], list[Tensor]] | None) -> Iterator[None]:
    """Let `apply_step` pass its update and the loss to a function, inside this context.

    Args:
        call: Function that calls the update, or has the same effect. None calls the update itself.
    """
    token = _CALLED_BY.set(call)
    try:
        yield
    finally:
        _CALLED_BY.reset(token)


def _reduced(accelerator: Accelerator, loss: Tensor, votes: Sequence[float]) -> Sequence[Tensor]:
    """Return the sums of the loss and of the votes over all processes, from one reduction."""
    if not votes:
        return [accelerator.reduce(loss, reduction="sum")]
    local = torch.tensor(votes, dtype=loss.dtype)
    local = local.pin_memory() if loss.device.type == "cuda" else local
    together = torch.cat([loss[None], to_device(local, loss.device)])
    return accelerator.reduce(together, reduction="sum").unbind()


def _update(optimizer: Any, schedule: Any) -> float | None:
    """Apply the step, and return the share of the updates that rounding lost, if measured."""
    with products_not_recorded():
        # Without a schedule, nothing counts the applied steps, of which some are measured.
        number = 1 if schedule is None else schedule.last_epoch + 1
        return step_measuring_lost_updates(optimizer, step=number)


@contextmanager
def _skipped_on_device(optimizer: Any, loss: Tensor, norm: Tensor) -> Iterator[None]:
    """Make a fused optimizer skip a step whose loss or gradient is not finite, as a scaler does.

    Nothing is then read from the device before the update, so that the host does not wait.
    """
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    optimizer.found_inf = (~(torch.isfinite(loss) & torch.isfinite(norm))).float()
    try:
        yield
    finally:
        del optimizer.found_inf


def _let_scaler_see(loss: Tensor, scaler: Any) -> None:
    """Make the scaler skip a step whose loss is not finite, although its gradient may be.

    A logit of minus infinity for the correct class gives an infinite loss with a finite gradient.
    """
    for state in scaler._per_optimizer_states.values():
        for flag in state["found_inf_per_device"].values():
            # At most 1, because fused optimizers skip a step only if it is exactly 1.
            flag.add_(~torch.isfinite(loss.to(flag.device))).clamp_(max=1)


def _read(*scalars: Any) -> list[float]:
    """Return the values of scalars, with a single copy from the device."""
    full = [s.full_tensor() if hasattr(s, "full_tensor") else s for s in scalars]  # FSDP's norm
    return torch.stack([s.detach().float().reshape(()) for s in full]).tolist()


def _not_finite(loss: float, grad_norm: float) -> str:
    name = "loss" if math.isfinite(grad_norm) else "gradient"
    return (
        f"the {name} is not finite (loss {loss}, norm {grad_norm}), so this step was not "
        "applied. Lower --learning_rate, or add --warmup_ratio or --max_grad_norm 1. history.jsonl "
        "shows whether loss and norm grew in earlier steps. If the mode is bf16, train with "
        "--mixed_precision fp32 to find out whether rounding is the cause."
    )


def _overflows_at_every_scale(grad_norm: float, device: torch.device) -> str:
    return (
        f"fp16 overflows at every loss scale down to {MIN_LOSS_SCALE:g} (gradient norm "
        f"{grad_norm}): an activation exceeds 65504, which no loss scale can prevent. This is "
        "common with models that were trained in bf16 (T5, DeBERTa-v3). Use --mixed_precision "
        f"{usable_modes(('bf16', 'fp32'), device)}."
    )


@dataclass(frozen=True)
class ScaledGradient:
    """What a forward and a backward pass computed."""

    loss: float  # The loss.
    gradient: Mapping[str, Tensor]  # Gradient of each parameter by name, without the loss scale.
    scale: float = 1.0  # Loss scale.
    # First floating tensor that the model returned, float32; None if it was not kept.
    output: Tensor | None = None

    @property
    def is_finite(self) -> bool:
        """Whether the loss and the whole gradient are finite."""
        parts = self.gradient.values()
        return math.isfinite(self.loss) and all(bool(part.isfinite().all()) for part in parts)


def descending_loss_scales(initial: float | None, *, factor: float = 2.0) -> tuple[float, ...]:
    """Return the loss scales that a training tries, the initial one first.

    Args:
        initial: Scale at which a scaler starts; None without a scaler, whose only scale is 1.
        factor: Ratio of successive scales.
    """
    scales = [1.0 if initial is None else initial]
    while scales[-1] / factor >= MIN_LOSS_SCALE:
        scales.append(scales[-1] / factor)
    return tuple(scales)


def first_finite_gradient(
    compute: Callable[[float], ScaledGradient], scales: Iterable[float]
) -> ScaledGradient:
    """Return the first finite gradient; the last one computed if none is finite.

    A loss that is not finite is so at every scale, so no further scale is tried.

    Args:
        compute: Function that computes the gradient at a loss scale.
        scales: Loss scales, of which there is at least one, in the order in which they are tried.
    """
    for scale in scales:
        result = compute(scale)
        if result.is_finite or not math.isfinite(result.loss):
            break
    return result
