"""Saves a step that was not finite with everything it needs to be replayed without the run."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from accelerate.utils import gather_object
from safetensors.torch import load_file
from torch import Tensor, nn

from ampft.data.step_batches import MicroBatch, StepBatch
from ampft.engine.checkpoints.writing import without_prefix, write_tensors
from ampft.engine.generators import device_random_state, restore_device_random_state
from ampft.engine.step import accumulate_gradient, shared_autocast_cache
from ampft.errors import InputError
from ampft.files import FileDigest, Sealed, hashed_text, read_hashed, write_text
from ampft.models.weights import gather_model_state
from ampft.ownership import is_plain_folder
from ampft.text.json_io import from_json

if TYPE_CHECKING:
    from accelerate import Accelerator

MODEL_NAME = "model.safetensors"
BATCH_NAME = "batch.safetensors"
STEP_NAME = "step.json"
SCHEMA = 2
DEVICES = ("cuda", "xpu", "mps")  # types of device with a generator of their own


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
    states = {"cpu": start.cpu}
    if start.device is not None:
        states[accelerator.device.type] = start.device
    parts = [MicroBatchPart(ids=m.ids.tolist(), counted=m.counted) for m in step_batch]
    inputs = [dict(micro_batch.inputs) for micro_batch in step_batch]
    values = torch.stack([loss.detach().float().cpu() for loss in losses])
    gathered = gather_object([(parts, inputs, states, values)])
    weights = gather_model_state(accelerator, model)
    if not accelerator.is_main_process:
        return
    folder.mkdir(parents=True, exist_ok=True)
    if not is_plain_folder(folder) or any(folder.iterdir()):
        raise FileExistsError(errno.EEXIST, "it is not empty or a link", str(folder))
    files = {MODEL_NAME: write_tensors(folder / MODEL_NAME, dict(weights))}
    tensors: dict[str, Tensor] = {}
    for process, (_, micro_batches, states, values) in enumerate(gathered):
        tensors |= {f"{process}/random/{name}": state for name, state in states.items()}
        tensors[f"{process}/losses"] = values
        for index, batch in enumerate(micro_batches):
            tensors |= {f"{process}/{index}/{name}": value for name, value in batch.items()}
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
        processes=[part for part, *_ in gathered],
        files=files,
    )
    write_text(folder / STEP_NAME, hashed_text(saved))


def read_step(folder: Path) -> SavedStep:
    """Read `step.json` of a saved step, and check that its folder is as it was written.

    Raises:
        InputError: The folder does not hold a saved step, or it was changed.
    """
    remedy = "Restore the folder from a copy, or repeat the run."
    try:
        values, _ = read_hashed(folder / STEP_NAME, SCHEMA, remedy)
        saved = from_json(SavedStep, values, STEP_NAME)
        Sealed(
            folder=folder, manifest=STEP_NAME, files=saved.files, event="the run", remedy=remedy
        ).check()
        return saved
    except (OSError, ValueError) as error:
        raise InputError(
            f"{folder}: the folder does not hold a saved step ({error}). Give a folder such as "
            "OUTPUT_DIR/nonfinite/step-12."
        ) from error


@dataclass(frozen=True)
class ReplayedStep:
    """The result of a replay."""

    saved: SavedStep  # The step.
    losses: list[Tensor]  # Loss of each micro-batch of each process, as computed now.
    saved_losses: list[Tensor]  # The same losses, as computed in the run.

    @property
    def is_exact(self) -> bool:
        """Whether all losses equal the run's losses, bit for bit."""
        pairs = zip(self.losses, self.saved_losses, strict=True)
        return all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in pairs)


def replay_step(
    folder: Path,
    accelerator: Accelerator,
    model: nn.Module,
    loss: Callable[[nn.Module, MicroBatch], Tensor],
) -> ReplayedStep:
    """Repeat the forward and backward passes of a saved step in this one process.

    Call it inside `numerics` of the precision. The model then has the weights of the step and the
    gradient of the effective batch, multiplied by the loss scale.

    Args:
        folder: Folder that `save_step` wrote.
        accelerator: Accelerator of one process, which prepared the model.
        model: Prepared model of the architecture of the run.
        loss: Function that returns the summed loss of a micro-batch, such as `Task.loss`.
    """
    saved, tensors = read_step(folder), load_file(folder / BATCH_NAME)
    plain = accelerator.unwrap_model(model, keep_torch_compile=False)
    plain.load_state_dict(load_file(folder / MODEL_NAME))
    model.zero_grad(set_to_none=True)
    model.train()
    if accelerator.scaler is not None and saved.loss_scale is not None:
        state = accelerator.scaler.state_dict()
        accelerator.scaler.load_state_dict({**state, "scale": saved.loss_scale})
    losses, saved_losses = [], []
    for process in range(len(saved.processes)):
        step_batch, start = saved_batches(saved, process, tensors)
        start.restore(accelerator.device)
        with shared_autocast_cache(accelerator, model, step_batch):
            computed = accumulate_gradient(accelerator, model, loss, step_batch)
        losses.append(torch.stack([value.float().cpu() for value in computed]))
        saved_losses.append(tensors[f"{process}/losses"])
    return ReplayedStep(saved, losses, saved_losses)


def saved_batches(
    saved: SavedStep, process: int, tensors: Mapping[str, Tensor]
) -> tuple[StepBatch, StepRandomState]:
    """Return the step batch of one process, and its random state before the step.

    Args:
        saved: The step.
        process: Index of the process.
        tensors: Contents of `BATCH_NAME`.
    """
    own, parts = _with_prefix(tensors, f"{process}/"), saved.processes[process]
    micro_batches = [
        MicroBatch(
            ids=np.asarray(part.ids, dtype=np.int64),
            inputs=_with_prefix(own, f"{index}/"),
            counted=part.counted,
            is_last=index == len(parts) - 1,
        )
        for index, part in enumerate(parts)
    ]
    step_batch = StepBatch(
        epoch=saved.epoch,
        step=saved.step_in_epoch,
        effective_ids=np.asarray(saved.effective_ids, dtype=np.int64),
        effective_weight=saved.effective_weight,
        effective_length=saved.effective_length,
        micro_batches=tuple(micro_batches),
    )
    return step_batch, StepRandomState(
        own["random/cpu"],
        next((own[f"random/{name}"] for name in DEVICES if f"random/{name}" in own), None),
    )


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return copies of the tensors whose names begin with `prefix`, by the rest of their names.

    The last bit of a product can depend on the alignment of its operands. Tensors that were read
    from a file keep the file's alignment; copies do not.
    """
    return {name: tensor.clone() for name, tensor in without_prefix(tensors, prefix).items()}
