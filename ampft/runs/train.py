"""A complete training: the packaged form of `recipes/classify.py`, with the same loop."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker
from datasets import DatasetDict

from ampft.arguments import ClassifyArguments
from ampft.arguments.classify import ADAMW
from ampft.data.step_batches import StepBatch
from ampft.engine.optimizer import OPTIMIZERS, rate_warning
from ampft.engine.step import Losses, apply_step, backward, synchronized_last
from ampft.errors import check_type
from ampft.kinds.receipt import receipt_lines
from ampft.models.four_bit import has_4bit_layers, weight_counts
from ampft.models.weights import perturb_weights
from ampft.precision.accelerator import is_sharded, numerics
from ampft.precision.compilation import configured_backend
from ampft.precision.determinism import deterministic_operators
from ampft.precision.executed import dtype_name
from ampft.runs.extension_points import EXPECTED_TIME
from ampft.runs.folder import claim_default_folder
from ampft.runs.loop import as_checkpointed, open_loop
from ampft.runs.prepare import prepare, with_fitting_micro_batches
from ampft.runs.prepared import Prepared
from ampft.runs.record import value_text
from ampft.runs.resume import (
    ResumePoint,
    changed_choices,
    changed_values,
    environment_of,
    topology_of,
)
from ampft.runs.run import Run, batch_norm_warnings
from ampft.runs.run_state import new_state
from ampft.tasks.report import outputs_text
from ampft.text.numbers import counted, in_epochs
from ampft.text.terminal import labelled, print_line


@contextlib.contextmanager
def open_run(prepared: Prepared) -> Iterator[Run]:
    """Print the plan, lock the output folder, and record how the run ends, whatever happens.

    Raises:
        InputError: The output folder cannot be locked or written.
    """
    check_type("open_run", "prepared", prepared, Prepared)
    args, accelerator, point = prepared.args, prepared.accelerator, prepared.resume_point
    checkpoint = None if point is None else point.checkpoint
    if checkpoint is None:
        prepared = with_fitting_micro_batches(prepared)
    else:
        prepared = as_checkpointed(prepared, checkpoint)
    if accelerator.is_main_process:
        lines = plan_lines(prepared) + ([] if point is None else [_start_line(prepared, point)])
        print_line("\n".join(lines))
        if (print_time := EXPECTED_TIME.get()) is not None and prepared.total_steps:
            print_time(prepared)
    output_dir = claim_default_folder(args, prepared.precision.mode, accelerator, prepared.folder)
    prepared = replace(prepared, output_dir=output_dir)
    with (
        deterministic_operators(args.deterministic),
        open_loop(Run, prepared, lambda: new_state(prepared), point) as run,
    ):
        yield run


def plan_lines(prepared: Prepared) -> list[str]:
    """Return the lines of the plan: device, precision, model, data, steps."""
    precision, task, loaded = prepared.precision, prepared.task, prepared.loaded
    weights = sum(weight_counts(loaded.model).values()) / 1e6
    sizes = ", ".join(f"{name} {len(rows)}" for name, rows in task.data.splits.items())
    args = prepared.args
    return [
        labelled("device", _describe_device(prepared.accelerator, prepared.args.fsdp_gathers)),
        labelled(
            "precision",
            f"{precision.mode}, {precision.execution}: {precision.reason}",
            *precision.notes,
            *prepared.check_notes,
        ),
        labelled(
            "model",
            f"{loaded.name}, {weights:.{1 if weights >= 1 else 3}f} M "
            f"{dtype_name(precision.storage_dtype)}"
            f"{' and NF4' if has_4bit_layers(loaded.model) else ''} weights",
            *loaded.notes,
            *(["code from the model's repository may run"] if args.trust_remote_code else []),
        ),
        labelled(
            "data",
            f"{task.data.name}: {sizes}; {outputs_text(task.label_names)}",
            *task.data.notes,
            *task.notes,
        ),
        *([labelled("read", *lines)] if (lines := receipt_lines(task.data, task.row.kind)) else []),
        _steps_line(prepared),
    ]


def _steps_line(prepared: Prepared) -> str:
    """Return the line of the plan about the steps: how many there are, and how they are made."""
    args, batches, steps = prepared.args, prepared.step_batches, prepared.total_steps
    if evaluated := prepared.evaluated:
        return labelled("steps", f"none: the model is evaluated on {' and '.join(evaluated)}")
    rate = args.optimizer_settings().learning_rate
    processes = counted(batches.world_size, "process")
    micro_batches = counted(batches.micro_batches, "micro-batch")
    micro = batches.effective_batch_size // (batches.world_size * batches.micro_batches)
    suffix = ", the largest that fit" if args.auto_micro_batch else ""
    optimizer = "" if args.optim == ADAMW else f"{OPTIMIZERS[args.optim].title}, "
    ema = args.ema_decay
    decay = "" if args.layer_decay is None else f", times {args.layer_decay:g} per layer below"
    return labelled(
        "steps",
        f"{steps} {in_epochs(steps, len(batches))}; effective batch "
        f"{batches.effective_batch_size} = {processes} x {micro_batches} x {micro}{suffix}",
        f"{optimizer}learning rate {rate:g}, {args.lr_scheduler_type}{decay}",
        *([] if (high := rate_warning(rate, args.optim)) is None else [high]),
        *([] if ema is None else [f"the weights are averaged with decay {ema:g}"]),
        *batch_norm_warnings(prepared.loaded.model, batches).values(),
    )


def _describe_device(accelerator: Accelerator, gathers: str) -> str:
    device = accelerator.device
    backend = configured_backend(accelerator)
    more = f", weights sharded (FSDP2) and gathered in {gathers}" if is_sharded(accelerator) else ""
    more += "" if backend is None else f", compiled by {backend}"
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} x {accelerator.num_processes}{more}"
    if device.type == "cpu":
        processes = (
            f", {accelerator.num_processes} processes" if accelerator.num_processes > 1 else ""
        )
        return f"CPU, {counted(torch.get_num_threads(), 'thread')}{processes}{more}"
    return f"{device.type} x {accelerator.num_processes}{more}"


def _start_line(prepared: Prepared, point: ResumePoint) -> str:
    """Return the line about where a run with `--resume_from_checkpoint` begins."""
    if point.checkpoint is None:
        return labelled(
            "resume", f"{point.output_dir} has no checkpoint yet, so the training starts at step 1"
        )
    manifest = point.checkpoint.manifest
    cursor = manifest.cursor
    where = f"continues in epoch {cursor.epoch + 1} at its step {cursor.step_in_epoch + 1}"
    if point.completes:
        where = "the training has ended, and only what follows is done now"
    before = {**manifest.topology, **manifest.environment}
    now = {**topology_of(prepared.record), **environment_of(prepared.record)}
    return labelled(
        "resume",
        f"{point.checkpoint.folder}: {counted(cursor.step, 'step')} done; {where}",
        *(
            f"{name}: {value_text(old)} in the checkpoint, {value_text(new)} now"
            for name, (old, new) in {
                **changed_values(before, now),
                **changed_choices(manifest, prepared.record),
            }.items()
        ),
    )


def train(
    args: ClassifyArguments,
    data: DatasetDict | None = None,
    trackers: Sequence[GeneralTracker] = (),
) -> Run:
    """Fine-tune with the settings `args`, and write and print the results.

    Args:
        data: Data in memory, by split; None reads the data that `args` names.
        trackers: Trackers of the user, in addition to those that `args` names.
    """
    # Accelerator, data, task, model, batches, optimizer, schedule
    prepared = prepare(args, data, trackers)
    accelerator, task, model = prepared.accelerator, prepared.task, prepared.model
    optimizer, schedule = prepared.optimizer, prepared.schedule
    if args.perturb_initial_weights:  # the placebo of a comparison
        perturb_weights(model, args.seed)

    def gradient(step_batch: StepBatch) -> Losses:
        """Accumulate the gradient of an optimizer step; return the losses of its micro-batches."""
        losses = []
        for micro_batch in step_batch:
            with synchronized_last(accelerator, model, micro_batch):
                loss = task.loss(model, micro_batch) / step_batch.effective_weight
                losses.append(backward(accelerator, loss))
        return losses

    with numerics(prepared.precision), open_run(prepared) as run:
        for epoch in run.epochs:
            model.train()
            for step_batch in run.step_batches(epoch):
                with run.measured():
                    # Repeated with smaller micro-batches if memory runs out.
                    losses = run.gradient(gradient, step_batch)
                    outcome = apply_step(
                        accelerator,
                        model,
                        optimizer,
                        schedule,
                        losses=losses,
                        max_grad_norm=args.max_grad_norm or None,
                        skip_nonfinite=run.may_skip_nonfinite,
                        votes=run.votes,
                    )
                optimizer.zero_grad()
                run.record(outcome)
                run.validate(model)  # after each epoch, or every --eval_steps
        run.finish(model)
    return run
