"""Saves a step that was not finite with everything it needs to be replayed without the run."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn

from ampft.data.step_batches import StepBatch
from ampft.engine.checkpoints.writing import write_tensors
from ampft.engine.generators import device_random_state, restore_device_random_state
from ampft.files import FileDigest, hashed_text, write_text
from ampft.models.weights import gather_model_state
from ampft.ownership import is_plain_folder

if TYPE_CHECKING:
    from accelerate import Accelerator

MODEL_NAME = "model.safetensors"
BATCH_NAME = "batch.safetensors"
STEP_NAME = "step.json"
SCHEMA = 2


@dataclass(frozen=True, kw_only=True)
class MicroBatchPart:
    """The example ids of a micro-batch, and whether its loss counts."""

    ids: Sequence[int]
    counted: bool


@dataclass(frozen=True, kw_only=True)
class SavedStep:
    """What `step.json` says about a step."""

    step: int  # Optimizer step of the training, from 1.
    epoch: int  # Epoch, from 0.
    step_in_epoch: int  # Optimizer step within the epoch, from 0.
    mode: str  # Precision of the run.
    # Loss scale of the step; None without a scaler, or if it was the first step.
    loss_scale: float | None
    effective_ids: Sequence[int]  # Example ids of all processes, in their order.
    effective_weight: float  # Sum of their weights in the loss.
    effective_length: int  # Sum of their lengths.
    processes: Sequence[Sequence[MicroBatchPart]]  # Micro-batches of each process.
    files: Mapping[str, FileDigest]  # Hash and size of the two files beside it.
    schema: int = SCHEMA  # Version of this layout.


@dataclass(frozen=True)
class StepRandomState:
    """The states of torch's random generators before a step, on the CPU and on the device."""

    cpu: Tensor
    device: Tensor | None  # None on a CPU

    @classmethod
    def now(cls, device: torch.device) -> StepRandomState:
        """Return the current state."""
        return cls(torch.get_rng_state(), device_random_state(device))

    def restore(self, device: torch.device) -> None:
        """Continue from this state."""
        torch.set_rng_state(self.cpu)
        restore_device_random_state(self.device, device)


def save_step(
    folder: Path,
    accelerator: Accelerator,
    model: nn.Module,
    step_batch: StepBatch,
    *,
    step: int,
    mode: str,
    loss_scale: float | None,
    start: StepRandomState,
    losses: Sequence[Tensor],
) -> None:
    """Save a step whose update was not applied. All processes call it; the main one writes.

    Args:
        folder: New or empty folder for the three files; `step.json` is written last.
        accelerator: Accelerator that prepared the model.
        model: Model with the weights before the update.
        step_batch: Step batch of this process, as cut into micro-batches.
        step: Number of the step, from 1.
        mode: Precision of the run.
        loss_scale: Loss scale of the step.
        start: Random state of this process before the step.
        losses: Results of `backward` for the micro-batches.

    Raises:
        OSError: The files cannot be written.
    """
    own_random = {"cpu": start.cpu}
    if start.device is not None:
        own_random[accelerator.device.type] = start.device
    own_parts = [MicroBatchPart(ids=m.ids.tolist(), counted=m.counted) for m in step_batch]
    own_inputs = [dict(micro_batch.inputs) for micro_batch in step_batch]
    own_losses = torch.stack([loss.detach().float().cpu() for loss in losses])
    gathered = gather_object([(own_parts, own_inputs, own_random, own_losses)])
    weights = gather_model_state(accelerator, model)
    if not accelerator.is_main_process:
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not is_plain_folder(folder) or any(folder.iterdir()):
        raise FileExistsError(errno.EEXIST, "it is not empty or a link", str(folder))
    files = {MODEL_NAME: write_tensors(folder / MODEL_NAME, dict(weights))}
    tensors: dict[str, Tensor] = {}
    for process, (_, inputs, random, of_process) in enumerate(gathered):
        tensors |= {f"{process}/random/{name}": state for name, state in random.items()}
        tensors[f"{process}/losses"] = of_process
        for index, micro_batch in enumerate(inputs):
            tensors |= {f"{process}/{index}/{name}": value for name, value in micro_batch.items()}
    files[BATCH_NAME] = write_tensors(folder / BATCH_NAME, tensors)
    saved = SavedStep(
        step=step,
        epoch=step_batch.epoch,
        step_in_epoch=step_batch.step,
        mode=mode,
        loss_scale=loss_scale,
        effective_ids=step_batch.effective_ids.tolist(),
        effective_weight=step_batch.effective_weight,
        effective_length=step_batch.effective_length,
        processes=[parts for parts, *_ in gathered],
        files=files,
    )
    write_text(folder / STEP_NAME, hashed_text(saved))
