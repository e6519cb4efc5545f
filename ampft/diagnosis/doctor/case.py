"""A case for the doctor: a model, batches, a loss and a precision; what the precision does to them.

It is computed in its precision and in float32, batch by batch, and trained for a few steps. The
model is left as it was.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from ampft.precision.accelerator import numerics
from ampft.precision.float32_modules import float32_forwards, keep_modules
from ampft.precision.harm import GradientChange, TrialResult
from ampft.precision.modes import BASELINE
from ampft.precision.resolve import Precision, resolve
from ampft.training.optimizer import (
    OptimizerSettings,
    ScheduleSettings,
    make_optimizer,
    make_schedule,
)
from ampft.training.step import MIN_LOSS_SCALE

INITIAL_SCALE = 2.0**16  # of torch.amp.GradScaler
SCALE_FACTOR = 2.0**4  # between the scales that are tried below the initial one
TRIAL_STEPS = 200
LEARNING_RATE = 5e-5  # of transformers' Trainer, for a case that does not come from a recipe

Loss = Callable[[nn.Module, Any], Tensor]
"""Called with the model and a batch; returns a scalar."""


@dataclass(frozen=True)
class Trial:
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
class Pass:
    """What a forward and a backward pass computed.

    Attributes:
        output: First floating tensor that the model returned, float32; None if there is none.
        loss: The loss.
        gradient: Gradients of the parameters, without the loss scale.
        scale: Loss scale.
    """

    output: Tensor | None
    loss: float
    gradient: Sequence[Tensor]
    scale: float

    @property
    def is_finite(self) -> bool:
        """Whether the loss and the whole gradient are finite."""
        is_finite = (bool(part.isfinite().all()) for part in self.gradient)
        return math.isfinite(self.loss) and all(is_finite)


@dataclass(frozen=True)
class Case:
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
    trial: Trial = field(default_factory=Trial)
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

    @property
    def scales(self) -> tuple[float, ...]:
        """The loss scales that a training would try, thinned out."""
        if not self.uses_scaler:
            return (self.loss_scale or 1.0,)
        steps = int(math.log(self.initial_scale / MIN_LOSS_SCALE, SCALE_FACTOR))
        return tuple(self.initial_scale / SCALE_FACTOR**step for step in range(steps + 1))

    def in_float32(self) -> Case:
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

    def run(self, index: int, *, scale: float = 1.0) -> Pass:
        """Run a batch forward and backward.

        Args:
            index: Number of the batch.
            scale: Loss scale.
        """
        model = self.model
        outputs: list[Tensor] = []

        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            del module, inputs
            leaves = tree_leaves(output)
            floating = [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]
            outputs.extend(tensor.detach().float() for tensor in floating[:1])

        model.zero_grad(set_to_none=True)
        hook = model.register_forward_hook(keep)
        self.begin(index)
        try:
            with numerics(self.precision):
                loss = self.differentiate(self.batches[index], scale=scale)
        finally:
            hook.remove()
        gradient = [
            torch.zeros_like(p) if p.grad is None else p.grad / scale for p in model.parameters()
        ]
        model.zero_grad(set_to_none=True)
        return Pass(outputs[0] if outputs else None, float(loss), gradient, scale)

    def finite_run(self, index: int) -> Pass | None:
        """Return the first run with a finite loss and gradient; None if no scale gives one."""
        for scale in self.scales:
            try:
                result = self.run(index, scale=scale)
            except RuntimeError:  # such as a mask beyond the dtype
                return None
            if not math.isfinite(result.loss):
                return None  # at any scale
            if result.is_finite:
                return result
        return None

    @contextlib.contextmanager
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

    def seconds(self) -> float:
        """Return the time of a forward and a backward pass of the first batch; NaN if it fails."""
        started = time.perf_counter()
        try:
            self.run(0)  # reads the loss, and so waits for the device
        except RuntimeError:
            return math.nan
        return time.perf_counter() - started

    def train(self) -> TrialResult:
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
        return TrialResult(
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
            self._unscale(optimizer, scaler)
            if trial.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(parameters, trial.max_grad_norm)
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= scale or not self.uses_scaler:  # the step was not skipped
                schedule.step()
            elif scaler.get_scale() < MIN_LOSS_SCALE:
                return False
        return all(bool(parameter.isfinite().all()) for parameter in parameters)

    def _unscale(self, optimizer: Optimizer, scaler: torch.amp.GradScaler) -> None:
        if self.uses_scaler:
            scaler.unscale_(optimizer)
            return
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad /= self.loss_scale or 1.0


def kept_patterns(model: nn.Module) -> dict[str, str]:
    """Return the pattern of each module that a model keeps in float32, by path."""
    return {path: forward.pattern for path, forward in float32_forwards(model).items()}


def holds(case: Case, index: int, reference: Pass) -> bool:
    """Return whether the precision holds for a batch.

    Args:
        case: The case.
        index: Number of the batch.
        reference: What float32 computes for it, which is finite.
    """
    result = case.finite_run(index)
    if result is None:
        return False
    return GradientChange.of(result.gradient, reference.gradient).harm is None


@contextmanager
def _autocast(precision: Precision) -> Iterator[None]:
    dtype = precision.compute_dtype if precision.uses_autocast else torch.bfloat16
    with torch.autocast(precision.device_type, dtype=dtype, enabled=precision.uses_autocast):
        yield


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Return a context after which gradients, buffers and random states are as before."""
    gradients = [parameter.grad for parameter in model.parameters()]
    buffers = [buffer.clone() for buffer in model.buffers()]
    on_cuda = next(model.parameters()).device.type == "cuda"
    try:
        # Named devices, because torch warns if it is left to choose among several.
        with torch.random.fork_rng(range(torch.cuda.device_count()) if on_cuda else ()):
            yield
    finally:
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(value)
