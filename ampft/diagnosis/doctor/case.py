"""A case for the doctor: a model, batches, a loss and a precision; what the precision does to them.

It is computed in its precision and in float32, batch by batch, and trained for a few steps. The
model is left as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ampft.precision.accelerator import numerics
from ampft.precision.float32_modules import float32_forwards, keep_modules
from ampft.precision.harm import GradientChange, ShortTraining
from ampft.precision.modes import BASELINE
from ampft.precision.resolve import Precision, resolve
from ampft.training.optimizer import (
    OptimizerSettings,
    ScheduleSettings,
    make_optimizer,
    make_schedule,
)
from ampft.training.step import MIN_LOSS_SCALE, ScaledGradient, finite_gradient, lowered_scales

INITIAL_SCALE = 2.0**16  # of torch.amp.GradScaler
SCALE_FACTOR = 2.0**4  # between the scales that are tried below the initial one
TRIAL_STEPS = 200
LEARNING_RATE = 5e-5  # of transformers' Trainer, for a case that does not come from a recipe

Loss = Callable[[nn.Module, Any], Tensor]
"""Called with the model and a batch; returns a scalar."""


@dataclass(frozen=True)
class FirstSteps:
    """The first steps of a training, as it makes them.

    Attributes:
        steps: Number of optimizer steps.
        optimizer: Settings of the optimizer.
        schedule: Settings of the learning rate schedule.
        total_steps: Steps of the whole training, over which the schedule extends; None for `steps`.
        max_grad_norm: Norm to which gradients are clipped; None does not clip.
        step_batches: Batches of each step, which are repeated; None takes each batch of the case.
        weights: Weights at the start by name; None takes the model's.
    """

    steps: int = TRIAL_STEPS
    optimizer: OptimizerSettings = field(
        default_factory=lambda: OptimizerSettings(learning_rate=LEARNING_RATE)
    )
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    total_steps: int | None = None
    max_grad_norm: float | None = None
    step_batches: Sequence[Sequence[Any]] | None = None
    weights: Mapping[str, Tensor] | None = None


@dataclass(frozen=True)
class Subject:
    """A model, batches, a loss and the precision that is examined.

    Attributes:
        model: Model with float32 weights that autocast has not wrapped.
        batches: Batches: mappings or tuples of tensors, tensors, or anything with an attribute
            `inputs` that is such a mapping.
        loss: Function that returns the loss of a batch whose gradient is examined.
        precision: Precision, resolved for the device of the model.
        loss_scale: Fixed scale of the loss; None scales it as a GradScaler does in fp16.
        initial_scale: Scale at which a scaler starts.
        begin: Function that is called with the position of a batch before each of its passes, and
            sets the random state, so that dropout is the same in all of them.
        trial: The training that a cure must survive.
        model_name: Name of the model.
        data_name: Name of the data.
        padding_free: Whether the model runs without padding.
    """

    model: nn.Module
    batches: Sequence[Any]
    loss: Loss
    precision: Precision
    loss_scale: float | None = None
    initial_scale: float = INITIAL_SCALE
    begin: Callable[[int], object] = torch.manual_seed
    trial: FirstSteps = field(default_factory=FirstSteps)
    model_name: str = ""
    data_name: str = "the given batches"
    padding_free: bool = False

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    @property
    def uses_scaler(self) -> bool:
        """Whether a scaler chooses the loss scale."""
        return self.precision.uses_scaler and self.loss_scale is None

    @property
    def start_scale(self) -> float | None:
        """The loss scale at the start; None if the loss is not scaled."""
        return self.initial_scale if self.uses_scaler else self.loss_scale

    def in_float32(self) -> Subject:
        """Return the same case in float32."""
        return replace(self, precision=resolve(BASELINE, self.device), loss_scale=None)

    def differentiate(self, batch: Any, *, scale: float = 1.0) -> Tensor:
        """Add the gradient of one batch, as a training computes it.

        Args:
            batch: One of the batches.
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
            scale: Loss scale.
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
            scales = lowered_scales(self.initial_scale, factor=SCALE_FACTOR)
        try:
            result = finite_gradient(lambda scale: self.run(index, scale=scale), scales)
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
        handle = keep_modules(self.model, {**kept, **patterns})
        try:
            yield
        finally:
            handle.remove()
            keep_modules(self.model, kept)

    def train(self) -> ShortTraining:
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
        return ShortTraining(
            mode=self.precision.mode,
            steps=trial.steps,
            learning_rate=trial.optimizer.learning_rate,
            before=before,
            after=after,
        )

    def _step_batches(self) -> Sequence[Sequence[Any]]:
        return self.trial.step_batches or [[batch] for batch in self.batches]

    @torch.no_grad()
    def _mean_loss(self) -> float | None:
        """Return the mean loss of the trial's batches in float32, without dropout."""
        self.model.eval()
        case = self.in_float32()
        with numerics(case.precision), _autocast(case.precision):
            losses = [
                float(sum(float(case.loss(case.model, batch)) for batch in step_batch))
                for step_batch in self._step_batches()
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
        for step_batch in islice(cycle(self._step_batches()), trial.steps):
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
    return {path: forward.pattern for path, forward in float32_forwards(model).items()}


def change_of(result: ScaledGradient, reference: ScaledGradient) -> GradientChange:
    """Return how a gradient differs from the one of float32."""
    return GradientChange.of(result.gradient.values(), reference.gradient.values())


def first_floating(value: Any) -> Tensor | None:
    """Return the first floating-point tensor in the inputs or outputs of a module."""
    leaves = tree_leaves(value)
    return next((t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()), None)


@contextmanager
def _autocast(precision: Precision) -> Iterator[None]:
    dtype = precision.compute_dtype if precision.uses_autocast else torch.bfloat16
    with torch.autocast(precision.device_type, dtype=dtype, enabled=precision.uses_autocast):
        yield


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
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
