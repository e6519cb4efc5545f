"""A case in a precision that does not hold: whether a batch holds, and a short training."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ampft.diagnosis.doctor.case import Case
from ampft.precision.accelerator import numerics
from ampft.precision.float32_modules import float32_forwards, keep_modules
from ampft.precision.modes import BASELINE
from ampft.precision.resolve import Precision, resolve
from ampft.training.step import MIN_LOSS_SCALE

INITIAL_SCALE = 2.0**16  # of torch.amp.GradScaler
SCALE_FACTOR = 2.0**4  # between the scales that are tried below the initial one
# Rounding leaves a cosine above 0.99, and a gradient of which much is lost is far below.
MIN_COSINE = 0.95


@dataclass(frozen=True)
class Trial:
    """The short training that verifies a cure.

    Attributes:
        steps: Number of optimizer steps of AdamW.
        learning_rate: Its learning rate.
    """

    steps: int = 200
    learning_rate: float = 5e-5


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
    def has_finite_gradient(self) -> bool:
        """Whether the whole gradient is finite."""
        return all(bool(part.isfinite().all()) for part in self.gradient)

    def cosine(self, other: Pass) -> float:
        """Return the cosine of the angle between two gradients; 1 if both are zero."""
        pairs = list(zip(self.gradient, other.gradient, strict=True))
        product = sum(float((a.double() * b.double()).sum()) for a, b in pairs)
        left, right = (
            math.sqrt(sum(float(part.double().square().sum()) for part in column))
            for column in zip(*pairs, strict=True)
        )
        return product / (left * right) if left and right else float(left == right)


@dataclass
class Patient:
    """A case in a precision.

    Attributes:
        case: Model, batches and loss.
        precision: Precision.
        initial_scale: Loss scale at which a scaler starts; None without one.
        fixed_scale: Loss scale without a scaler.
        kept: Pattern of each module that is in float32 already, by path.
    """

    case: Case
    precision: Precision
    initial_scale: float | None
    fixed_scale: float = 1.0
    kept: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        case: Case,
        precision: Precision,
        initial_scale: float | None,
        fixed_scale: float = 1.0,
    ) -> Patient:
        """Return the patient with the modules that its model keeps in float32 already."""
        forwards = float32_forwards(case.model)
        kept = {path: forward.pattern for path, forward in forwards.items()}
        return cls(case, precision, initial_scale, fixed_scale, kept)

    @property
    def scales(self) -> tuple[float, ...]:
        """The loss scales that a training would try, thinned out."""
        if self.initial_scale is None:
            return (self.fixed_scale,)
        steps = int(math.log(self.initial_scale / MIN_LOSS_SCALE, SCALE_FACTOR))
        return tuple(self.initial_scale / SCALE_FACTOR**step for step in range(steps + 1))

    def reference(self, index: int) -> Pass:
        """Return what float32 computes for a batch."""
        return self.run(index, precision=resolve(BASELINE, self.case.device))

    def run(self, index: int, *, scale: float = 1.0, precision: Precision | None = None) -> Pass:
        """Run a batch forward and backward.

        Args:
            index: Number of the batch.
            scale: Loss scale.
            precision: Precision to use instead.
        """
        model = self.case.model
        outputs: list[Tensor] = []

        def keep(module: nn.Module, inputs: Any, output: Any) -> None:
            del module, inputs
            leaves = tree_leaves(output)
            floating = [t for t in leaves if isinstance(t, Tensor) and t.is_floating_point()]
            outputs.extend(tensor.detach().float() for tensor in floating[:1])

        precision = precision or self.precision
        model.zero_grad(set_to_none=True)
        hook = model.register_forward_hook(keep)
        self.case.begin(index)
        try:
            with numerics(precision):
                batch = self.case.batches[index]
                loss = self.case.differentiate(batch, precision, scale=scale)
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
            if result.has_finite_gradient:
                return result
        return None

    def output_error(self, index: int, reference: Pass) -> float | None:
        """Return the largest difference of the outputs from those of float32.

        Args:
            index: Number of the batch.
            reference: Result of `reference` for it.

        Returns:
            The difference, 0 without outputs; None if loss or gradient are not finite, or the
            gradient has another direction than that of float32.
        """
        result = self.finite_run(index)
        if result is None or result.cosine(reference) < MIN_COSINE:
            return None
        if result.output is None or reference.output is None:
            return 0.0
        return float((result.output - reference.output).abs().max())

    def holds(self, index: int, reference: Pass) -> bool:
        """Return whether `output_error` is defined for a batch."""
        return self.output_error(index, reference) is not None

    @contextlib.contextmanager
    def keeping(self, patterns: Mapping[str, str]) -> Iterator[None]:
        """Return a context in which further modules are in float32.

        Args:
            patterns: Pattern of each module, by path.
        """
        handle = keep_modules(self.case.model, {**self.kept, **patterns})
        try:
            yield
        finally:
            handle.remove()
            keep_modules(self.case.model, self.kept)

    def seconds(self) -> float:
        """Return the time of a forward and a backward pass of the first batch; NaN if it fails."""
        started = time.perf_counter()
        try:
            self.run(0)  # reads the loss, and so waits for the device
        except RuntimeError:
            return math.nan
        return time.perf_counter() - started

    def trains(self, trial: Trial) -> bool:
        """Return whether a short training stays finite; the weights are restored afterwards."""
        model = self.case.model
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        was_training = model.training
        model.train()
        try:
            with numerics(self.precision):
                return self._stays_finite(trial)
        except RuntimeError:
            return False
        finally:
            model.train(was_training)
            model.load_state_dict(weights)
            model.zero_grad(set_to_none=True)

    def _stays_finite(self, trial: Trial) -> bool:
        device = self.case.device.type
        optimizer = torch.optim.AdamW(self.case.model.parameters(), lr=trial.learning_rate)
        scale = self.initial_scale
        scaler = torch.amp.GradScaler(device, scale or INITIAL_SCALE, enabled=scale is not None)
        scaler.scale(torch.ones((), device=self.case.device))  # creates the scale
        for batch in islice(cycle(self.case.batches), trial.steps):
            optimizer.zero_grad(set_to_none=True)
            scale = self.fixed_scale if self.initial_scale is None else scaler.get_scale()
            loss = self.case.differentiate(batch, self.precision, scale=scale)
            if not math.isfinite(float(loss)):
                return False
            if self.initial_scale is None:
                for parameter in self.case.model.parameters():
                    if parameter.grad is not None:
                        parameter.grad /= scale
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() < MIN_LOSS_SCALE:
                return False
        return all(bool(p.isfinite().all()) for p in self.case.model.parameters())
