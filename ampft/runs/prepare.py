"""Builds everything that a training needs before its first step."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import set_seed
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from ampft.arguments import ClassifyArguments
from ampft.data.load import load_data
from ampft.data.steps import StepBatches, varied_ids
from ampft.errors import InputError
from ampft.evaluation.baseline import check_baseline
from ampft.evaluation.float32 import check_float32_possible
from ampft.files import check_disk_space
from ampft.machine import resident_peak
from ampft.metrics.sums import Metric
from ampft.models.packing.install import check_packing, evaluation_mode
from ampft.models.weights import LoadedModel, cast_weights, weights_size
from ampft.precision.accelerator import (
    check_world_size,
    forget_accelerator,
    make_accelerator,
    numerics,
    refuse_compiled_packing,
    training_device,
    verify_prepared,
)
from ampft.precision.executed import check_storage, dtype_name
from ampft.precision.float32_modules import check_float32_modules
from ampft.precision.resolve import Precision, requested_mode, resolve
from ampft.precision.sharding import check_equal_weights, is_sharded, prepare_training_objects
from ampft.runs.folder import choose_folder
from ampft.runs.manifest import earlier_results
from ampft.runs.resume_point import ResumePoint, find_resume_point
from ampft.tasks.task import Task, make_task
from ampft.text.numbers import counted, in_epochs
from ampft.text.terminal import labelled, quiet_libraries
from ampft.training.auto_micro_batch import fit_micro_batches
from ampft.training.checkpoints.interval import parse_interval
from ampft.training.checkpoints.store import CheckpointStore
from ampft.training.optimizer import (
    ADAMW_MOMENTS,
    default_learning_rate,
    make_optimizer,
    make_schedule,
)
from ampft.training.threads import restore_cpu_threads
from ampft.training.trackers import installed_trackers

if TYPE_CHECKING:
    from accelerate import Accelerator
    from datasets import DatasetDict


@dataclass(frozen=True)
class ProcessStart:
    """Time and memory of the process after the imports, before data and model are loaded.

    Attributes:
        seconds: `time.perf_counter()`.
        memory: Peak resident set in bytes; None if it cannot be read.
    """

    seconds: float
    memory: int | None


@dataclass(frozen=True)
class Prepared:
    """The components of a training; build them with `prepare`.

    Attributes:
        started: Time and memory at the start of the process.
        args: Settings of the run.
        output_dir: Folder of the results; None writes nothing.
        precision: Precision resolved for this device.
        accelerator: Accelerator for `precision`.
        task: Examples, loss and outcome.
        loaded: Model as loaded, before `accelerator.prepare`.
        model: Prepared model.
        optimizer: Prepared AdamW.
        schedule: Learning rate schedule. It is not prepared, because Accelerate would advance it
            once per process.
        step_batches: Step batches of the training split. They are not prepared, because Accelerate
            would shard them a second time.
        total_steps: Optimizer steps of the whole training.
        resume_point: Where the training begins with `--resume_from_checkpoint`.
    """

    started: ProcessStart
    args: ClassifyArguments
    output_dir: Path | None
    precision: Precision
    accelerator: Accelerator
    task: Task
    loaded: LoadedModel
    model: nn.Module
    optimizer: Any
    schedule: LRScheduler
    step_batches: StepBatches
    total_steps: int
    resume_point: ResumePoint | None = None

    @property
    def resumes(self) -> bool:
        """Whether the training continues from a checkpoint."""
        return self.resume_point is not None and self.resume_point.checkpoint is not None

    @property
    def final_split(self) -> str:
        """The split of the final report: test, or validation if there is no test split."""
        return "test" if "test" in self.task.data.splits else "validation"

    @property
    def selects_best(self) -> bool:
        """Whether the best weights on the validation split are kept."""
        return "validation" in self.task.data.splits and self.args.load_best_model_at_end

    @property
    def can_resume(self) -> bool:
        """Whether an exact resume is proven for the precision."""
        return not self.precision.properties.replaces_layers

    @property
    def best_metric(self) -> Metric:
        """The metric of the validation split that selects the best weights."""
        metrics = self.task.problem.metrics
        return metrics[self.args.metric_for_best_model or next(iter(metrics))]


def prepare(args: ClassifyArguments, data: DatasetDict | None = None) -> Prepared:
    """Build accelerator, data, task, model, batches, optimizer and schedule from the settings.

    Args:
        args: Settings of a run.
        data: Data in memory, by split; None reads the data that `args` names.

    Raises:
        InputError: The device does not support the precision, or the data, the model, the output
            folder, the checkpoint or a combination of settings is invalid. Nothing has been
            written.
        AlreadyFinished: The run that would continue has finished.
    """
    started = start_clock()
    device = training_device(cpu=args.use_cpu)
    precision = resolve(requested_mode(args.mixed_precision, os.environ), device)
    point = find_resume_point(args, precision.mode)
    replaces = point is not None and (point.is_inside or point.replaces_run)
    output_dir = choose_folder(args, precision.mode, replaces=replaces)
    accelerator = make_accelerator(
        precision,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        log_with=installed_trackers(args.report_to) if args.with_tracking else None,
        project_dir=output_dir,
    )
    check_world_size(accelerator)
    restore_cpu_threads(args.cpu_threads, num_processes=accelerator.num_processes)
    with accelerator.main_process_first():  # only one process downloads files
        task = load_task(args, data)
    prepared = prepare_training(
        args, precision, accelerator, task, started=started, output_dir=output_dir
    )
    check_prepared(prepared)
    _check_disk_space(prepared)
    return replace(prepared, resume_point=point)


def start_clock() -> ProcessStart:
    """Silence third-party libraries, and return the time and memory at the start."""
    quiet_libraries()
    return ProcessStart(time.perf_counter(), resident_peak())


def load_task(args: ClassifyArguments, data: DatasetDict | None = None) -> Task:
    """Load and check the data, and prepare its examples for the model.

    Raises:
        InputError: The data or the model is invalid.
    """
    return make_task(load_data(args.data_request(), data), args.task_settings())


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
        args: Settings of a run.
        precision: Precision resolved for this device.
        accelerator: Accelerator for `precision`.
        task: Examples, loss and outcome.
        started: Time and memory at the start of the process.
        output_dir: Folder of the results; None writes nothing.
        loaded: Model, if it is already loaded; None loads it.
    """
    set_seed(args.seed)
    loaded = loaded or task.load_model()
    check_float32_modules(loaded.model, precision)
    loaded = cast_weights(loaded, precision)
    if args.learning_rate is None:
        rate = default_learning_rate(getattr(loaded.model.config, "hidden_size", None))
        args = replace(args, learning_rate=rate)
    step_batches = StepBatches.for_process(
        accelerator,
        task.examples("train"),
        batch_size=args.per_device_train_batch_size,
        seed=args.seed,
        padded=not loaded.padding_free,
        num_workers=args.dataloader_num_workers,
    )
    total_steps = args.max_train_steps or args.num_train_epochs * len(step_batches)
    optimizer = make_optimizer(loaded.model, args.optimizer_settings(), precision)
    schedule = make_schedule(optimizer, total_steps, args.schedule_settings())
    model, optimizer = prepare_training_objects(accelerator, loaded.model, optimizer)
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
        total_steps=total_steps,
    )


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
        precision: Precision resolved for this device.
        task: Examples, loss and outcome.
        started: Time and memory at the start of the process.
        loaded: Model, if it is already loaded; None loads it.
    """
    forget_accelerator()
    accelerator = make_accelerator(
        precision, gradient_accumulation_steps=args.gradient_accumulation_steps
    )
    check_world_size(accelerator)
    return prepare_training(args, precision, accelerator, task, started=started, loaded=loaded)


def check_prepared(prepared: Prepared) -> None:
    """Reject settings that do not fit the data or the model, before anything is written.

    Raises:
        InputError: A split that a setting needs is missing, the weights do not have the storage
            dtype of the precision, or a setting does not work with this task, model or launcher.
    """
    args, data, accelerator = prepared.args, prepared.task.data, prepared.accelerator
    verify_prepared(accelerator, prepared.precision)
    check_equal_weights(accelerator, prepared.loaded.float32_sha256)
    check_storage(prepared.loaded.model, prepared.precision.storage_dtype)
    if prepared.loaded.padding_free:
        refuse_compiled_packing(accelerator)
    _check_model_runs(prepared)
    if not {"validation", "test"} & set(data.splits):
        raise InputError(
            "--validation_fraction 0 and --test_fraction 0 leave no examples for the report. Use a "
            "fraction above 0 for one of them, or add a --validation_file or a --test_file."
        )
    for name in ("early_stopping_patience", "eval_steps"):
        value = getattr(args, name)
        if value and "validation" not in data.splits:
            raise InputError(
                f"--{name} {value}: the flag needs a validation split. Use a --validation_fraction "
                "above 0, or remove the flag."
            )
    _check_metric(args.metric_for_best_model, prepared.task)
    if args.baseline:
        check_baseline(data)
    if args.evaluate_fp32:
        check_float32_possible(prepared.precision)
    if args.checkpointing_steps or args.resume_from_checkpoint:
        _check_checkpoints_possible(prepared)


def _check_disk_space(prepared: Prepared) -> None:
    """Check that the weights and checkpoints that the run will save fit on the disk."""
    folder, weights = prepared.output_dir, weights_size(prepared.loaded.model)
    assert folder is not None, "prepare() chooses a folder"
    args = prepared.args
    checkpoints = parse_interval(args.checkpointing_steps).most_at_once(
        prepared.total_steps, len(prepared.step_batches), args.checkpoint_total_limit
    )
    copies = 2 if prepared.selects_best else 1  # the best weights are loaded before they are saved
    missing = max(0, checkpoints - len(CheckpointStore(folder).complete()))
    copies += missing * (1 + ADAMW_MOMENTS)
    purpose = "the run"
    if missing:
        purpose += f" with {counted(missing, 'checkpoint')} (--checkpoint_total_limit)"
    earlier = sum(path.stat().st_size for path in earlier_results(folder))
    check_disk_space(folder, copies * weights, purpose, reclaimable=earlier)


def _check_checkpoints_possible(prepared: Prepared) -> None:
    if not prepared.can_resume:
        raise InputError(
            f"--checkpointing_steps and --resume_from_checkpoint are not supported with "
            f"{prepared.precision.mode}, for which an exact resume is not proven. Remove the flags."
        )


def _check_model_runs(prepared: Prepared) -> None:
    """Try the model where its kernels are not those of loading: float32 on a CPU."""
    accelerator, precision, task = prepared.accelerator, prepared.precision, prepared.task
    if accelerator.device.type == "cpu" and precision.compute_dtype == torch.float32:
        return
    examples = task.examples("train")
    batch = examples.collate(varied_ids(examples.lengths))
    with numerics(precision):
        if prepared.loaded.padding_free:
            inputs = {k: v.to(accelerator.device) for k, v in batch.items() if k != "labels"}
            check_packing(prepared.model, accelerator.unwrap_model(prepared.model), inputs)
            return
        try:
            with evaluation_mode(prepared.model):
                task.logits(prepared.model, batch)
        except RuntimeError as error:
            raise InputError(
                f"model: {type(prepared.loaded.model).__name__} cannot run in {precision.mode} "
                f"({error}). Use --mixed_precision fp32, or another model."
            ) from error


def _check_metric(name: str | None, task: Task) -> None:
    metrics = task.problem.metrics
    if name is not None and name not in metrics:
        raise InputError(
            f"--metric_for_best_model: received {name!r}, which is not a metric of the task "
            f"{task.name}. Choose from {', '.join(metrics)}."
        )


def with_fitting_micro_batches(prepared: Prepared) -> Prepared:
    """With `--auto_micro_batch`, use the largest micro-batches that fit into memory.

    The effective batch size does not change.
    """
    if not prepared.args.auto_micro_batch:
        return prepared
    step_batches = fit_micro_batches(
        prepared.accelerator, prepared.loaded.model, prepared.task.loss, prepared.step_batches
    )
    return replace(prepared, step_batches=step_batches)


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
    trusts_code = prepared.args.trust_remote_code
    return [
        labelled("device", _describe_device(prepared.accelerator)),
        labelled("precision", f"{precision.mode}, {precision.execution}: {precision.reason}"),
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
            f"learning rate {prepared.args.learning_rate:g}, {prepared.args.lr_scheduler_type}",
        ),
    ]


def _describe_device(accelerator: Accelerator) -> str:
    device = accelerator.device
    sharded = ", weights sharded (FSDP2)" * is_sharded(accelerator)
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} x {accelerator.num_processes}{sharded}"
    if device.type == "cpu":
        processes = f", {accelerator.num_processes} processes" * (accelerator.num_processes > 1)
        return f"CPU, {counted(torch.get_num_threads(), 'thread')}{processes}{sharded}"
    return f"{device.type} x {accelerator.num_processes}{sharded}"
