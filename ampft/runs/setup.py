"""What a run is made of, and the first version of its record."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType, broadcast_object_list
from torch import nn

from ampft.arguments import ClassifyArguments
from ampft.arguments.embedded import EMBEDDED
from ampft.data.steps import StepBatches
from ampft.errors import InputError
from ampft.evaluation.float32 import check_float32_possible
from ampft.precision.resolve import Precision
from ampft.text.terminal import quiet_libraries
from ampft.runs.folder import check_output_folder
from ampft.machine import hardware, resident_peak
from ampft.runs.memory import PeakMemory, device_memory, process_memory
from ampft.runs.record import (
    DataPart,
    ModelPart,
    RunRecord,
    StepsPart,
    TopologyPart,
    precision_part,
)
from ampft.tasks.task import (Task)
from ampft.models.weights import LoadedModel
from ampft.precision.tensor_census import check_storage
from ampft.precision.accelerator import refuse_compiled_packing
from ampft.training.attempts import Attempts
from ampft.training.fitting import fitted
from ampft.models.weights import weights_hash
from ampft.training.utilisation import Utilisation, measure_utilisation

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class Begun:
    """The state of the process after the imports and before data and model.

    Attributes:
        seconds: `time.perf_counter()`.
        memory: Peak resident set in bytes; None where it cannot be read.
    """

    seconds: float
    memory: int | None


def begin() -> Begun:
    """Silence what libraries print around a run, and start its clock."""
    quiet_libraries()
    return Begun(time.perf_counter(), resident_peak())


@dataclass(frozen=True)
class Setup:
    """Everything that was resolved before the first step.

    Attributes:
        begun: When the program began, and its memory then.
        args: What the user set.
        accelerator: Built for `precision`.
        precision: Resolved for this device.
        task: Of the data.
        loaded: The model before training.
        step_batches: Of the training split.
        total_steps: Optimizer steps planned.
    """

    begun: Begun
    args: ClassifyArguments
    accelerator: Accelerator
    precision: Precision
    task: Task
    loaded: LoadedModel
    step_batches: StepBatches
    total_steps: int


def check_setup(setup: Setup) -> None:
    """Refuse settings that the data cannot serve, before anything is written.

    Raises:
        InputError: There is nothing to report on, to stop early by, or to count words in; or the
            weights are in another dtype than the mode stores them in; or compiling was asked for.
    """
    args, data = setup.args, setup.task.data
    check_storage(setup.loaded.model, setup.precision.storage_dtype)
    if setup.loaded.padding_free:
        refuse_compiled_packing(setup.accelerator)
    if not {"validation", "test"} & set(data.splits):
        raise InputError(
            "--validation_fraction 0 and --test_fraction 0 leave nothing to report on. Give one of "
            "them a share above 0, or name a --validation_file or a --test_file."
        )
    if args.early_stopping_patience and "validation" not in data.splits:
        raise InputError(
            f"--early_stopping_patience {args.early_stopping_patience}: there is no validation "
            "split to stop by. Give --validation_fraction a share above 0."
        )
    if args.baseline and data.kind != "text":
        raise InputError(f"--baseline: counts words; {data.name} has {data.kind}s. Leave it away.")
    if args.evaluate_fp32:
        check_float32_possible(setup.accelerator, setup.precision)
    if args.perturb_initial_weights and setup.accelerator.distributed_type == DistributedType.FSDP:
        raise InputError(
            "--perturb_initial_weights: FSDP shards the weights, and every process would move its "
            "own part alone. Compare without FSDP."
        )


def with_fitting_micro_batches(setup: Setup) -> Setup:
    """Return a setup whose micro-batches are the largest that fit, where that is asked for."""
    if not setup.args.auto_micro_batch:
        return setup
    step_batches = fitted(
        setup.accelerator, setup.loaded.model, setup.task.loss, setup.step_batches
    )
    return replace(setup, step_batches=step_batches)


def make_attempts(setup: Setup, write: Callable[[str], None]) -> Attempts:
    """Return what cuts the steps of a run again that run out of memory, or says why it does not."""
    if not setup.args.auto_micro_batch:
        advice = "Add --auto_micro_batch: smaller micro-batches, the same effective batch."
    else:
        advice = (
            "Several processes communicate in the backward pass, so that a step cannot be repeated "
            "in smaller micro-batches. Begin with smaller ones: raise "
            "--gradient_accumulation_steps, lower --per_device_train_batch_size by as much, and "
            "leave --auto_micro_batch away."
        )
    return Attempts(
        setup.loaded.model,
        setup.step_batches,
        repeats=setup.args.auto_micro_batch and setup.accelerator.num_processes == 1,
        advice=advice,
        write=write,
    )


def choose_folder(args: ClassifyArguments, mode: str) -> Path:
    """Return the output folder, the same on every process; nothing is created yet.

    Raises:
        InputError: `--output_dir` holds something already, or cannot be made.
    """
    # The main process looks alone: two that try the lock of a folder would refuse each other.
    chosen = [_choose_folder(args, mode) if PartialState().is_main_process else None]
    broadcast_object_list(chosen)
    assert chosen[0] is not None
    return chosen[0]


def _choose_folder(args: ClassifyArguments, mode: str) -> Path:
    if args.output_dir is not None:
        check_output_folder(args.output_dir, overwrite=args.overwrite_output_dir)
        _check_creatable(Path(args.output_dir))
        return Path(args.output_dir)
    return next(path for path in _default_folders(args, mode) if not path.exists())


def claim_folder(setup: Setup, chosen: Path) -> Path:
    """Make the folder of a run that names none; return it, the same on every process.

    Runs that begin at once choose the same name. Whoever makes the folder has it, the others take
    the next; nothing is made before a run begins, so that a refused one leaves none behind.

    Args:
        setup: Of the run.
        chosen: What `choose_folder` returned; it stands where `--output_dir` was given.
    """
    if setup.args.output_dir is not None:
        return chosen
    main = setup.accelerator.is_main_process
    claimed = [_claim_folder(setup.args, setup.precision.mode) if main else None]
    broadcast_object_list(claimed)
    folder = claimed[0] or chosen
    where = setup.accelerator.project_configuration
    where.project_dir = where.logging_dir = str(folder)  # where trackers write
    return folder


def _claim_folder(args: ClassifyArguments, mode: str) -> Path | None:
    for path in _default_folders(args, mode):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # whoever opens the folder has the message
            return None
        return path
    return None


def _default_folders(args: ClassifyArguments, mode: str) -> Iterator[Path]:
    source = args.dataset_name or args.train_file or "data"
    stem = f"{mode}-{Path(source).stem}-seed{args.seed}"
    return (Path("runs", stem if n == 1 else f"{stem}-{n}") for n in range(1, sys.maxsize))


def _check_creatable(folder: Path) -> None:
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(
            f"--output_dir {folder}: cannot be written, because {nearest} is no folder that this "
            "user may write to. Name another one."
        )


def first_record(setup: Setup) -> RunRecord:
    """Return the record of a run that has not begun."""
    args, data, model = setup.args, setup.task.data, setup.loaded.model
    device = setup.accelerator.device
    parameters = list(model.parameters())
    gpus = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
    return RunRecord(
        status="running",
        arguments=asdict(args),
        command=sys.argv,
        label_names=setup.task.label_names,
        data=DataPart(
            name=data.name,
            kind=data.kind,
            fingerprints=data.fingerprints,
            examples={name: len(rows) for name, rows in data.splits.items()},
            notes=(*data.notes, *setup.task.notes),
            input_columns=data.input_columns,
            hub_id=None if args.dataset_name in EMBEDDED else _hub_id(args.dataset_name),
        ),
        model=ModelPart(
            name=setup.loaded.name,
            architecture=type(model).__name__,
            parameters=sum(p.numel() for p in parameters),
            trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
            initial_weights_sha256=setup.loaded.float32_sha256 or weights_hash(model),
            hub_id=_hub_id(setup.loaded.name),
            perturbed=args.perturb_initial_weights,
        ),
        precision=precision_part(setup.precision.mode, setup.precision),
        topology=TopologyPart(
            num_processes=setup.accelerator.num_processes,
            cpu_threads=torch.get_num_threads(),
            device=device.type,
        ),
        steps=StepsPart(
            total=setup.total_steps,
            effective_batch_size=setup.step_batches.effective_batch_size,
            micro_batches=setup.step_batches.micro_batches,
        ),
        hardware=hardware(gpus),
    )


def peak_memory(setup: Setup) -> PeakMemory:
    """Return the peak so far, of the device that trains."""
    device = setup.accelerator.device
    if device.type == "cuda":
        return device_memory(
            allocated=torch.cuda.max_memory_allocated(device),
            reserved=torch.cuda.max_memory_reserved(device),
        )
    return process_memory(setup.begun.memory)


def utilisation(setup: Setup, model: nn.Module, tokens_per_second: float) -> Utilisation:
    """Measure the rate of matrix products, and what share of it the training reached."""
    # An image has the length one, whatever its patches.
    has_tokens = setup.task.data.kind == "text"
    return measure_utilisation(
        setup.accelerator.unwrap_model(model, keep_torch_compile=False),
        setup.precision,
        setup.accelerator.device,
        tokens_per_second=tokens_per_second if has_tokens else None,
        num_processes=setup.accelerator.num_processes,
    )


def _hub_id(name: str | None) -> str | None:
    """Return `name` when it has the form of a hub id and is no folder here."""
    if name is None or not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or Path(name).exists():
        return None
    return name
