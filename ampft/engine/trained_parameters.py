"""Checks of trained parameters: the loss reaches them, and the first update moves them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from accelerate import DistributedDataParallelKwargs
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.optim import Optimizer

from ampft.data.step_batches import MicroBatch, StepBatches
from ampft.engine.checkpoints.training_state import random_state, restore_random_state
from ampft.engine.optimizer import local_row, rule_of
from ampft.engine.out_of_memory import RandomAndBufferSnapshot
from ampft.engine.step import leaves_behind
from ampft.errors import InputError, PrecisionContradicted
from ampft.precision.accelerator import is_sharded

if TYPE_CHECKING:
    from accelerate import Accelerator

Loss = Callable[[nn.Module, MicroBatch], Tensor]

# Batch norm refuses a single example where it normalizes one value per channel.
TRIED = 2


def allow_unused_parameters(
    accelerator: Accelerator, model: nn.Module, loss: Loss, step_batches: StepBatches
) -> None:
    """Make several processes train a model with parameters on which the loss does not depend.

    XLNet and DINOv2, for example, have mask embeddings that classification does not use.
    DistributedDataParallel waits for the gradients of all parameters, and fails in the second step.
    It can look in every step for parameters without a gradient, which takes time, so this is
    switched on only if a trial finds some. Other gradients do not change.

    All processes must call it before `Accelerator.prepare`, which reads the setting. One process
    waits for nothing, and FSDP only for gradients that exist.

    Args:
        accelerator: Accelerator that will prepare the model.
        model: Model, which is moved to the device of the accelerator and otherwise not changed.
        loss: Function that returns the summed loss of a micro-batch.
    """
    if accelerator.num_processes == 1 or is_sharded(accelerator):
        return
    share = step_batches.effective_batch_size // step_batches.world_size
    size = min(TRIED, share // step_batches.micro_batches)
    examples = step_batches.examples
    ids = np.argsort(examples.lengths, kind="stable")[:size]
    micro_batch = MicroBatch(ids, examples.collate(ids), counted=True, is_last=True)
    names: tuple[str, ...] = ()
    # What prevents a pass also prevents the first step, which explains it.
    with contextlib.suppress(RuntimeError, ValueError):
        names = unused_parameters(model.to(accelerator.device), loss, micro_batch)
    if any(gather_object([bool(names)])):
        accelerator.ddp_handler = DistributedDataParallelKwargs(find_unused_parameters=True)


def unused_parameters(model: nn.Module, loss: Loss, micro_batch: MicroBatch) -> tuple[str, ...]:
    """Return the names of the trained parameters on which the loss does not depend.

    The model and the random states are restored afterwards.

    Args:
        model: Model without gradients.
        loss: Function that returns the summed loss of a micro-batch.
    """
    device = next(model.parameters()).device
    snapshot, random, was_training = (
        RandomAndBufferSnapshot(model),
        random_state(device),
        model.training,
    )
    try:
        reached = {id(leaf) for leaf in leaves_behind(loss(model.train(), micro_batch))}
    finally:
        model.train(was_training)
        snapshot.restore()
        restore_random_state(random, device)
    named = model.named_parameters()
    return tuple(name for name, p in named if p.requires_grad and id(p) not in reached)


SAMPLED = 64  # weights of each tensor: those with the largest gradient in as many parts of it
COPIED = 2**20  # entries of a gradient up to which it may be copied as a whole


class _Sample(NamedTuple):
    name: str
    parameter: Tensor
    positions: Tensor
    before: Tensor
    has_gradient: Tensor


def check_optimizer_updates_parameters(model: nn.Module, optimizer: Any) -> None:
    """Check that the optimizer holds each trainable parameter now, and moves it when it steps.

    What prepares a model can replace its parameters after the optimizer was built: the optimizer
    then updates tensors that the model no longer uses, and the new ones stay as they were.

    The first step that is applied with a learning rate above 0 is checked while it is made. Of each
    tensor it compares `SAMPLED` weights with large gradients, without a copy of the
    others. A weight may stay as it was if its update is below the resolution of its dtype, as many
    updates of bfloat16 weights are.

    Args:
        model: Model after `Accelerator.prepare`, without the wrapper of several processes.
        optimizer: Optimizer of its parameters, prepared or not. Its first step raises
            `PrecisionContradicted` if a tensor does not change although its gradient is not zero
            and its update is large enough.

    Raises:
        InputError: The optimizer does not hold a parameter; the message names the first one.
    """
    plain: Optimizer = getattr(optimizer, "optimizer", optimizer)
    message = _not_held(model, plain)
    if message is not None:
        raise InputError(message)
    _FirstUpdate(model, plain)


class _FirstUpdate:
    """Hooks around the step of an optimizer, which remove themselves after the first update."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model = model
        self._samples: list[_Sample] = []
        self._hooks = (
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        )

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        self._samples = []
        if any(float(group["lr"]) > 0 for group in optimizer.param_groups):
            for name, parameter in self._model.named_parameters():
                gradient = parameter.grad
                has_entries = gradient is not None and local_row(gradient).numel() > 0
                if parameter.requires_grad and has_entries:
                    self._samples.append(_sample(name, parameter))

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        found_inf = getattr(optimizer, "found_inf", None)  # a fused optimizer skips the step
        if not self._samples or (found_inf is not None and float(found_inf) > 0):
            return
        samples, self._samples = self._samples, []
        for hook in self._hooks:
            hook.remove()
        message = _not_held(self._model, optimizer)
        if message is None:
            unchanged = torch.stack(
                [
                    # No sampled weight changed although one has a gradient.
                    (local_row(s.parameter)[s.positions] == s.before).all() & s.has_gradient.any()
                    for s in samples
                ]
            ).tolist()
            still = [
                sample.name
                for sample, stays in zip(samples, unchanged, strict=True)
                if stays and _must_have_changed(optimizer, sample)
            ]
            if still:
                message = (
                    f"the first update left {len(still)} of {len(samples)} trained tensors "
                    f"unchanged, among them {still[0]}, although their gradients are not zero and "
                    "their updates are larger than the spacing of the weights. Use another "
                    "--mixed_precision, or other versions of torch and accelerate."
                )
        if message is not None:
            raise PrecisionContradicted(message)


def _not_held(model: nn.Module, optimizer: Optimizer) -> str | None:
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    missing = [name for name, p in trained.items() if id(p) not in held]
    if not missing:
        return None
    return (
        f"the optimizer holds {len(trained) - len(missing)} of {len(trained)} trainable tensors, "
        f"and {missing[0]} is not one of them: it was replaced or added after the optimizer was "
        "built, so training would never change it. Use another --mixed_precision, or other "
        "versions of accelerate and of the library that replaced it."
    )


def _sample(name: str, parameter: Tensor) -> _Sample:
    assert parameter.grad is not None
    gradient = local_row(parameter.grad)
    positions = _largest_of_parts(gradient)
    has_gradient = gradient[positions] != 0
    return _Sample(name, parameter, positions, local_row(parameter)[positions], has_gradient)


def _largest_of_parts(row: Tensor) -> Tensor:
    """Return where the largest absolute value of each of at most `SAMPLED` equal parts stands.

    Args:
        row: (n,), n > 0.
    """
    size = -(-row.numel() // SAMPLED)
    if row.numel() > COPIED:
        places = [part.abs().argmax() for part in row.split(size)]
        return torch.stack([size * number + place for number, place in enumerate(places)])
    # In one operator where a copy costs nothing: a model has a hundred small tensors.
    padded = nn.functional.pad(row.abs(), (0, -row.numel() % size), value=-1.0)
    in_parts = padded.view(-1, size).argmax(1)
    return in_parts + size * torch.arange(len(in_parts), device=row.device)


def _must_have_changed(optimizer: Optimizer, sample: _Sample) -> bool:
    """Return whether at least one sampled weight must have changed.

    An update of more than twice the spacing of the numbers at the weight changes it, however it is
    rounded.
    """
    parameter, before = sample.parameter, sample.before
    state = optimizer.state[parameter]
    if not state:
        return True
    groups = optimizer.param_groups
    group = next(group for group in groups if any(p is parameter for p in group["params"]))
    update = rule_of(group).update(parameter, state, group, sample.positions)
    limits = torch.finfo(before.dtype)
    spacing = (limits.eps * before.double().abs()).clamp(min=limits.tiny)
    return bool((sample.has_gradient & (update > 2 * spacing)).any())
