"""Measure the yardstick: `measure_yardstick`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import PartialState
from accelerate.utils import set_seed
from torch import nn
from tqdm import tqdm

from ampft.arguments import ClassifyArguments
from ampft.data.steps import StepBatch, StepBatches
from ampft.diagnosis.yardstick.figures import (
    INITIAL,
    CheckpointFigures,
    GradientNoise,
    ModeFigures,
    Yardstick,
    YardstickSettings,
)
from ampft.diagnosis.yardstick.gradients import (
    Float64Gradients,
    ModeGradients,
    Source,
)
from ampft.diagnosis.yardstick.sums import Blocks, ErrorSums, NoiseSums, blocks_of
from ampft.errors import InputError
from ampft.models.pretrained import CHECKPOINT, load_saved
from ampft.models.weights import LoadedModel
from ampft.precision.accelerator import separate_accelerators, training_device
from ampft.precision.modes import canonical_mode
from ampft.precision.resolve import Precision, resolve
from ampft.runs.history import BAR
from ampft.runs.prepare import load_task, prepare_mode, start_clock
from ampft.runs.record import RunRecord, read_record
from ampft.tasks.task import Task
from ampft.text.escaping import inert
from ampft.training.threads import restore_cpu_threads

# Of a micro-batch of the reference: sorted by length, so few examples have little padding.
REFERENCE_EXAMPLES = 4
Pairs = Iterable[tuple[StepBatch, StepBatch]]


def measure_yardstick(
    args: ClassifyArguments,
    modes: Sequence[str],
    *,
    batches: int = 32,
    checkpoints: Sequence[str | os.PathLike[str]] = (),
) -> Yardstick:
    """Measure the gradient error of `modes` beside the noise of the step batches.

    Meant for a process of its own, like a run: it seeds, and sets threads and the TF32 policy.

    Args:
        args: Of `recipes/classify.py`; the mode that they name is not used.
        modes: Of `ampft.MODES`.
        batches: Step batches, at least 2: the first ones of epoch 0 (then of epoch 1, ...), short
            ones left out. The same for all modes and weights.
        checkpoints: Folders of finished runs with the same architecture and labels.

    Raises:
        InputError: A mode is unknown, named twice or not available; `batches` is below 2; a folder
            is no finished run, or of another model; the data have fewer than two step batches.
    """
    started = start_clock()
    if batches < 2:
        raise InputError(f"--batches {batches}: has to be 2 or more; noise shows between batches.")
    names = _distinct(modes)
    device = training_device(cpu=args.use_cpu)
    if PartialState().num_processes > 1:
        raise InputError("the yardstick computes in one process. Start it without a launcher.")
    precisions = [resolve(name, device) for name in names]
    _refuse_16_bit_weights(precisions)
    folders = [Path(folder) for folder in checkpoints]
    records = [check_record(folder) for folder in folders]
    threads = restore_cpu_threads(args.cpu_threads)
    task = load_task(args)
    with separate_accelerators():
        sources: dict[str, ModeGradients] = {}
        first: LoadedModel | None = None
        for precision in precisions:
            loaded = _load(task, args.seed, first)
            first = first or loaded
            prepared = prepare_mode(args, precision, task, started=started, loaded=loaded)
            sources[precision.mode] = ModeGradients(prepared)
        assert first is not None
        for folder, record in zip(folders, records, strict=True):
            check_model(folder, record, first.model, task.label_names)
        steps = sources[names[0]].prepared.step_batches
        _check_steps(steps)
        reference = _reference(task, sources[names[0]].model, device)
        found = [_measured(INITIAL, reference, sources, steps, batches)]
        for folder in folders:
            load_weights(folder, [reference.model, *(source.model for source in sources.values())])
            found.append(_measured(str(folder), reference, sources, steps, batches))
    return Yardstick(
        settings=YardstickSettings(
            modes=names,
            batches=batches,
            effective_batch_size=steps.effective_batch_size,
            micro_batches=steps.micro_batches,
            model=first.name,
            data=task.data.name,
            seed=args.seed,
            device=device.type,
            cpu_threads=threads,
            padding_free=first.padding_free,
        ),
        checkpoints=tuple(found),
    )


def _refuse_16_bit_weights(precisions: Sequence[Precision]) -> None:
    for precision in precisions:
        if precision.rounding is not None:
            raise InputError(
                f"--modes {precision.mode}: stores rounded weights, and the yardstick compares "
                "gradients at the same weights. Take bf16, whose products are the same."
            )


def accumulate(
    pairs: Pairs, reference: Source, modes: Mapping[str, Source], blocks: Blocks
) -> tuple[NoiseSums, dict[str, ErrorSums]]:
    """Compute every gradient of every step batch once, and keep sums alone.

    Args:
        pairs: A step batch, and its examples as the reference shall cut them.
        reference: Gives float64 gradients.
        modes: Name -> what computes its gradients.
        blocks: Of the model.

    Returns:
        The noise, and the errors by mode.
    """
    noise = NoiseSums(blocks)
    errors = {name: ErrorSums(blocks) for name in modes}
    for step_batch, same in pairs:
        exact = reference(same).gradient
        assert exact is not None
        noise.add(exact)
        for name, source in modes.items():
            errors[name].add(source(step_batch), exact)
        del exact  # before the next one is computed beside it
    return noise, errors


def _distinct(modes: Sequence[str]) -> tuple[str, ...]:
    names = tuple(canonical_mode(mode) for mode in modes)
    if not names:
        raise InputError("--modes: names no mode. Write --modes fp32,bf16.")
    if len(set(names)) < len(names):
        raise InputError(f"--modes {','.join(modes)}: names a mode twice.")
    return names


def _load(task: Task, seed: int, first: LoadedModel | None) -> LoadedModel:
    """Return a model as a run with this seed begins with; its weights are those of `first`."""
    set_seed(seed)
    loaded = task.load_model()
    if first is not None:
        # One copy in memory for all modes: each trains in float32, and none is trained here.
        theirs = first.model.parameters()
        for parameter, same in zip(loaded.model.parameters(), theirs, strict=True):
            parameter.data = same.data
    return loaded


def _reference(task: Task, like: nn.Module, device: torch.device) -> Float64Gradients:
    """Return the padded model with the weights of `like`, in float64."""
    settings = replace(task.settings, remove_padding=False, gradient_checkpointing=False)
    model = replace(task, settings=settings).load_model().model
    # Apple's GPUs have no float64.
    place = torch.device("cpu") if device.type == "mps" else device
    reference = Float64Gradients(task, model, place)
    reference.model.load_state_dict(like.state_dict())
    return reference


def _check_steps(steps: StepBatches) -> None:
    examples, size = len(steps.examples.weights), steps.effective_batch_size
    if examples < 2 * size:
        raise InputError(
            f"--per_device_train_batch_size: a step batch has {size} of the {examples} training "
            "examples, so that there are no two to tell their noise by. Make it smaller."
        )


def _pairs(steps: StepBatches, batches: int) -> Iterator[tuple[StepBatch, StepBatch]]:
    """Yield full step batches, as the modes take them and as the reference does."""
    parts = -(-steps.effective_batch_size // REFERENCE_EXAMPLES)
    same = replace(steps, micro_batches=parts, padded=True)
    per_epoch = len(steps.examples.weights) // steps.effective_batch_size
    for start in range(0, batches, per_epoch):
        epoch, stop = start // per_epoch, min(per_epoch, batches - start)
        yield from zip(steps.epoch(epoch, stop=stop), same.epoch(epoch, stop=stop), strict=True)


def _measured(
    name: str,
    reference: Float64Gradients,
    sources: Mapping[str, ModeGradients],
    steps: StepBatches,
    batches: int,
) -> CheckpointFigures:
    pairs = tqdm(
        _pairs(steps, batches),
        total=batches,
        desc=f"yardstick, {name}" if name == INITIAL else f"yardstick, {Path(name).name!a}",
        disable=None,  # shown on a terminal alone
        file=sys.stderr,
        dynamic_ncols=True,
        bar_format=BAR.replace("{postfix}", ""),
        leave=False,
    )
    noise, errors = accumulate(pairs, reference, sources, blocks_of(reference.model))
    whole, modules = noise.figures()
    return CheckpointFigures(
        name=name,
        whole=whole,
        modules=modules,
        modes=tuple(_mode(sources[mode], sums, whole, modules) for mode, sums in errors.items()),
    )


def _mode(
    source: ModeGradients,
    sums: ErrorSums,
    whole: GradientNoise,
    modules: tuple[GradientNoise, ...],
) -> ModeFigures:
    all_entries, by_module = sums.figures(whole, modules)
    return ModeFigures(
        mode=source.precision.mode,
        execution=source.precision.execution,
        executed=source.executed or "",
        initial_scale=source.initial_scale,
        lowest_scale=sums.lowest_scale,
        overflowed_batches=sums.overflowed,
        failed_batches=sums.failed,
        whole=all_entries,
        modules=by_module,
    )


def check_record(folder: Path) -> RunRecord:
    """Return the record of a finished run.

    Raises:
        InputError: The folder holds none.
    """
    if not folder.is_dir():
        raise InputError(f"{CHECKPOINT} {folder}: is no folder; name the --output_dir of a run.")
    record = read_record(folder)
    if record.status != "finished":
        raise InputError(
            f"{CHECKPOINT} {folder}: the run is {record.status}; it has no final model. Name a "
            "finished one."
        )
    return record


def check_model(
    folder: Path, record: RunRecord, model: nn.Module, label_names: tuple[str, ...]
) -> None:
    """Check that a run trained this architecture on these labels.

    Raises:
        InputError: It did not.
    """
    here = type(model).__name__
    if record.model.architecture != here:
        raise InputError(
            f"{CHECKPOINT} {folder}: is a {inert(record.model.architecture)}, and the arguments "
            f"after -- name a {here}. Give the arguments of that run."
        )
    if tuple(record.label_names) != label_names:
        theirs, ours = (inert(", ".join(names)) for names in (record.label_names, label_names))
        raise InputError(
            f"{CHECKPOINT} {folder}: has the labels {theirs}, and the data have {ours}. Give the "
            "arguments of that run."
        )


def load_weights(folder: Path, models: Iterable[nn.Module]) -> None:
    """Copy the weights of a run into `models`, in their own dtypes.

    Raises:
        InputError: They cannot be loaded, are not finite, or have other shapes.
    """
    for model in models:
        saved = load_saved(type(model), str(folder), flag=CHECKPOINT).state_dict()
        own = model.state_dict()
        strays = sorted(
            name
            for name in own.keys() | saved.keys()
            if name not in own or name not in saved or own[name].shape != saved[name].shape
        )
        if strays:
            raise InputError(
                f"{CHECKPOINT} {folder}: its {inert(strays[0])} has another shape than the model's "
                "that the arguments after -- name. Give the arguments of that run."
            )
        model.load_state_dict(saved)
