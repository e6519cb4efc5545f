"""Gradients of step batches, in float64 and as computed by training in a mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ampft.data.steps import MicroBatch, StepBatch
from ampft.diagnosis.yardstick.sums import StepGradient
from ampft.errors import InputError
from ampft.precision.accelerator import numerics, verify_prepared
from ampft.precision.executed import ProductRecorder, check_storage, contradiction
from ampft.precision.tf32 import apply_float32_policy
from ampft.runs.prepared import Prepared
from ampft.tasks.task import Task
from ampft.training.step import MIN_LOSS_SCALE, accumulate_gradient


class GradientSource(Protocol):
    """A callable that computes the gradient of a step batch."""

    def __call__(self, step_batch: StepBatch) -> StepGradient:
        """Return the gradient of the mean loss of `step_batch`."""
        ...


class ModeGradients:
    """Computes gradients as `recipes/classify.py` does in one mode, without dropout.

    Args:
        prepared: Training in that mode, from `prepare_mode`. It is never stepped; the scaler needs
            its optimizer to unscale the gradients.
    """

    def __init__(self, prepared: Prepared) -> None:
        check_storage(prepared.loaded.model, torch.float32)
        verify_prepared(prepared.accelerator, prepared.precision)
        self.prepared = prepared
        self.precision = prepared.precision
        self.executed: str | None = None
        self.model: nn.Module = prepared.accelerator.unwrap_model(
            prepared.model, keep_torch_compile=False
        )
        prepared.model.eval()
        self._scaler = prepared.accelerator.scaler
        self.initial_scale: float | None = (
            None if self._scaler is None else self._scaler.get_scale()
        )

    def __call__(self, step_batch: StepBatch) -> StepGradient:
        """Return the gradient of `step_batch`. The first call records the dtypes of the products.

        Raises:
            InputError: The products did not run in the requested precision.
        """
        apply_float32_policy(self.precision)  # another mode may have set it since
        with numerics(self.precision):
            if self.executed is None:
                self.executed = self._differentiate_recorded(step_batch)
            else:
                self._differentiate(step_batch)
            return self._finite_gradient(step_batch)

    def _differentiate_recorded(self, step_batch: StepBatch) -> str:
        recorder = ProductRecorder(self.precision)
        with recorder:
            self._differentiate(step_batch)
        executed = recorder.census(self.model)
        mismatch = contradiction(self.precision, executed)
        if mismatch is not None:
            raise InputError(f"--modes {self.precision.mode}: {mismatch}.")
        return executed.summary()

    def _finite_gradient(self, step_batch: StepBatch) -> StepGradient:
        """Return the computed gradient, halving the loss scale until it does not overflow."""
        scaler = self._scaler
        scale, overflowed = self.initial_scale, False
        while True:
            if scaler is not None:
                scaler.unscale_(self.prepared.optimizer.optimizer)
            gradient = gradients_of(self.model)
            finite = all(bool(g.isfinite().all()) for g in gradient.values())
            if finite or scaler is None:
                break
            overflowed = True
            scaler.update()
            scale = scaler.get_scale()
            if scale < MIN_LOSS_SCALE:
                break
            self._differentiate(step_batch)
        if scaler is not None:
            # Every batch starts at the initial scale, so that its error does not depend on others.
            scaler.update(self.initial_scale)
        self.model.zero_grad()
        return StepGradient(gradient if finite else None, overflowed or not finite, scale)

    def _differentiate(self, step_batch: StepBatch) -> None:
        self.model.zero_grad()
        accumulate_gradient(
            self.prepared.accelerator, self.prepared.model, self.prepared.task.loss, step_batch
        )


class Float64Gradients:
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
            loss = self._task.loss(self.model, _in_float64(micro_batch))
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


def _in_float64(micro_batch: MicroBatch) -> MicroBatch:
    inputs: dict[str, Any] = {
        name: value.double() if value.is_floating_point() else value
        for name, value in micro_batch.inputs.items()
    }
    return replace(micro_batch, inputs=inputs)
