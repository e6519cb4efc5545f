"""One optimizer step: exact over micro-batches and processes, clipped, and honest when skipped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn

from ampft.data.steps import MicroBatch, StepBatch
from ampft.errors import TrainingStopped
from ampft.training.lost_updates import step_measuring_lost_updates

if TYPE_CHECKING:
    from accelerate import Accelerator

# GradScaler has no floor of its own: at 0 the next finite loss would write NaN into the weights.
MIN_LOSS_SCALE = 1.0

Losses = list[Tensor]
"""What `backward` returned for each micro-batch of a step."""


@dataclass(frozen=True)
class StepOutcome:
    """What an optimizer step did.

    Attributes:
        loss: Mean loss over the effective batch, by the examples' weights.
        grad_norm: L2 norm of the unscaled gradient before clipping; not finite when skipped.
        loss_scale: Scale of the loss after the step; None where no scaler runs.
        skipped: Whether the weights stayed as they were: the scaler kept them, or the run stopped.
        learning_rate: The rate that the step used, or would have used.
        lost_updates: Share of the weight updates that rounding lost, 0 to 1; None where it was not
            measured, as everywhere but in steps of `MEASURED_EVERY` with bfloat16 weights.
    """

    loss: float
    grad_norm: float
    loss_scale: float | None
    skipped: bool
    learning_rate: float
    lost_updates: float | None = None


class StepStopped(TrainingStopped):
    """Training cannot go on after an optimizer step, whose `outcome` belongs in the history."""

    def __init__(self, message: str, outcome: StepOutcome) -> None:
        super().__init__(message)
        self.outcome = outcome


def synchronized_last(
    accelerator: Accelerator, model: nn.Module, micro_batch: MicroBatch
) -> AbstractContextManager[None]:
    """Return a context in which gradients are communicated for the last micro-batch alone.

    It has to enclose the forward pass too: DistributedDataParallel decides there.
    """
    context: AbstractContextManager[None] = (
        nullcontext() if micro_batch.is_last else accelerator.no_sync(model)
    )
    return context


def shared_autocast_cache(
    accelerator: Accelerator, model: nn.Module, step_batch: StepBatch
) -> AbstractContextManager[object]:
    """Return a context in which autocast casts a weight once for all micro-batches of a step.

    Autocast keeps what it casts until its outermost context is left, which without this one is the
    forward pass of a single micro-batch. The context itself casts nothing, so that backward passes
    compute as they would without it; gradients of the casts still add up in the weights' own dtype.
    Leave it before `apply_step`: a forward pass inside it takes the weights of its beginning.

    Args:
        accelerator: The one that prepared the model. Under FSDP nothing is kept: it would be whole
            copies of weights that are sharded.
        model: Prepared. While it computes activations again to save memory, nothing is kept.
        step_batch: With a single micro-batch there is nothing to be gained.
    """
    if len(step_batch.micro_batches) == 1 or accelerator.distributed_type == DistributedType.FSDP:
        return nullcontext()
    if _computes_activations_again(accelerator.unwrap_model(model, keep_torch_compile=False)):
        return nullcontext()
    return torch.autocast(accelerator.device.type, enabled=False)


def _computes_activations_again(model: nn.Module) -> bool:
    renamed = getattr(model, "is_activation_checkpointing", None)  # by transformers 5.23
    return bool(getattr(model, "is_gradient_checkpointing", False) if renamed is None else renamed)


def backward(accelerator: Accelerator, loss: Tensor) -> Tensor:
    """Add the gradient of this process's part of the loss, exactly.

    DistributedDataParallel takes the mean over processes and `Accelerator.backward` divides by
    the accumulation steps, so both are multiplied back, with the values that hold at run time:
    the environment can override the argument.

    Args:
        accelerator: The one that prepared the model.
        loss: Sum over the micro-batch divided by the weight of the whole effective batch.

    Returns:
        `loss`, detached, for `apply_step`.
    """
    factor = accelerator.num_processes * accelerator.gradient_accumulation_steps
    try:
        accelerator.backward(loss * factor)
    except RuntimeError:
        # A variable of the caller would keep what a pass that failed has not freed.
        loss.detach_()
        raise
    return loss.detach()


def accumulate_gradient(
    accelerator: Accelerator,
    model: nn.Module,
    loss: Callable[[nn.Module, MicroBatch], Tensor],
    step_batch: StepBatch,
) -> Losses:
    """Add up the gradient of a step batch over its micro-batches.

    Args:
        accelerator: The one that prepared the model.
        model: Prepared. Its gradients are empty.
        loss: Gives the loss summed over a micro-batch, such as `Task.loss`.
        step_batch: Part of the optimizer step on this process.

    Returns:
        What `backward` returned for each micro-batch.
    """
    losses = []
    for micro_batch in step_batch:
        with synchronized_last(accelerator, model, micro_batch):
            part = loss(model, micro_batch) / step_batch.effective_weight
            losses.append(backward(accelerator, part))
    return losses


def apply_step(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: Any,
    schedule: Any,
    *,
    losses: Sequence[Tensor],
    max_grad_norm: float | None,
) -> StepOutcome:
    """Clip after unscaling, step, and advance the schedule unless the step was skipped.

    The gradients stay, clipped, until `optimizer.zero_grad()`.

    A step was skipped when the scale went down: `optimizer.step_was_skipped` never turns true for
    fused optimizers (accelerate#4242).

    Args:
        accelerator: The one that prepared `model` and `optimizer`.
        model: Its gradients are those of the whole effective batch.
        optimizer: Prepared.
        schedule: Not prepared: a prepared one steps once per process.
        losses: What `backward` returned for the micro-batches of this process.
        max_grad_norm: L2 norm to clip to; None clips nothing.

    Raises:
        StepStopped: A gradient is not finite and no scaler can skip the step (raised before
            the weights change), or the scale fell to `MIN_LOSS_SCALE` and still overflows.
    """
    learning_rate = float(schedule.get_last_lr()[0])
    limit = math.inf if max_grad_norm is None else max_grad_norm
    norm = accelerator.clip_grad_norm_(model.parameters(), limit)
    loss = accelerator.reduce(torch.stack(list(losses)).sum(), reduction="sum")
    if accelerator.scaler is None:
        # Nothing else would keep a bad gradient from the weights, so it is read before the step.
        mean_loss, grad_norm = _read(loss, norm)
        if not math.isfinite(grad_norm):
            outcome = StepOutcome(mean_loss, grad_norm, None, True, learning_rate)
            raise StepStopped(_not_finite(mean_loss, grad_norm), outcome)
        lost = step_measuring_lost_updates(optimizer, step=schedule.last_epoch + 1)
        scale, skipped = None, False
    else:
        lost = None
        before = accelerator.scaler._scale.clone()  # on the device: read with the rest, once
        optimizer.step()
        after = accelerator.scaler._scale
        mean_loss, grad_norm, old_scale, scale = _read(loss, norm, before, after)
        skipped = scale < old_scale
        if skipped and scale < MIN_LOSS_SCALE:
            outcome = StepOutcome(mean_loss, grad_norm, scale, True, learning_rate)
            raise StepStopped(_overflows_at_every_scale(grad_norm), outcome)
    if not skipped:
        schedule.step()
    return StepOutcome(mean_loss, grad_norm, scale, skipped, learning_rate, lost)


def _read(*scalars: Any) -> list[float]:
    """Copy scalars from the device, all in one go."""
    whole = [s.full_tensor() if hasattr(s, "full_tensor") else s for s in scalars]  # FSDP's norm
    values: list[float] = torch.stack([s.detach().float().reshape(()) for s in whole]).tolist()
    return values


def _not_finite(loss: float, grad_norm: float) -> str:
    return (
        f"the gradient is not finite (loss {loss}, norm {grad_norm}); the weights are as they were "
        "before this step. Lower --learning_rate, or add --warmup_ratio or --max_grad_norm 1; "
        "history.jsonl shows whether loss and norm grew in the steps before. In bf16, try "
        "--mixed_precision fp32 to tell rounding from divergence."
    )


def _overflows_at_every_scale(grad_norm: float) -> str:
    return (
        f"fp16 overflows at every loss scale down to {MIN_LOSS_SCALE:g} (gradient norm "
        f"{grad_norm}): an activation exceeds 65504, which no scale of the loss can cure. Models "
        "trained in bf16 do this (T5, DeBERTa-v3). Use --mixed_precision bf16, or fp32."
    )
