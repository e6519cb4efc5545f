"""Parameters on which the loss does not depend, and for whose gradients processes would wait."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from accelerate import DistributedDataParallelKwargs
from accelerate.utils import gather_object
from torch import Tensor, nn

from ampft.data.steps import MicroBatch, StepBatches
from ampft.precision.sharding import is_sharded
from ampft.training.checkpoints.random_state import random_state, restore_random_state
from ampft.training.out_of_memory import Snapshot

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
        step_batches: Step batches of the training split.
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
        micro_batch: Examples to try.
    """
    device = next(model.parameters()).device
    snapshot, random, was_training = Snapshot(model), random_state(device), model.training
    try:
        reached = _parameters_behind(loss(model.train(), micro_batch))
    finally:
        model.train(was_training)
        snapshot.restore()
        restore_random_state(random, device)
    named = model.named_parameters()
    return tuple(name for name, p in named if p.requires_grad and id(p) not in reached)


def _parameters_behind(loss: Tensor) -> set[int]:
    """Return the ids of the parameters in the graph of a loss."""
    reached: set[int] = set()
    seen: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):  # the node that accumulates a gradient
            reached.add(id(node.variable))
        waiting += [following for following, _ in node.next_functions]
    return reached
