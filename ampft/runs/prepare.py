"""Builds everything that a training needs before its first step."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from accelerate.tracking import GeneralTracker
from accelerate.utils import broadcast, set_seed
from datasets import DatasetDict

from ampft.arguments import ClassifyArguments
from ampft.arguments.classify import EPOCHS
from ampft.data.load import OtherTaskDeclared, load_data
from ampft.data.step_batches import MicroBatch, StepBatches
from ampft.engine.ending import exit_together_on_failure
from ampft.engine.optimizer import OPTIMIZERS, make_optimizer, make_schedule
from ampft.engine.out_of_memory import fit_micro_batches
from ampft.engine.threads import restore_cpu_threads
from ampft.engine.trained_parameters import (
    allow_unused_parameters,
    check_optimizer_updates_parameters,
)
from ampft.errors import InputError
from ampft.evaluation.probe import PROBE, with_probed_head
from ampft.exit_codes import command_started
from ampft.features.contention import CpuTime
from ampft.features.trackers import installed_trackers
from ampft.kinds.extension_points import PACKED_MODELS
from ampft.machine import resident_peak
from ampft.models.freezing import cast_frozen_anew
from ampft.models.model_settings import TrainedPartSettings
from ampft.models.training_mode import disable_layer_drop
from ampft.models.weights import LoadedModel, cast_weights
from ampft.precision.accelerator import (
    check_world_size,
    forget_accelerator,
    is_sharded,
    make_accelerator,
    numerics,
    prepare_training_objects,
    training_device,
)
from ampft.precision.compilation import configured_backend
from ampft.precision.determinism import prepare_determinism
from ampft.precision.float32_modules import check_float32_modules
from ampft.precision.modes import BASELINE
from ampft.precision.resolve import Precision, requested_mode, resolve
from ampft.runs.extension_points import GRAPHS
from ampft.runs.folder import choose_folder, with_ended_folder
from ampft.runs.prepared import Prepared, ProcessStart, total_steps_of
from ampft.runs.prepared_checks import (
    check_precision,
    check_prepared,
    check_sharded_settings,
    check_space_for_run,
)
from ampft.runs.publishing import check_account
from ampft.runs.record import check_saved_model
from ampft.runs.resume import ResumePoint, find_resume_point, other_settings, refuse_finished
from ampft.tasks.table import TASKS, default_task
from ampft.tasks.task import Task, make_task
from ampft.tasks.task_settings import check_read_settings
from ampft.text.terminal import labelled, print_line, print_phase, quiet_libraries


def prepare(
    args: ClassifyArguments,
    data: DatasetDict | None = None,
    trackers: Sequence[GeneralTracker] = (),
) -> Prepared:
    """Prepare a training as `start.prepare` does, whose checks have been made."""
    started = start_clock()
    if args.deterministic:
        prepare_determinism()
    device = training_device(cpu=args.use_cpu)
    with exit_together_on_failure(PartialState()):
        precision = resolve(requested_mode(args.mixed_precision, os.environ), device)
        if args.push_to_hub:
            check_account("--push_to_hub", args.hub_model_id)
        args = with_ended_folder(args, precision.mode)
        point = find_resume_point(args)
        if point is not None and point.is_finished:  # writes nothing
            output_dir = point.output_dir
        else:
            replaces = point is not None and (point.is_inside or point.is_first)
            output_dir = choose_folder(args, precision.mode, replaces=replaces)
        names = installed_trackers(args.report_to) if args.with_tracking else []
        accelerator = make_accelerator(
            precision,
            gradient_accumulation_steps=args.gradient_accumulation_steps,
            log_with=[*names, *trackers] or None,
            project_dir=output_dir,
        )
        check_world_size(accelerator)
        check_sharded_settings(args, accelerator)
        restore_cpu_threads(args.cpu_threads, num_processes=accelerator.num_processes)
        print_phase("reading the data")
        with accelerator.main_process_first():  # only one process downloads files
            task = load_task(args, data)
        args = _with_task_of(task, args)
        print_phase("loading the model")
        prepared = prepare_training(
            args, precision, accelerator, task, started=started, output_dir=output_dir
        )
        point = _replaced_if_other(prepared, point)
        prepared = replace(prepared, resume_point=point)
        if point is not None and point.is_finished:
            refuse_finished(point, prepared.record)
        notes = check_prepared(prepared)
        check_space_for_run(prepared)
        if args.check_precision:
            notes += tuple(check_precision(prepared).notes)
        return replace(prepared, check_notes=notes)


def _replaced_if_other(prepared: Prepared, point: ResumePoint | None) -> ResumePoint | None:
    """Return where a run begins: at the first step if it replaces a training of other settings.

    Raises:
        InputError: The output folder holds a training of other settings that has ended, and nothing
            says that it may be replaced.
    """
    args = prepared.args
    if point is None or not point.completes or args.resume_from_checkpoint is not None:
        return point
    differences = other_settings(point, prepared.record, len(prepared.step_batches))
    if differences is None:
        return point
    if args.overwrite_output_dir:
        return None
    raise InputError(
        f"--output_dir {point.output_dir}: the training in this folder has ended, but what follows "
        "it is incomplete, and this command has other settings. Use its settings to complete it, "
        "pass --overwrite_output_dir to replace it, or choose another folder.\n"
        f"{differences}"
    )


def start_clock() -> ProcessStart:
    """Silence third-party libraries, and return the time and memory at the start."""
    quiet_libraries()
    return ProcessStart(command_started(), resident_peak(), CpuTime.now())


def load_task(args: ClassifyArguments, data: DatasetDict | None = None) -> Task:
    """Load and check the data, and prepare its examples for the model.

    Raises:
        InputError: The data or the model is invalid.
    """
    settings = args.of_task()
    check_saved_model(settings.model_name_or_path)
    load = load_data if settings.task is None else TASKS[settings.task].kind.load
    try:
        loaded = load(settings, data)
    except OtherTaskDeclared as declared:
        settings = replace(settings, task=declared.task)
        print_line(labelled("task", f"{declared.task}, by the types of the columns"))
        loaded = TASKS[declared.task].kind.load(settings, data)
    check_read_settings(args, settings.task or default_task(loaded.kind))
    return make_task(loaded, settings)


def _with_task_of(task: Task, args: ClassifyArguments) -> ClassifyArguments:
    """Return the settings with the task that the data declare.

    Of its defaults they take only how evaluation is batched: what changes the training stays as it
    was asked for.
    """
    declared = task.settings.task
    if declared == args.task or declared is None:
        return args
    largest = args.per_device_eval_batch_size
    size = min(TASKS[declared].kind.defaults.get("per_device_eval_batch_size", largest), largest)
    return replace(args, task=declared, per_device_eval_batch_size=size)


def prepare_training(
    args: ClassifyArguments,
    precision: Precision,
    accelerator: Accelerator,
    task: Task,
    *,
    started: ProcessStart,
    output_dir: Path | None = None,
    loaded: LoadedModel | None = None,
) -> Prepared:
    """Build model, batches, optimizer and schedule, and prepare them for a precision.

    Args:
        accelerator: Accelerator for `precision`.
        task: Examples, loss and outcome.
        output_dir: Folder of the results; None writes nothing.
        loaded: Model, if it is already loaded; None loads it.

    Raises:
        InputError: A setting does not fit the model, or the optimizer does not hold a trainable
            parameter of the prepared model.
    """
    if args.evaluated and precision.properties.stores_16_bits:
        raise InputError(
            f"--mixed_precision {precision.mode} stores all weights in 16 bits, and a model that "
            "is only evaluated keeps its own. Use --mixed_precision bf16 or fp32."
        )
    set_seed(args.seed)
    is_probed = False
    if loaded is None:
        loaded, is_probed = _load_model(args, precision, accelerator, task)
    else:
        check_float32_modules(loaded.model, precision)
    loaded = cast_weights(loaded, precision)
    if (note := disable_layer_drop(loaded.model)) is not None:
        loaded = replace(loaded, notes=(*loaded.notes, note))
    args = args.with_learning_rate(loaded.model.config, begins_at_probe=is_probed)
    step_batches = StepBatches.for_process(
        accelerator,
        task.examples("train"),
        batch_size=args.per_device_train_batch_size,
        seed=args.seed,
        padded=not loaded.padding_free,
        num_workers=args.dataloader_num_workers,
    )
    step_batches = replace(
        step_batches, finish=_finish(args, precision, accelerator, loaded, step_batches)
    )
    chosen = args
    args = args.with_epochs(
        len(step_batches),
        has_words=task.row.kind.has_words,
        probed_classes=len(task.label_names) if is_probed else None,
    )
    total_steps = total_steps_of(args, step_batches)
    optimizer_settings = replace(args.optimizer_settings(), units=task.units(loaded.model))
    optimizer = make_optimizer(loaded.model, optimizer_settings, precision)
    schedule = make_schedule(optimizer, total_steps, args.schedule_settings())
    allow_unused_parameters(accelerator, loaded.model, task.loss, step_batches)
    if is_sharded(accelerator):
        cast_frozen_anew(loaded.model)
    model, optimizer = prepare_training_objects(
        accelerator, loaded.model, optimizer, gathers_bfloat16=args.fsdp_gathers == "bfloat16"
    )
    check_optimizer_updates_parameters(loaded.model, optimizer)
    return Prepared(
        started=started,
        args=args,
        output_dir=output_dir,
        precision=precision,
        accelerator=accelerator,
        task=task,
        loaded=loaded,
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        step_batches=step_batches,
        validated_epochs=_validated_epochs(chosen, args),
    )


def _load_model(
    args: ClassifyArguments, precision: Precision, accelerator: Accelerator, task: Task
) -> tuple[LoadedModel, bool]:
    """Return the model of a task, and whether its head begins at a probe."""
    loaded = task.load_model()
    check_float32_modules(loaded.model, precision)
    begun = loaded
    if not args.evaluated and begins_at_probe(args, loaded):
        print_phase("fitting the head")
        begun = with_head_of_training(args, task, loaded, accelerator)
    return task.with_exact_outputs(begun, precision), begun is not loaded


def begins_at_probe(args: TrainedPartSettings, loaded: LoadedModel) -> bool:
    """Return whether the head of a model begins at a probe, by a flag or by default.

    Raises:
        InputError: It does not, and its scale is set.
    """
    begins = args.head_init == PROBE or (args.head_init is None and loaded.begins_at_probe)
    if args.probe_scale is not None and not begins:
        raise InputError(
            f"--probe_scale {args.probe_scale:g} has no effect, because the head of this model "
            "does not begin at a probe. Add --head_init probe, or remove the flag."
        )
    return begins


def with_head_of_training(
    args: TrainedPartSettings, task: Task, loaded: LoadedModel, accelerator: Accelerator
) -> LoadedModel:
    """Return the model with a probed head; as it is if that cannot be and nobody asked for it.

    The settings must begin at the probe: `begins_at_probe`.
    """

    def share(weights: torch.Tensor) -> torch.Tensor:
        on_device = weights.float().to(accelerator.device)
        return on_device if accelerator.num_processes == 1 else broadcast(on_device)

    try:
        with numerics(resolve(BASELINE, accelerator.device)):
            return with_probed_head(
                task, loaded, accelerator.device, size=args.probe_scale, share=share
            )
    except InputError:
        if args.head_init is not None:
            raise
        return loaded


def _validated_epochs(given: ClassifyArguments, args: ClassifyArguments) -> int:
    """Return the epochs between validations: three in all where the user sets no length."""
    sets_length = given.num_train_epochs is not None or given.max_train_steps is not None
    if sets_length or args.early_stopping_patience is not None:
        return 1
    assert args.num_train_epochs is not None
    return -(-args.num_train_epochs // EPOCHS)


def _finish(
    args: ClassifyArguments,
    precision: Precision,
    accelerator: Accelerator,
    loaded: LoadedModel,
    step_batches: StepBatches,
) -> Callable[[MicroBatch], MicroBatch] | None:
    """Return what prepares micro-batches for the model, where they are collated ahead."""
    # Compiled code, too, is made for few shapes, and attention is then part of it.
    is_compiled = configured_backend(accelerator) is not None and accelerator.device.type == "cuda"
    graphs = GRAPHS.get()
    if graphs is not None and (
        is_compiled or graphs.uses_graphs(args, precision, accelerator, loaded)
    ):
        return graphs.shaping(args, loaded, step_batches)
    if not loaded.padding_free:
        return None
    return partial(PACKED_MODELS.require().with_layout, loaded.model)


def prepare_mode(
    args: ClassifyArguments,
    precision: Precision,
    task: Task,
    *,
    started: ProcessStart,
    loaded: LoadedModel | None = None,
) -> Prepared:
    """Prepare a training in one of several precisions; call it inside `separate_accelerators`.

    Args:
        args: Settings of a run, whose precision and output folder are not used.
        task: Examples, loss and outcome.
        loaded: Model, if it is already loaded; None loads it.
    """
    forget_accelerator()
    accelerator = make_accelerator(
        precision, gradient_accumulation_steps=args.gradient_accumulation_steps
    )
    check_world_size(accelerator)
    return prepare_training(args, precision, accelerator, task, started=started, loaded=loaded)


def with_fitting_micro_batches(prepared: Prepared) -> Prepared:
    """With `--auto_micro_batch`, use the largest micro-batches that fit into memory.

    The effective batch size does not change.
    """
    if not prepared.args.auto_micro_batch:
        return prepared
    step_batches = fit_micro_batches(
        prepared.accelerator,
        prepared.loaded.model,
        prepared.task.loss,
        prepared.step_batches,
        averages_weights=prepared.args.ema_decay is not None,
        state_per_weight=OPTIMIZERS[prepared.args.optim].state_per_weight,
    )
    return replace(prepared, step_batches=step_batches)
