"""The exact gradient of a step from a user's own loss, over micro-batches and processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import recursively_apply
from torch import Tensor, distributed, nn

from ampft.data.step_batches import MicroBatch, StepBatch, pass_of
from ampft.engine.checkpoints.training_state import random_state, restore_random_state
from ampft.engine.step import backward, summed_loss
from ampft.errors import InputError
from ampft.precision.resolve import Precision
from ampft.precision.transfer import to_device

if TYPE_CHECKING:
    from accelerate import Accelerator

LossValue = Tensor | tuple[Tensor, Tensor | float]
"""A loss summed over the examples of a batch, or this sum with its weight."""

OwnLoss = Callable[[Any], LossValue]
"""Returns the loss of a batch, as the collate function made it, on the device."""

SUM_TOLERANCE = 0.02  # relative; in 16 bits, products of other batches round otherwise
MOST_CHECKED = 8  # examples with which the loss is checked


def own_gradient(
    accelerator: Accelerator,
    precision: Precision,
    loss: OwnLoss,
    step_batch: StepBatch,
    trained: Sequence[Tensor],
) -> list[Tensor]:
    """Accumulate the gradient of a step, summed over its micro-batches and averaged over processes.

    Without weights, the sum of the losses is divided by the weight of the step's examples. If the
    loss returns weights, it is divided by their sum over all micro-batches and processes.

    Args:
        accelerator: Accelerator of the training, which has not prepared the model.
        precision: Its precision, in whose autocast the loss is computed.
        trained: Parameters whose gradients are averaged.

    Returns:
        The loss of each micro-batch, divided like the gradient.

    Raises:
        InputError: The loss is not one number in float32.
    """
    losses: list[Tensor] = []
    weight = torch.zeros((), device=accelerator.device)
    for micro_batch in step_batch:
        if not micro_batch.counted:  # this process has fewer examples than others
            losses.append(torch.zeros((), device=accelerator.device))
            if accelerator.scaler is not None:
                accelerator.scaler.scale(losses[-1])  # so that the scale exists
            continue
        with pass_of(micro_batch):
            with precision.autocast():
                total, own_weight = _checked(loss(_on_device(accelerator, micro_batch)))
            if own_weight is not None:
                weight = weight + own_weight
            losses.append(backward(accelerator, total / step_batch.effective_weight))
    if accelerator.num_processes > 1:
        weight = _average(trained, weight)
    of_step = float(weight)  # one wait for the device
    if not math.isfinite(of_step) or of_step < 0:
        raise InputError(
            f"loss: the weight that it returned is {of_step:g} for a step. Return what the sum of a"
            " batch is divided by, a finite number of at least 0, such as its number of tokens."
        )
    if of_step > 0:
        share = step_batch.effective_weight / weight
        gradients = [p.grad for p in trained if p.grad is not None]
        torch._foreach_mul_(gradients, share.to(gradients[0].dtype))
        losses = [each * share.to(each.dtype) for each in losses]
    return losses


def _on_device(accelerator: Accelerator, micro_batch: MicroBatch) -> Any:
    return recursively_apply(partial(to_device, device=accelerator.device), micro_batch.inputs)


def _checked(value: LossValue) -> tuple[Tensor, Tensor | float | None]:
    total, weight = value if isinstance(value, tuple) and len(value) == 2 else (value, None)
    if weight is None or isinstance(weight, Real):
        return summed_loss(total), weight
    if not isinstance(weight, Tensor) or weight.numel() != 1:
        shape = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
        raise InputError(
            f"loss: the weight that it returned is {shape}. Return the sum over the examples and"
            " its weight, a number each."
        )
    return summed_loss(total), weight.detach().reshape(())


def _average(trained: Sequence[Tensor], weight: Tensor) -> Tensor:
    """Average gradients over the processes, in one reduction; return the sum of the weights.

    A parameter without a gradient in any process keeps none, as in a single process.
    """
    flags = [torch.tensor(float(p.grad is not None)) for p in trained]
    head = torch.stack([weight.cpu().float(), *flags]).to(weight.device)
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    flat = torch.cat([head, *(part.reshape(-1).float() for part in parts)])
    distributed.all_reduce(flat)
    has_gradient = (flat[1 : 1 + len(trained)] > 0).tolist()
    values = (flat[1 + len(trained) :] / distributed.get_world_size()).split(
        [part.numel() for part in parts]
    )
    for parameter, has_one, value in zip(trained, has_gradient, values, strict=True):
        averaged = value.view(parameter.shape).to(parameter.dtype)
        parameter.grad = averaged if has_one else None
    return flat[0]


def share_state(model: nn.Module, *, buffers_only: bool = False) -> None:
    """Give all processes the weights and buffers of the main process, or its buffers."""
    saved = [] if buffers_only else model.state_dict().values()
    for tensor in chain(saved, model.buffers()):  # also those that no file has
        distributed.broadcast(tensor.detach(), 0)


@contextmanager
def only_trained(model: nn.Module, trained: Iterable[Tensor]) -> Iterator[None]:
    """Compute gradients of some parameters of a model only, inside this context."""
    kept = {id(parameter) for parameter in trained}
    paused = [p for p in model.parameters() if p.requires_grad and id(p) not in kept]
    for parameter in paused:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in paused:
            parameter.requires_grad_(True)


def check_is_sum(
    accelerator: Accelerator,
    precision: Precision,
    model: nn.Module,
    loss: OwnLoss,
    halves: Sequence[MicroBatch],
    whole: MicroBatch,
) -> str | None:
    """Check that a loss is a sum over the examples of its batch, and not a mean.

    The gradient of a step would otherwise depend on how it is split: a mean of means gives the
    examples of small micro-batches too much weight, and k micro-batches k times the loss.

    Args:
        model: All models, whose modes are restored; nothing is trained.
        halves: Two batches of different examples.

    Returns:
        A warning if the loss of a batch is not the sum of those of its halves, for another reason
        than that it is a mean, such as pairs of examples; otherwise None.

    Raises:
        InputError: It is a mean, or its weight is.
    """
    state, modes = random_state(accelerator.device), [m.training for m in model.modules()]
    buffers = [(each, each.clone()) for each in model.buffers()]  # such as a queue of features
    values, weights = [], []
    try:
        model.eval()
        for micro_batch in (*halves, whole):
            restore_random_state(state, accelerator.device)
            with torch.no_grad(), precision.autocast():
                total, weight = _checked(loss(_on_device(accelerator, micro_batch)))
            values.append(float(total))
            weights.append(0.0 if weight is None else float(weight))
    finally:
        for module, mode in zip(model.modules(), modes, strict=True):
            module.training = mode
        for each, before in buffers:
            each.copy_(before)
        restore_random_state(state, accelerator.device)
    first, second, both = values
    if weights[-1] == 0 and weight is not None and both != 0:
        raise InputError(
            f"loss: it returned the sum {both:.4g} with the weight 0. Return what the sum of a "
            "batch is divided by, such as its number of tokens."
        )
    if _is_mean(*values):
        raise InputError(
            f"loss: it is a mean over the examples, not their sum: {first:.4g} and {second:.4g} "
            f"for two halves of a batch, and {both:.4g} for both together. The gradient would "
            'depend on the number of micro-batches. Return the sum (reduction="sum"), or the sum '
            "and its weight; or pass check_loss=False if this is what you want."
        )
    if _is_mean(*weights):
        raise InputError(
            "loss: its weight is not a sum over the examples: {:.4g} and {:.4g} for two halves of "
            "a batch, and {:.4g} for both together. The gradient would depend on the number of "
            "micro-batches. Return what the sum of a batch is divided by, such as its number of "
            "tokens; or pass check_loss=False if this is what you want.".format(*weights)
        )
    if _is_sum(*values):
        return None
    return (
        f"the loss of a batch ({both:.4g}) is not the sum of the losses of its halves "
        f"({first:.4g} and {second:.4g}), so the gradient depends on how a step is split."
    )


def _is_sum(first: float, second: float, both: float) -> bool:
    """Return whether the number of a batch is the sum of the numbers of its halves."""
    return abs(first + second - both) <= _slack(first, second, both)


def _is_mean(first: float, second: float, both: float) -> bool:
    """Return whether it lies between the numbers of the halves, and is not their sum."""
    slack = _slack(first, second, both)
    is_between = min(first, second) - slack <= both <= max(first, second) + slack
    return is_between and not _is_sum(first, second, both)


def _slack(*values: float) -> float:
    return SUM_TOLERANCE * max(map(abs, values))
