"""The plan that a run prints before its first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.optimizer import ADAMW
from ampft.data.steps import StepBatches
from ampft.models.training_mode import batch_norm_note
from ampft.precision.compilation import compile_backend
from ampft.precision.executed import dtype_name
from ampft.precision.sharding import is_sharded
from ampft.runs.prepared import Prepared
from ampft.text.numbers import counted, in_epochs
from ampft.text.terminal import labelled
from ampft.training.optimizer import OPTIMIZERS

BATCH_NORM = "batch_norm"

if TYPE_CHECKING:
    from accelerate import Accelerator


def plan_lines(prepared: Prepared) -> list[str]:
    """Return the lines of the plan: device, precision, model, data, steps."""
    precision, task, loaded = prepared.precision, prepared.task, prepared.loaded
    weights = sum(parameter.numel() for parameter in loaded.model.parameters()) / 1e6
    sizes = ", ".join(f"{name} {len(rows)}" for name, rows in task.data.splits.items())
    batches, steps = prepared.step_batches, prepared.total_steps
    processes = counted(batches.world_size, "process")
    micro_batches = counted(batches.micro_batches, "micro-batch")
    micro = batches.effective_batch_size // (batches.world_size * batches.micro_batches)
    suffix = ", the largest that fit" if prepared.args.auto_micro_batch else ""
    ema = prepared.args.ema_decay
    trusts_code = prepared.args.trust_remote_code
    return [
        labelled("device", _describe_device(prepared.accelerator, prepared.args.fsdp_gathers)),
        labelled(
            "precision",
            f"{precision.mode}, {precision.execution}: {precision.reason}",
            *prepared.check_notes,
        ),
        labelled(
            "model",
            f"{loaded.name}, {weights:.{1 if weights >= 1 else 3}f} M "
            f"{dtype_name(precision.storage_dtype)} weights",
            *loaded.notes,
            *(["code from the model's repository may run"] if trusts_code else []),
        ),
        labelled(
            "data",
            f"{task.data.name}: {sizes}; {counted(len(task.label_names), 'class')}",
            *task.data.notes,
            *task.notes,
        ),
        labelled(
            "steps",
            f"{steps} {in_epochs(steps, len(batches))}; effective batch "
            f"{batches.effective_batch_size} = {processes} x {micro_batches} x {micro}{suffix}",
            _optimizer_note(prepared.args),
            *([] if ema is None else [f"the weights are averaged with decay {ema:g}"]),
            *batch_norm_warnings(loaded.model, batches).values(),
        ),
    ]


def _optimizer_note(args: ClassifyArguments) -> str:
    """Return the learning rate, its schedule, and the optimizer if it is not AdamW."""
    optimizer = "" if args.optim == ADAMW else f"{OPTIMIZERS[args.optim].title}, "
    decay = "" if args.layer_decay is None else f", times {args.layer_decay:g} per layer below"
    return f"{optimizer}learning rate {args.learning_rate:g}, {args.lr_scheduler_type}{decay}"


def batch_norm_warnings(model: nn.Module, batches: StepBatches) -> dict[str, str]:
    """Return the warning that batch normalisation makes the gradient depend on the split."""
    note = batch_norm_note(model, micro_batches=batches.micro_batches, processes=batches.world_size)
    return {} if note is None else {BATCH_NORM: f"{note}."}


def _describe_device(accelerator: Accelerator, gathers: str) -> str:
    device = accelerator.device
    backend = compile_backend(accelerator)
    more = f", weights sharded (FSDP2) and gathered in {gathers}" * is_sharded(accelerator)
    more += "" if backend is None else f", compiled by {backend}"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} x {accelerator.num_processes}{more}"
    if device.type == "cpu":
        processes = f", {accelerator.num_processes} processes" * (accelerator.num_processes > 1)
        return f"CPU, {counted(torch.get_num_threads(), 'thread')}{processes}{more}"
    return f"{device.type} x {accelerator.num_processes}{more}"
