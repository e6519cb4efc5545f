"""What a user sees of a run in the terminal: the plan, and silence of libraries around it."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING

import torch

from ampft.data.steps import StepBatches
from ampft.precision import Precision
from ampft.tasks.task import LoadedModel, Task

if TYPE_CHECKING:
    from accelerate import Accelerator


def quiet_libraries() -> None:
    """Silence what third parties print that a user of a recipe can do nothing about.

    Progress bars of `datasets` stay where stderr is a terminal. Errors are not touched.
    """
    import datasets
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.logging.set_verbosity_error()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    # Each is about this library's own use of another, never about the user's settings.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    warnings.filterwarnings("ignore", category=FutureWarning, module="(transformers|datasets)")


def plan_lines(
    accelerator: Accelerator,
    precision: Precision,
    task: Task,
    loaded: LoadedModel,
    step_batches: StepBatches,
    total_steps: int,
) -> list[str]:
    """Return what was resolved, line by line: device, precision, model, data, steps."""
    processes = accelerator.num_processes
    weights = sum(parameter.numel() for parameter in loaded.model.parameters()) / 1e6
    sizes = ", ".join(f"{name} {len(rows)}" for name, rows in task.data.splits.items())
    per_epoch = len(step_batches)
    return [
        f"device     {_device(accelerator)}",
        f"precision  {precision.mode}, {precision.execution}: {precision.reason}",
        f"model      {loaded.name}, {weights:.1f} M float32 weights",
        *(f"           {note}" for note in loaded.notes),
        f"data       {task.data.name}: {sizes}; {len(task.label_names)} classes",
        *(f"           {note}" for note in (*task.data.notes, *task.notes)),
        f"steps      {total_steps} = {total_steps / per_epoch:.3g} epochs x {per_epoch}; effective "
        f"batch {step_batches.effective_batch_size} = {_batch(step_batches, processes)}",
    ]


def _device(accelerator: Accelerator) -> str:
    device = accelerator.device
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} x {accelerator.num_processes}"
    if device.type == "cpu":
        processes = f", {accelerator.num_processes} processes" * (accelerator.num_processes > 1)
        return f"CPU, {torch.get_num_threads()} threads{processes}"
    return f"{device.type} x {accelerator.num_processes}"


def _batch(step_batches: StepBatches, processes: int) -> str:
    micro = step_batches.effective_batch_size // (processes * step_batches.micro_batches)
    return f"{processes} processes x {step_batches.micro_batches} micro-batches x {micro}"
