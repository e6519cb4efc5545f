"""Replays a saved step that was not finite, without the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor, nn

from ampft.data.step_batches import MicroBatch, StepBatch
from ampft.engine.checkpoints.writing import without_prefix
from ampft.engine.saved_step import (
    BATCH_NAME,
    MODEL_NAME,
    SCHEMA,
    STEP_NAME,
    SavedStep,
    StepRandomState,
)
from ampft.engine.step import accumulate_gradient, shared_autocast_cache
from ampft.errors import InputError, check_type
from ampft.files import Sealed, read_hashed
from ampft.text.json_io import from_json

DEVICES = ("cuda", "xpu", "mps")  # types of device with a generator of their own


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
    check_type("replay_step", "folder", folder, (str, Path))
    check_type("replay_step", "accelerator", accelerator, Accelerator)
    check_type("replay_step", "model", model, nn.Module)
    folder = Path(folder)
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
