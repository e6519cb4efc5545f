"""What the command examines: the first batches of a recipe, or the saved step of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from accelerate.utils import set_seed
from safetensors.torch import load_file
from torch import Tensor, nn

from ampft.arguments import ClassifyArguments
from ampft.data.steps import MicroBatch, StepBatch, StepBatches
from ampft.diagnosis.doctor.case import Case, Trial
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
from ampft.precision.resolve import resolve
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


def recipe_case(args: ClassifyArguments, mode: str, *, steps: int, trial_steps: int) -> Case:
    """Return the model of a recipe with its first batches.

    In a group of several processes, each has its own batches.

    Args:
        args: Settings of the recipe, whose mode and output folder are not used.
        mode: Precision to be examined.
        steps: Number of step batches.
        trial_steps: Number of optimizer steps of the trial, which trains as the recipe does.

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
    args = args.with_learning_rate(loaded.model.config)
    first = list(step_batches.epoch(0, stop=steps))
    total_steps = args.max_train_steps or args.num_train_epochs * len(step_batches)
    trial = Trial(
        steps=min(trial_steps, total_steps),
        optimizer=args.optimizer_settings(),
        schedule=args.schedule_settings(),
        total_steps=total_steps,
        max_grad_norm=args.max_grad_norm or None,
        step_batches=[step_batch.micro_batches for step_batch in first],
    )
    return Case(
        loaded.model,
        [micro_batch for step_batch in first for micro_batch in step_batch],
        _MeanLoss(task, first),
        precision,
        trial=trial,
        model_name=loaded.name,
        data_name=task.data.name,
        padding_free=loaded.padding_free,
    )


def run_case(folder: Path, flags: Sequence[str], *, steps: int, trial_steps: int) -> Case:
    """Return the first saved step of a run, to be replayed, or its first batches if it has none.

    Args:
        folder: Output folder of a run, or the folder of one of its saved steps.
        flags: Flags of the recipe that replace recorded settings, such as paths of moved files.
        steps: Number of step batches, if the run saved no step, and of the trial.
        trial_steps: Number of optimizer steps of the trial, which repeats the run from its start.

    Raises:
        InputError: The folder does not belong to a run, or its data or model are missing.
    """
    run, step = _saved_step(folder)
    record = read_record(run)
    args = recorded_arguments(record, flags)
    args = replace(args, use_cpu=args.use_cpu or record.topology.device == "cpu")
    if step is not None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError(
            f"RUN {run}: the saved step is replayed in one process, with the examples of all "
            "processes that it had. Start ampft doctor without torchrun."
        )
    start = recipe_case(args, record.precision.requested, steps=steps, trial_steps=trial_steps)
    if step is None:
        return start
    names = [name for name in record.files if (run / name).parent == step]
    check_files(run, record.files, names)
    return _with_saved_step(start, step, run)


def _with_saved_step(start: Case, step: Path, run: Path) -> Case:
    """Return the case of a saved step, whose trial begins where the run began."""
    initial = {name: tensor.clone() for name, tensor in start.model.state_dict().items()}
    start.model.load_state_dict(load_file(step / MODEL_NAME))
    saved, tensors = read_step(step), load_file(step / BATCH_NAME)
    parts = [saved_batches(saved, process, tensors) for process in range(len(saved.processes))]
    assert isinstance(start.loss, _MeanLoss)
    start.loss.add([step_batch for step_batch, _ in parts])
    case = replace(
        start,
        batches=[batch for step_batch, _ in parts for batch in step_batch],
        data_name=f"step {saved.step} of {run}",
        trial=replace(start.trial, weights=initial),
    )
    starts = _starts(case, parts)
    return replace(case, begin=lambda index: starts[index].restore(case.device))


def _loaded(task: Task, seed: int, device: torch.device) -> LoadedModel:
    set_seed(seed)
    loaded = task.load_model()
    loaded.model.to(device).train()
    return loaded


class _MeanLoss:
    """The mean loss of a micro-batch's share of its step.

    Args:
        task: Task.
        step_batches: Steps of the micro-batches.
    """

    def __init__(self, task: Task, step_batches: Sequence[StepBatch]) -> None:
        self._task = task
        self._weights: dict[int, float] = {}
        self.add(step_batches)

    def add(self, step_batches: Sequence[StepBatch]) -> None:
        """Add steps."""
        for step_batch in step_batches:
            for micro_batch in step_batch:
                self._weights[id(micro_batch)] = step_batch.effective_weight

    def __call__(self, model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        return self._task.loss(model, micro_batch) / self._weights[id(micro_batch)]


def _starts(case: Case, parts: Sequence[tuple[StepBatch, StepStart]]) -> list[StepStart]:
    """Return the random state before each micro-batch, by repeating the step."""
    starts: list[StepStart] = []
    with numerics(case.precision):
        for step_batch, start in parts:
            start.restore(case.device)
            for micro_batch in step_batch:
                starts.append(StepStart.now(case.device))
                case.differentiate(micro_batch)
    case.model.zero_grad(set_to_none=True)
    return starts


def _saved_step(folder: Path) -> tuple[Path, Path | None]:
    """Return the folder of a run, and the folder of its first saved step."""
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
