"""A case for the doctor: a model, batches, a loss and a precision; what the precision does to them.

It is given, or it comes from a recipe or the saved step of a run. It is computed in its precision
and in float32, batch by batch, and trained for a few steps. The model is left as it was.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ampft.arguments import ClassifyArguments
from ampft.checks.harm import GradientChange, ShortTrainingResult
from ampft.data.step_batches import MicroBatch, StepBatches
from ampft.engine.optimizer import (
    OptimizerSettings,
    ScheduleSettings,
    make_optimizer,
    make_schedule,
)
from ampft.engine.saved_step import BATCH_NAME, MODEL_NAME, STEP_NAME, StepRandomState
from ampft.engine.step import (
    MIN_LOSS_SCALE,
    ScaledGradient,
    descending_loss_scales,
    first_finite_gradient,
)
from ampft.engine.threads import restore_cpu_threads
from ampft.errors import InputError
from ampft.files import CHANGED
from ampft.models.weights import LoadedModel
from ampft.own.replay import read_step, saved_batches
from ampft.precision.accelerator import (
    check_world_size,
    forget_accelerator,
    make_accelerator,
    numerics,
    separate_accelerators,
    training_device,
)
from ampft.precision.float32_modules import keep_paths_in_fp32, replaced_forwards
from ampft.precision.modes import BASELINE, canonical_mode
from ampft.precision.resolve import Precision, resolve
from ampft.runs.manifest import NONFINITE_NAME, check_files
from ampft.runs.prepare import begins_at_probe, load_task, start_clock, with_head_of_training
from ampft.runs.prepared import total_steps_of
from ampft.runs.record import read_record
from ampft.runs.recorded_arguments import OF_DATA, recorded_arguments
from ampft.tasks.task import Task

INITIAL_SCALE = 2.0**16  # of torch.amp.GradScaler
SCALE_FACTOR = 2.0**4  # between the scales that are tried below the initial one
TRIAL_STEPS = 200
LEARNING_RATE = 5e-5  # of transformers' Trainer, for a case that does not come from a recipe

Loss = Callable[[nn.Module, Any], Tensor]
"""Called with the model and a batch; returns a scalar."""


@dataclass(frozen=True)
class TrialSettings:
    """Settings of the short training with which a cure is tried."""

    steps: int = TRIAL_STEPS  # Number of optimizer steps.
    # Settings of the optimizer.
    optimizer: OptimizerSettings = field(
        default_factory=lambda: OptimizerSettings(learning_rate=LEARNING_RATE)
    )
    # Settings of the learning rate schedule.
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    # Steps of the whole training, over which the schedule extends; None for `steps`.
    total_steps: int | None = None
    max_grad_norm: float | None = None  # Norm to which gradients are clipped; None does not clip.
    # Batches of each step, which are repeated; None takes each batch of the case.
    step_batches: Sequence[Sequence[Any]] | None = None
    # Weights at the start by name; None takes the model's.
    weights: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class ExaminedModel:
    """A model with the batches, the loss and the precision that are examined."""

    model: nn.Module  # Model with float32 weights that autocast has not wrapped.
    # Batches: mappings or tuples of tensors, tensors, or anything with an attribute `inputs` that
    # is such a mapping.
    batches: Sequence[Any]
    loss: Loss  # Function that returns the loss of a batch whose gradient is examined.
    precision: Precision  # Precision, resolved for the device of the model.
    # Fixed scale of the loss; None scales it as a GradScaler does in fp16.
    loss_scale: float | None = None
    initial_scale: float = INITIAL_SCALE  # Scale at which a scaler starts.
    # Function that is called with the position of a batch before each of its passes, and sets the
    # random state, so that dropout is the same in all of them.
    begin: Callable[[int], object] = torch.manual_seed
    # The training that a cure must survive.
    trial: TrialSettings = field(default_factory=TrialSettings)
    model_name: str = ""  # Name of the model.
    data_name: str = "the given batches"  # Name of the data.
    padding_free: bool = False  # Whether the model runs without padding.

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def uses_scaler(self) -> bool:
        """Whether a scaler chooses the loss scale."""
        return self.precision.uses_scaler and self.loss_scale is None

    @property
    def start_scale(self) -> float | None:
        """The loss scale at the start; None if the loss is not scaled."""
        return self.initial_scale if self.uses_scaler else self.loss_scale

    def in_float32(self) -> ExaminedModel:
        """Return the same case in float32."""
        return replace(self, precision=resolve(BASELINE, self.device), loss_scale=None)

    def differentiate(self, batch: Any, *, scale: float = 1.0) -> Tensor:
        """Add the gradient of one batch, as a training computes it.

        Args:
            scale: Loss scale, by which the gradients remain multiplied.

        Returns:
            The loss without the scale, detached.
        """
        # The backward pass runs outside of autocast, as in a training.
        with _autocast(self.precision):
            loss = self.loss(self.model, batch)
        (loss * scale).backward()
        return loss.detach()

    def run(self, index: int, *, scale: float = 1.0) -> ScaledGradient:
        """Run a batch forward and backward.

        Args:
            index: Number of the batch.
        """
        model = self.model
        outputs: list[Tensor] = []

        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            del module, inputs
            first = first_floating(output)
            outputs.extend([] if first is None else [first.detach().float()])

        model.zero_grad(set_to_none=True)
        hook = model.register_forward_hook(keep)
        self.begin(index)
        try:
            with numerics(self.precision):
                loss = self.differentiate(self.batches[index], scale=scale)
        finally:
            hook.remove()
        gradient = {
            name: torch.zeros_like(p) if p.grad is None else p.grad / scale
            for name, p in model.named_parameters()
        }
        model.zero_grad(set_to_none=True)
        return ScaledGradient(float(loss), gradient, scale, outputs[0] if outputs else None)

    def finite_run(self, index: int) -> ScaledGradient | None:
        """Return the first run with a finite loss and gradient; None if no scale gives one."""
        scales: Sequence[float] = (self.loss_scale or 1.0,)
        if self.uses_scaler:
            scales = descending_loss_scales(self.initial_scale, factor=SCALE_FACTOR)
        try:
            result = first_finite_gradient(lambda scale: self.run(index, scale=scale), scales)
        except RuntimeError:  # such as a mask beyond the dtype
            return None
        return result if result.is_finite else None

    def change(self, index: int, reference: ScaledGradient) -> GradientChange | None:
        """Return what the precision does to the gradient of a batch; None if it is not finite.

        Args:
            index: Number of the batch.
            reference: What float32 computes for it.
        """
        result = self.finite_run(index) if reference.is_finite else None
        return None if result is None else change_of(result, reference)

    def holds(self, index: int, reference: ScaledGradient) -> bool:
        """Return whether the gradient of a batch trains as the finite one of float32 does."""
        change = self.change(index, reference)
        return change is not None and change.harm is None

    @contextmanager
    def keeping(self, patterns: Mapping[str, str]) -> Iterator[None]:
        """Return a context in which further modules are in float32.

        Args:
            patterns: Pattern of each module, by path.
        """
        kept = kept_patterns(self.model)
        handle = keep_paths_in_fp32(self.model, {**kept, **patterns})
        try:
            yield
        finally:
            handle.remove()
            keep_paths_in_fp32(self.model, kept)

    def train(self) -> ShortTrainingResult:
        """Make the trial; the weights are restored afterwards."""
        model, trial = self.model, self.trial
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        was_training = model.training
        if trial.weights is not None:
            model.load_state_dict(trial.weights)
        before, after = self._mean_loss(), None
        torch.manual_seed(trial.optimizer.seed)
        model.train()
        try:
            with numerics(self.precision):
                stays_finite = self._stays_finite()
            after = self._mean_loss() if stays_finite else None
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
        finally:
            model.train(was_training)
            model.load_state_dict(weights)
            model.zero_grad(set_to_none=True)
        return ShortTrainingResult(
            mode=self.precision.mode,
            steps=trial.steps,
            learning_rate=trial.optimizer.learning_rate,
            before=before,
            after=after,
        )

    @property
    def step_batches(self) -> Sequence[Sequence[Any]]:
        return self.trial.step_batches or [[batch] for batch in self.batches]

    @torch.no_grad()
    def _mean_loss(self) -> float | None:
        """Return the mean loss of the trial's batches in float32, without dropout."""
        self.model.eval()
        case = self.in_float32()
        with numerics(case.precision), _autocast(case.precision):
            losses = [
                float(sum(float(case.loss(case.model, batch)) for batch in step_batch))
                for step_batch in self.step_batches
            ]
        mean = sum(losses) / len(losses)
        return mean if math.isfinite(mean) else None

    def _stays_finite(self) -> bool:
        """Train; return whether loss, gradient and weights stay finite."""
        trial, parameters = self.trial, list(self.model.parameters())
        optimizer = make_optimizer(self.model, trial.optimizer, self.precision)
        schedule = make_schedule(optimizer, trial.total_steps or trial.steps, trial.schedule)
        scaler = torch.amp.GradScaler(
            self.device.type, self.initial_scale, enabled=self.uses_scaler
        )
        scaler.scale(torch.ones((), device=self.device))  # creates the scale
        for step_batch in islice(cycle(self.step_batches), trial.steps):
            optimizer.zero_grad(set_to_none=True)
            scale = scaler.get_scale() if self.uses_scaler else self.loss_scale or 1.0
            for batch in step_batch:
                if not math.isfinite(float(self.differentiate(batch, scale=scale))):
                    return False
            if self.uses_scaler:
                scaler.unscale_(optimizer)
            elif self.loss_scale is not None:
                torch._foreach_div_([p.grad for p in parameters if p.grad is not None], scale)
            if trial.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(parameters, trial.max_grad_norm)
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= scale or not self.uses_scaler:  # the step was not skipped
                schedule.step()
            elif scaler.get_scale() < MIN_LOSS_SCALE:
                return False
        return all(bool(parameter.isfinite().all()) for parameter in parameters)


def kept_patterns(model: nn.Module) -> dict[str, str]:
    """Return the pattern of each module that a model keeps in float32, by path."""
    return {path: forward.pattern for path, forward in replaced_forwards(model).items()}


def change_of(result: ScaledGradient, reference: ScaledGradient) -> GradientChange:
    """Return how a gradient differs from the one of float32."""
    return GradientChange.of(result.gradient.values(), reference.gradient.values())


def first_floating(value: Any) -> Tensor | None:
    """Return the first floating-point tensor in the inputs or outputs of a module."""
    leaves = tree_leaves(value)
    return next((t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()), None)


def _autocast(precision: Precision) -> torch.autocast:
    dtype = precision.compute_dtype if precision.uses_autocast else torch.bfloat16
    return torch.autocast(precision.device_type, dtype=dtype, enabled=precision.uses_autocast)


@contextmanager
def model_state_restored(model: nn.Module) -> Iterator[None]:
    """Return a context after which gradients, buffers, modes and random states are as before."""
    modes = [(module, module.training) for module in model.modules()]
    gradients = [parameter.grad for parameter in model.parameters()]
    buffers = [buffer.clone() for buffer in model.buffers()]
    on_cuda = next(model.parameters()).device.type == "cuda"
    try:
        # Named devices, because torch warns if it is left to choose among several.
        with torch.random.fork_rng(range(torch.cuda.device_count()) if on_cuda else ()):
            yield
    finally:
        for module, is_training in modes:
            module.training = is_training
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(value)


def _as_training_begins(
    args: ClassifyArguments, task: Task, accelerator: Accelerator, *, is_saved: bool
) -> tuple[LoadedModel, bool]:
    """Return the model, and whether its head begins at a probe; weights of a saved step do not."""
    loaded = task.load_model()
    begins = begins_at_probe(args, loaded)
    if is_saved or not begins:
        return loaded, begins
    probed = with_head_of_training(args, task, loaded, accelerator)
    return probed, probed is not loaded


def recipe_case(
    args: ClassifyArguments, mode: str, *, steps: int, trial_steps: int, saved: Path | None = None
) -> ExaminedModel:
    """Return the model of a recipe with its first batches, or with a saved step.

    In a group of several processes, each has its own batches.

    Args:
        args: Settings of the recipe, whose mode and output folder are not used.
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
    loaded, is_probed = _as_training_begins(args, task, accelerator, is_saved=saved is not None)
    model = loaded.model.to(accelerator.device).train()
    step_batches = StepBatches.for_process(
        accelerator,
        task.examples("train"),
        batch_size=args.per_device_train_batch_size,
        seed=args.seed,
        padded=not loaded.padding_free,
    )
    first = list(step_batches.epoch(0, stop=steps))
    args = args.with_learning_rate(model.config, begins_at_probe=is_probed).with_epochs(
        len(step_batches),
        has_words=task.row.kind.has_words,
        probed_classes=len(task.label_names) if is_probed else None,
    )
    total_steps = total_steps_of(args, step_batches)
    trial = TrialSettings(
        steps=min(trial_steps, total_steps),
        optimizer=replace(args.optimizer_settings(), units=task.units(model)),
        schedule=args.schedule_settings(),
        total_steps=total_steps,
        max_grad_norm=args.max_grad_norm or None,
        step_batches=[step_batch.micro_batches for step_batch in first],
    )
    effective_weights: dict[int, float] = {}

    def mean_loss(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        return task.loss(model, micro_batch) / effective_weights[id(micro_batch)]

    case = ExaminedModel(
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
        saved_step, tensors = read_step(saved), load_file(saved / BATCH_NAME)
        model.load_state_dict(load_file(saved / MODEL_NAME))
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
    if saved is None:
        return case
    starts: list[StepRandomState] = []  # the random state of each micro-batch in that step
    with numerics(precision):
        for step_batch, start in parts:
            start.restore(case.device)
            for micro_batch in step_batch:
                starts.append(StepRandomState.now(case.device))
                case.differentiate(micro_batch)
    model.zero_grad(set_to_none=True)
    return replace(case, begin=lambda index: starts[index].restore(case.device))


def run_case(folder: Path, flags: Sequence[str], *, steps: int, trial_steps: int) -> ExaminedModel:
    """Return the first saved step of a run, to be replayed, or its first batches if it has none.

    Args:
        folder: Output folder of a run, or the folder of one of its saved steps.
        flags: Flags of the recipe that replace recorded settings, such as paths of moved files.
        steps: Number of step batches, if the run saved no step, and of the trial.
        trial_steps: Number of optimizer steps of the trial, which repeats the run from its start.

    Raises:
        InputError: The folder does not belong to a run, or its data or model are missing.
    """
    if not folder.is_dir():
        raise InputError(
            f"RUN {folder}: this is not a folder. Pass the --output_dir of a run, or pass "
            "--mixed_precision M -- and the flags of a training."
        )
    is_step = (folder / STEP_NAME).is_file()
    run = folder.parents[1] if is_step else folder
    steps_of_run = [folder] if is_step else (run / NONFINITE_NAME).glob("step-*")
    saved = [path for path in steps_of_run if (path / STEP_NAME).is_file()]
    step = min(saved, key=lambda path: int(path.name.rpartition("-")[2])) if saved else None
    record = read_record(run)
    changed = [str(each.path) for each in record.inputs() if each.state == CHANGED]
    if changed and not flags:
        raise InputError(
            f"RUN {run}: {changed[0]} was changed since the run read it, so another training would "
            "be examined. Restore the file, or pass the settings that changed after ` -- `."
        )
    args = recorded_arguments(record, flags, (*OF_DATA, "model_name_or_path"))
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
