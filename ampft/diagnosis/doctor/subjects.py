"""What the command examines: the first batches of a recipe, or the saved step of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from accelerate.utils import set_seed
from safetensors.torch import load_file
from torch import Tensor, nn

from ampft.arguments import ClassifyArguments
from ampft.data.steps import MicroBatch, StepBatch, StepBatches
from ampft.diagnosis.doctor.case import Case
from ampft.errors import InputError
from ampft.models.weights import LoadedModel
from ampft.precision.accelerator import (
    check_world_size,
    forget_accelerator,
    make_accelerator,
    numerics,
    separate_accelerators,
    training_device,
)
from ampft.precision.modes import BASELINE, canonical_mode
from ampft.precision.resolve import Precision, resolve
from ampft.runs.audit.rebuild import recorded_arguments
from ampft.runs.manifest import NONFINITE_NAME, check_files
from ampft.runs.prepare import load_task, start_clock
from ampft.runs.record import read_record
from ampft.tasks.task import Task
from ampft.training.saved_step import (
    BATCH_NAME,
    MODEL_NAME,
    STEP_NAME,
    StepStart,
    read_step,
    saved_batches,
)
from ampft.training.threads import restore_cpu_threads


@dataclass(frozen=True)
class Subject:
    """A case with its precision and its names.

    Attributes:
        case: Model in float32, batches and loss.
        precision: Precision to be examined.
        model: Name of the model.
        data: Name of the data.
        padding_free: Whether the model runs without padding.
    """

    case: Case
    precision: Precision
    model: str
    data: str
    padding_free: bool


def recipe_subject(args: ClassifyArguments, mode: str, *, steps: int) -> Subject:
    """Return the model of a recipe with its first batches.

    In a group of several processes, each has its own batches.

    Args:
        args: Settings of the recipe, whose mode and output folder are not used.
        mode: Precision to be examined.
        steps: Number of step batches.

    Raises:
        InputError: The precision is not available, or the data or the model are invalid.
    """
    start_clock()
    device = training_device(cpu=args.use_cpu)
    precision = resolve(canonical_mode(mode), device)
    with separate_accelerators():  # only its processes and micro-batches are used
        forget_accelerator()
        accelerator = make_accelerator(
            resolve(BASELINE, device), gradient_accumulation_steps=args.gradient_accumulation_steps
        )
    check_world_size(accelerator)
    restore_cpu_threads(args.cpu_threads, num_processes=accelerator.num_processes)
    with accelerator.main_process_first():
        task = load_task(args)
    loaded = _loaded(task, args.seed, accelerator.device)
    step_batches = StepBatches.for_process(
        accelerator,
        task.examples("train"),
        batch_size=args.per_device_train_batch_size,
        seed=args.seed,
        padded=not loaded.padding_free,
    )
    case = _case(task, loaded.model, list(step_batches.epoch(0, stop=steps)))
    return Subject(case, precision, loaded.name, task.data.name, loaded.padding_free)


def run_subject(folder: Path, flags: Sequence[str], *, steps: int) -> Subject:
    """Return the first saved step of a run, to be replayed, or its first batches if it has none.

    Args:
        folder: Output folder of a run, or the folder of one of its saved steps.
        flags: Flags of the recipe that replace recorded settings, such as paths of moved files.
        steps: Number of step batches, if the run saved no step.

    Raises:
        InputError: The folder is not that of a run, or its data or model are missing.
    """
    run, step = _saved_step(folder)
    record = read_record(run)
    args = recorded_arguments(record, flags)
    args = replace(args, use_cpu=args.use_cpu or record.topology.device == "cpu")
    if step is None:
        return recipe_subject(args, record.precision.requested, steps=steps)
    names = [name for name in record.files if (run / name).parent == step]
    check_files(run, record.files, names)
    return _step_subject(args, run, step)


def _step_subject(args: ClassifyArguments, run: Path, step: Path) -> Subject:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            f"RUN {run}: the saved step is replayed in one process, with the examples of all "
            "processes that it had. Start ampft doctor without torchrun."
        )
    start_clock()
    device = training_device(cpu=args.use_cpu)
    restore_cpu_threads(args.cpu_threads)
    task = load_task(args)
    loaded = _loaded(task, args.seed, device)
    loaded.model.load_state_dict(load_file(step / MODEL_NAME))
    saved = read_step(step)
    precision = resolve(saved.mode, device)
    tensors = load_file(step / BATCH_NAME)
    parts = [saved_batches(saved, process, tensors) for process in range(len(saved.processes))]
    case = _case(task, loaded.model, [step_batch for step_batch, _ in parts])
    starts = _starts(case, precision, parts)
    case = replace(case, begin=lambda index: starts[index].restore(device))
    return Subject(case, precision, loaded.name, f"step {saved.step} of {run}", loaded.padding_free)


def _loaded(task: Task, seed: int, device: torch.device) -> LoadedModel:
    set_seed(seed)
    loaded = task.load_model()
    loaded.model.to(device).train()
    return loaded


def _case(task: Task, model: nn.Module, step_batches: Sequence[StepBatch]) -> Case:
    weights = {
        id(micro_batch): step_batch.effective_weight
        for step_batch in step_batches
        for micro_batch in step_batch
    }
    micro_batches = [micro_batch for step_batch in step_batches for micro_batch in step_batch]

    def loss(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        return task.loss(model, micro_batch) / weights[id(micro_batch)]

    return Case(model, micro_batches, loss)


def _starts(
    case: Case, precision: Precision, parts: Sequence[tuple[StepBatch, StepStart]]
) -> list[StepStart]:
    """Return the random state before each micro-batch, by repeating the step."""
    starts: list[StepStart] = []
    with numerics(precision):
        for step_batch, start in parts:
            start.restore(case.device)
            for micro_batch in step_batch:
                starts.append(StepStart.now(case.device))
                case.differentiate(micro_batch, precision)
    case.model.zero_grad(set_to_none=True)
    return starts


def _saved_step(folder: Path) -> tuple[Path, Path | None]:
    """Return the folder of a run, and that of its first saved step."""
    if (folder / STEP_NAME).is_file():
        return folder.parents[1], folder
    if not folder.is_dir():
        raise InputError(
            f"RUN {folder}: this is not a folder. Name the --output_dir of a run, or pass "
            "--mixed_precision M -- and the flags of a training."
        )
    steps = (folder / NONFINITE_NAME).glob(f"step-*/{STEP_NAME}")
    numbers = {int(path.parent.name.rpartition("-")[2]): path.parent for path in steps}
    return folder, numbers[min(numbers)] if numbers else None
