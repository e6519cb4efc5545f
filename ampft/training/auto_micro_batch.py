"""The largest micro-batches that fit into memory, found by trying before the training begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from accelerate.utils import DistributedType
from torch import Tensor, nn

from ampft.data.steps import MicroBatch, StepBatches
from ampft.errors import InputError
from ampft.machine import headroom, status_bytes
from ampft.training.out_of_memory import MEMORY_ADVICE, Snapshot, is_out_of_memory, release_memory

if TYPE_CHECKING:
    from accelerate import Accelerator

Loss = Callable[[nn.Module, MicroBatch], Tensor]

# Of the growth predicted for a larger micro-batch on a CPU, which is tried only if that fits:
# allocators round up and keep pieces, and attention's scores grow faster than the tokens.
SAFETY_MARGIN = 1.25
# AdamW's two moments, which a step makes after its backward pass and keeps.
STATE_PER_WEIGHT = 2
_NOTHING_FITS = 2**31  # more than any number of micro-batches, for the maximum over processes


def fit_micro_batches(
    accelerator: Accelerator, model: nn.Module, loss: Loss, step_batches: StepBatches
) -> StepBatches:
    """Return `step_batches` in as few micro-batches as fit into memory, in every process.

    The step batch of the longest examples is tried, forward and backward, with gradients and room
    for the optimizer's state in place; nothing of it is left behind. All processes take the
    largest number that one of them needs.

    Args:
        accelerator: The one that prepared the model.
        model: Prepared, without the wrapper that communicates.
        loss: Summed loss of a micro-batch.
        step_batches: Of the training split, in any number of micro-batches.

    Raises:
        InputError: Single examples do not fit, or the processes share the weights out.
    """
    if accelerator.distributed_type == DistributedType.FSDP:
        raise InputError(
            "--auto_micro_batch: FSDP shards the weights and communicates in every pass, so that a "
            "process cannot try alone. Set --gradient_accumulation_steps by hand."
        )
    room = None
    if accelerator.device.type == "cpu":
        # Nobody takes memory before everybody has seen how much there is.
        accelerator.wait_for_everyone()
        room = headroom(int(os.environ.get("LOCAL_WORLD_SIZE", accelerator.num_processes)))
        accelerator.wait_for_everyone()
    found = fewest_micro_batches(model, loss, step_batches, room=room)
    own = torch.tensor([_NOTHING_FITS if found is None else found], device=accelerator.device)
    number = int(accelerator.gather(own).max())
    if number == _NOTHING_FITS:
        raise InputError(f"--auto_micro_batch: not even single examples fit. {MEMORY_ADVICE}")
    return replace(step_batches, micro_batches=number)


def fewest_micro_batches(
    model: nn.Module, loss: Loss, step_batches: StepBatches, *, room: int | None
) -> int | None:
    """Return the least number of micro-batches in which the costliest step batch fits.

    Args:
        model: See `fit_micro_batches`, as for `loss` and `step_batches`.
        loss: See above.
        step_batches: See above.
        room: Bytes by which the process may grow where the kernel kills rather than raises: the
            search begins with single examples and doubles the micro-batch while the growth of the
            resident peak says that it fits. None begins with one micro-batch and doubles their
            number while memory runs out.

    Returns:
        A power of two or the number of examples; None where single examples do not fit.
    """
    before, was_training = Snapshot(model), model.training
    trial = _Trial(model.train(), loss, step_batches)
    try:
        return trial.from_largest() if room is None else trial.from_smallest(room)
    finally:
        model.train(was_training)
        before.restore()
        device = next(model.parameters()).device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)


@dataclass
class _Trial:
    """Runs the costliest step batch of a process in several cuts."""

    model: nn.Module
    loss: Loss
    step_batches: StepBatches
    optimizer_state: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._trainable = [p for p in self.model.parameters() if p.requires_grad]
        examples = len(self.step_batches.costliest_ids)
        doublings = range((examples - 1).bit_length())
        self.cuts = [*(2**power for power in doublings), examples]

    def from_largest(self) -> int | None:
        if not self._fits(self._fill):
            return None
        return next((cut for cut in self.cuts if self._fits(self._run, cut)), None)

    def from_smallest(self, room: int) -> int | None:
        parts = 1 + STATE_PER_WEIGHT
        room -= parts * sum(p.numel() * p.element_size() for p in self._trainable)
        if room < 0 or not self._fits(self._fill):
            return None
        begin = status_bytes("VmRSS")
        if begin is None:
            raise InputError(
                "--auto_micro_batch: on a CPU it needs /proc/self/status, which this system lacks. "
                "Set --gradient_accumulation_steps by hand."
            )
        found, growth_per_cost = None, 0.0
        for cut in reversed(self.cuts):
            cost = self.step_batches.largest_cost(cut)
            expected = growth_per_cost * cost * SAFETY_MARGIN
            if expected > room or not self._fits(self._run, cut):
                break
            # A peak from before the search makes the growth too large, never too small.
            growth_per_cost = ((status_bytes("VmHWM") or begin) - begin) / cost
            found = cut
        return found

    def _fits(self, attempt: Callable[..., None], *args: int) -> bool:
        try:
            attempt(*args)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            fits = False
        else:
            fits = True
        if not fits:  # here the error is gone, and with it the tensors of its frames
            release_memory(self._trainable[0].device)
        return fits

    def _fill(self) -> None:
        """Take what gradients and the optimizer's state will; ones, so that pages are touched."""
        for parameter in self._trainable:
            parameter.grad = torch.ones_like(parameter)
            self.optimizer_state += [
                torch.ones_like(parameter, requires_grad=False) for _ in range(STATE_PER_WEIGHT)
            ]

    def _run(self, cut: int) -> None:
        for micro_batch in self.step_batches.costliest(cut):
            self.loss(self.model, micro_batch).backward()
