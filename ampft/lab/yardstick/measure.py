"""Measure the yardstick: gradients of step batches in float64 and in a mode, and their sums."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import set_seed
from torch import Tensor, nn

from ampft.arguments import ClassifyArguments
from ampft.checks.blocks import ParameterBlocks, blocks_of
from ampft.data.step_batches import StepBatch, StepBatches
from ampft.engine.step import (
    ScaledGradient,
    accumulate_gradient,
    descending_loss_scales,
    first_finite_gradient,
)
from ampft.engine.threads import restore_cpu_threads
from ampft.errors import InputError
from ampft.lab.yardstick.figures import (
    INITIAL_WEIGHTS,
    CheckpointFigures,
    ErrorSums,
    ModeFigures,
    NoiseSums,
    StepGradient,
    Yardstick,
    YardstickSettings,
)
from ampft.models.pretrained import CHECKPOINTS_FLAG, load_saved
from ampft.models.weights import LoadedModel
from ampft.precision.accelerator import (
    numerics,
    separate_accelerators,
    training_device,
    verify_precision_unchanged,
)
from ampft.precision.executed import ProductRecorder, check_trainable_dtype, precision_contradiction
from ampft.precision.modes import canonical_mode
from ampft.precision.resolve import Precision, resolve
from ampft.precision.tf32 import apply_float32_policy
from ampft.runs.history import PROGRESS_FORMAT
from ampft.runs.manifest import check_model_files
from ampft.runs.prepare import load_task, prepare_mode, start_clock
from ampft.runs.prepared import Prepared
from ampft.runs.record import RunRecord, read_record
from ampft.tasks.task import Task
from ampft.text.escaping import inert, without_credentials
from ampft.text.terminal import progress_bar

# Examples are sorted by length, so micro-batches of few examples have little padding.
REFERENCE_MICRO_BATCH_SIZE = 4
Pairs = Iterable[tuple[StepBatch, StepBatch]]
GradientSource = Callable[[StepBatch], StepGradient]
"""Called with a step batch; returns the gradient of its mean loss."""


def measure_yardstick(
    args: ClassifyArguments,
    modes: Sequence[str],
    *,
    batches: int = 32,
    checkpoints: Sequence[str | os.PathLike[str]] = (),
) -> Yardstick:
    """Measure the gradient error of `modes` relative to the noise of the step batches.

    Call this in a separate process, because it sets seeds, threads and the TF32 policy.

    Args:
        args: Settings of `recipes/classify.py`; their mode is not used.
        modes: Modes out of `ampft.MODES`.
        batches: Number of step batches, at least 2. They are the first full ones of epoch 0, then
            of epoch 1, and so on, the same for all modes and weights.
        checkpoints: Folders of finished runs with the same architecture and labels.

    Raises:
        InputError: A mode is unknown, repeated or not available; `batches` is below 2; a folder
            holds no finished run of the same model; or there are fewer than two step batches.
    """
    started = start_clock()
    if batches < 2:
        raise InputError(f"--batches {batches}: measuring noise needs at least 2 batches.")
    device = training_device(cpu=args.use_cpu)
    precisions = _resolved(modes, device)
    if PartialState().num_processes > 1:
        raise InputError(
            "ampft yardstick runs in a single process. Start it without accelerate launch or "
            "torchrun."
        )
    folders = [Path(folder) for folder in checkpoints]
    records = [_finished_record(folder) for folder in folders]
    threads = restore_cpu_threads(args.cpu_threads)
    task = load_task(args)
    with separate_accelerators():
        sources: dict[str, GradientInMode] = {}
        first: LoadedModel | None = None
        for precision in precisions:
            loaded = _load(task, args.seed, first)
            first = first or loaded
            prepared = prepare_mode(args, precision, task, started=started, loaded=loaded)
            sources[precision.mode] = GradientInMode(prepared)
        assert first is not None
        for folder, record in zip(folders, records, strict=True):
            _check_model(folder, record, first.model, task.label_names)
        source = sources[precisions[0].mode]
        steps = source.prepared.step_batches
        examples, size = len(steps.examples.weights), steps.effective_batch_size
        if examples < 2 * size:
            raise InputError(
                f"--per_device_train_batch_size: a step batch has {size} of the {examples} "
                "training examples, but measuring noise needs at least two step batches. Use a "
                "smaller batch size."
            )
        settings = replace(task.settings, padding=True, gradient_checkpointing=False)
        padded = replace(task, settings=settings).load_model().model
        # Apple's GPUs have no float64.
        place = torch.device("cpu") if device.type == "mps" else device
        reference = GradientInFloat64(task, padded, place)
        reference.model.load_state_dict(source.model.state_dict())
        results = [_measure_weights(INITIAL_WEIGHTS, reference, sources, steps, batches)]
        for folder in folders:
            _load_weights(folder, [reference.model, *(each.model for each in sources.values())])
            name = without_credentials(str(folder))
            results.append(_measure_weights(name, reference, sources, steps, batches))
    return Yardstick(
        settings=YardstickSettings(
            modes=tuple(sources),
            batches=batches,
            effective_batch_size=steps.effective_batch_size,
            micro_batches=steps.micro_batches,
            model=without_credentials(first.name),
            data=without_credentials(task.data.name),
            seed=args.seed,
            device=device.type,
            cpu_threads=threads,
            padding_free=first.padding_free,
        ),
        checkpoints=tuple(results),
    )


def accumulate(
    pairs: Pairs,
    reference: GradientSource,
    modes: Mapping[str, GradientSource],
    blocks: ParameterBlocks,
) -> tuple[NoiseSums, dict[str, ErrorSums]]:
    """Compute every gradient of every step batch once, keeping only sums.

    Args:
        pairs: Step batches, each with the same examples in micro-batches for the reference.
        reference: Source of float64 gradients.

    Returns:
        The noise, and the errors by mode.
    """
    noise = NoiseSums(blocks)
    errors = {name: ErrorSums(blocks) for name in modes}
    for step_batch, reference_batch in pairs:
        exact = reference(reference_batch).gradient
        assert exact is not None
        noise.add(exact)
        for name, source in modes.items():
            errors[name].add(source(step_batch), exact)
        del exact  # frees memory before the next one is computed
    return noise, errors


def _resolved(modes: Sequence[str], device: torch.device) -> list[Precision]:
    """Return the precisions of modes, none of which stores 16-bit weights or appears twice."""
    names = [canonical_mode(mode) for mode in modes]
    if not names:
        raise InputError("--modes: no mode was named. Use a value such as --modes fp32,bf16.")
    if len(set(names)) < len(names):
        raise InputError(f"--modes {','.join(modes)}: a mode appears twice.")
    precisions = [resolve(name, device) for name in names]
    for precision in precisions:
        if precision.rounding is not None:
            raise InputError(
                f"--modes {precision.mode}: this mode stores rounded weights, but the yardstick "
                "compares gradients at the same weights. Use bf16, which has the same products."
            )
    return precisions


def _load(task: Task, seed: int, first: LoadedModel | None) -> LoadedModel:
    """Return the initial model of a run with this seed, sharing the weights of `first` if given."""
    set_seed(seed)
    loaded = task.load_model()
    if first is not None:
        # All modes share one float32 copy in memory, because none of them is trained here.
        shared_parameters = first.model.parameters()
        for parameter, shared in zip(loaded.model.parameters(), shared_parameters, strict=True):
            parameter.data = shared.data
    return loaded


def _pairs(steps: StepBatches, batches: int) -> Iterator[tuple[StepBatch, StepBatch]]:
    """Yield full step batches, each in micro-batches for the modes and for the reference."""
    parts = -(-steps.effective_batch_size // REFERENCE_MICRO_BATCH_SIZE)
    reference_steps = replace(steps, micro_batches=parts, padded=True)
    per_epoch = len(steps.examples.weights) // steps.effective_batch_size
    for start in range(0, batches, per_epoch):
        epoch, stop = start // per_epoch, min(per_epoch, batches - start)
        yield from zip(
            steps.epoch(epoch, stop=stop), reference_steps.epoch(epoch, stop=stop), strict=True
        )


def _measure_weights(
    name: str,
    reference: GradientInFloat64,
    sources: Mapping[str, GradientInMode],
    steps: StepBatches,
    batches: int,
) -> CheckpointFigures:
    pairs = progress_bar(
        iterable=_pairs(steps, batches),
        total=batches,
        desc=f"yardstick, {name}" if name == INITIAL_WEIGHTS else f"yardstick, {Path(name).name!a}",
        bar_format=PROGRESS_FORMAT.replace("{postfix}", ""),
        leave=False,
    )
    noise, errors = accumulate(pairs, reference, sources, blocks_of(reference.model))
    whole, modules = noise.figures()
    modes = []
    for mode, sums in errors.items():
        source, (all_entries, by_module) = sources[mode], sums.figures(whole, modules)
        modes.append(
            ModeFigures(
                mode=mode,
                execution=source.precision.execution,
                executed=source.executed or "",
                initial_scale=source.initial_scale,
                lowest_scale=sums.lowest_scale,
                overflowed_batches=sums.overflowed,
                failed_batches=sums.failed,
                whole=all_entries,
                modules=by_module,
            )
        )
    return CheckpointFigures(name=name, whole=whole, modules=modules, modes=tuple(modes))


def _finished_record(folder: Path) -> RunRecord:
    """Return the record of a finished run, whose files are as it wrote them."""
    if not folder.is_dir():
        raise InputError(
            f"{CHECKPOINTS_FLAG} {folder}: the folder does not exist. Pass the --output_dir of a "
            "run."
        )
    record = read_record(folder)
    if record.status != "finished":
        raise InputError(
            f"{CHECKPOINTS_FLAG} {folder}: the status of the run is {record.status}, so it has no "
            "final model. Pass a finished run."
        )
    check_model_files(folder, record.files)
    return record


def _check_model(
    folder: Path, record: RunRecord, model: nn.Module, label_names: tuple[str, ...]
) -> None:
    """Check that a run trained this architecture on these labels."""
    architecture = type(model).__name__
    if record.model.architecture != architecture:
        raise InputError(
            f"{CHECKPOINTS_FLAG} {folder}: the model of the run is a "
            f"{inert(record.model.architecture)}, but the arguments after ` -- ` specify a "
            f"{architecture}. Pass the arguments of that run."
        )
    if tuple(record.label_names) != label_names:
        theirs, ours = (inert(", ".join(names)) for names in (record.label_names, label_names))
        raise InputError(
            f"{CHECKPOINTS_FLAG} {folder}: the run has the labels {theirs}, but the data has "
            f"{ours}. Pass the arguments of that run."
        )


def _load_weights(folder: Path, models: Iterable[nn.Module]) -> None:
    """Copy the weights of a run into models of the same shapes, converted to their dtypes."""
    for model in models:
        saved = load_saved(type(model), str(folder), flag=CHECKPOINTS_FLAG).state_dict()
        current = model.state_dict()
        mismatched = sorted(
            name
            for name in current.keys() | saved.keys()
            if name not in current or name not in saved or current[name].shape != saved[name].shape
        )
        if mismatched:
            raise InputError(
                f"{CHECKPOINTS_FLAG} {folder}: the parameter {inert(mismatched[0])} does not match "
                "the model that the arguments after ` -- ` specify. Pass the arguments of that run."
            )
        model.load_state_dict(saved)


class GradientInMode:
    """Computes gradients as `recipes/classify.py` does in one mode, without dropout.

    Args:
        prepared: Training in that mode, from `prepare_mode`. It is never stepped; the scaler needs
            its optimizer to unscale the gradients.
    """

    def __init__(self, prepared: Prepared) -> None:
        check_trainable_dtype(prepared.loaded.model, torch.float32)
        verify_precision_unchanged(prepared.accelerator, prepared.precision)
        self.prepared = prepared
        self.precision = prepared.precision
        self.executed: str | None = None
        self.model: nn.Module = prepared.accelerator.unwrap_model(
            prepared.model, keep_torch_compile=False
        )
        prepared.model.eval()
        scaler = prepared.accelerator.scaler
        self.initial_scale: float | None = None if scaler is None else scaler.get_scale()

    def __call__(self, step_batch: StepBatch) -> StepGradient:
        """Return the gradient of `step_batch`. The first call records the dtypes of the products.

        Raises:
            InputError: The products did not run in the requested precision.
        """
        apply_float32_policy(self.precision)  # another mode may have set it since
        with numerics(self.precision):
            scales = descending_loss_scales(self.initial_scale)
            found = first_finite_gradient(partial(self._at_scale, step_batch), scales)
        gradient = found.gradient if found.is_finite else None
        if self.initial_scale is None:
            return StepGradient(gradient, gradient is None)
        overflowed = gradient is None or found.scale < self.initial_scale
        return StepGradient(gradient, overflowed, found.scale)

    def _at_scale(self, step_batch: StepBatch, scale: float) -> ScaledGradient:
        prepared, scaler = self.prepared, self.prepared.accelerator.scaler
        recorder = None if self.executed is not None else ProductRecorder(self.precision)
        if scaler is not None and scale != scaler.get_scale():
            scaler.update(scale)
        self.model.zero_grad()
        with recorder or nullcontext():
            losses = accumulate_gradient(
                prepared.accelerator, prepared.model, prepared.task.loss, step_batch
            )
        if recorder is not None:
            executed = recorder.census(self.model)
            mismatch = precision_contradiction(self.precision, executed)
            if mismatch is not None:
                raise InputError(f"--modes {self.precision.mode}: {mismatch}.")
            self.executed = executed.summary()
        if scaler is not None:
            scaler.unscale_(prepared.optimizer.optimizer)
            # Every batch starts at the initial scale, so that its error does not depend on others.
            scaler.update(self.initial_scale)
        gradient = gradients_of(self.model)
        self.model.zero_grad()
        return ScaledGradient(sum(map(float, losses)), gradient, scale)


class GradientInFloat64:
    """Computes reference gradients with plain torch in float64.

    Args:
        task: Task whose loss keeps the dtype of float64 logits.
        model: Padded model, not prepared; it is converted to float64.
        device: Device to compute on.
    """

    def __init__(self, task: Task, model: nn.Module, device: torch.device) -> None:
        self.model = model.to(device).double().eval()
        self._task = task

    def __call__(self, step_batch: StepBatch) -> StepGradient:
        """Return the float64 gradient of `step_batch`."""
        self.model.zero_grad()
        for micro_batch in step_batch:
            inputs: dict[str, Any] = {
                name: value.double() if value.is_floating_point() else value
                for name, value in micro_batch.inputs.items()
            }
            loss = self._task.loss(self.model, replace(micro_batch, inputs=inputs))
            assert loss.dtype == torch.float64, "the loss of the task is not float64"
            (loss / step_batch.effective_weight).backward()
        gradient = gradients_of(self.model)
        self.model.zero_grad()
        return StepGradient(gradient)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradient of every trainable parameter; zeros if the loss does not depend on it."""
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in model.named_parameters()
        if p.requires_grad
    }
