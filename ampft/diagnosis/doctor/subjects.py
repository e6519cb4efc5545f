"""What the command examines: the first batches of a recipe, or the saved step of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from accelerate.utils import set_seed
from safetensors.torch import load_file
from torch import Tensor, nn

from ampft.arguments import ClassifyArguments
from ampft.data.steps import MicroBatch, StepBatch, StepBatches
from ampft.diagnosis.doctor.case import FirstSteps, Subject
from ampft.errors import InputError
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
from ampft.training.saved_step import (
    BATCH_NAME,
    MODEL_NAME,
    STEP_NAME,
    StepStart,
    read_step,
    saved_batches,
)
from ampft.training.threads import restore_cpu_threads


def recipe_case(
    args: ClassifyArguments, mode: str, *, steps: int, trial_steps: int, saved: Path | None = None
) -> Subject:
    """Return the model of a recipe with its first batches, or with a saved step.

    In a group of several processes, each has its own batches.

    Args:
        args: Settings of the recipe, whose mode and output folder are not used.
        mode: Precision to be examined.
        steps: Number of step batches.
        trial_steps: Number of optimizer steps of the trial, which trains as the recipe does.
        saved: Folder of a step that a run saved; its weights and examples are examined, and the
            trial begins where the run began. None examines the first batches.

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
    set_seed(args.seed)
    loaded = task.load_model()
    model = loaded.model.to(accelerator.device).train()
    step_batches = StepBatches.for_process(
        accelerator,
        task.examples("train"),
        batch_size=args.per_device_train_batch_size,
        seed=args.seed,
        padded=not loaded.padding_free,
    )
    args = args.with_learning_rate(model.config)
    first = list(step_batches.epoch(0, stop=steps))
    total_steps = args.max_train_steps or args.num_train_epochs * len(step_batches)
    trial = FirstSteps(
        steps=min(trial_steps, total_steps),
        optimizer=args.optimizer_settings(),
        schedule=args.schedule_settings(),
        total_steps=total_steps,
        max_grad_norm=args.max_grad_norm or None,
        step_batches=[step_batch.micro_batches for step_batch in first],
    )
    effective_weights: dict[int, float] = {}

    def mean_loss(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        return task.loss(model, micro_batch) / effective_weights[id(micro_batch)]

    case = Subject(
        model,
        [micro_batch for step_batch in first for micro_batch in step_batch],
        mean_loss,
        precision,
        trial=trial,
        model_name=loaded.name,
        data_name=task.data.name,
        padding_free=loaded.padding_free,
    )
    if saved is not None:
        initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(load_file(saved / MODEL_NAME))
        saved_step, tensors = read_step(saved), load_file(saved / BATCH_NAME)
        processes = range(len(saved_step.processes))
        parts = [saved_batches(saved_step, process, tensors) for process in processes]
        first += [step_batch for step_batch, _ in parts]
        case = replace(
            case,
            batches=[micro_batch for step_batch, _ in parts for micro_batch in step_batch],
            data_name=f"step {saved_step.step} of {saved.parents[1]}",
            trial=replace(trial, weights=initial),
        )
    for step_batch in first:
        weight = step_batch.effective_weight
        effective_weights |= {id(micro_batch): weight for micro_batch in step_batch}
    return case if saved is None else _with_random_states(case, parts)


def run_case(folder: Path, flags: Sequence[str], *, steps: int, trial_steps: int) -> Subject:
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
    if step is not None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InputError(
                f"RUN {run}: the saved step is replayed in one process, with the examples of all "
                "processes that it had. Start ampft doctor without torchrun."
            )
        names = [name for name in record.files if (run / name).parent == step]
        check_files(run, record.files, names)
    mode = record.precision.requested
    return recipe_case(args, mode, steps=steps, trial_steps=trial_steps, saved=step)


def _with_random_states(case: Subject, parts: Sequence[tuple[StepBatch, StepStart]]) -> Subject:
    """Return a case of a saved step, each micro-batch with its random state in that step."""
    starts: list[StepStart] = []
    with numerics(case.precision):
        for step_batch, start in parts:
            start.restore(case.device)
            for micro_batch in step_batch:
                starts.append(StepStart.now(case.device))
                case.differentiate(micro_batch)
    case.model.zero_grad(set_to_none=True)
    return replace(case, begin=lambda index: starts[index].restore(case.device))


def _saved_step(folder: Path) -> tuple[Path, Path | None]:
    """Return the folder of a run, and the folder of its first saved step."""
    if (folder / STEP_NAME).is_file():
        return folder.parents[1], folder
    if not folder.is_dir():
        raise InputError(
            f"RUN {folder}: this is not a folder. Pass the --output_dir of a run, or pass "
            "--mixed_precision M -- and the flags of a training."
        )
    steps = (folder / NONFINITE_NAME).glob(f"step-*/{STEP_NAME}")
    numbers = {int(path.parent.name.rpartition("-")[2]): path.parent for path in steps}
    return folder, numbers[min(numbers)] if numbers else None
