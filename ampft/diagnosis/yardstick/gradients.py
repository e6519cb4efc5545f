"""Gradients of step batches, in float64 and as computed by training in a mode."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ampft.data.steps import StepBatch
from ampft.diagnosis.yardstick.figures import StepGradient
from ampft.errors import InputError
from ampft.precision.accelerator import numerics, verify_prepared
from ampft.precision.executed import ProductRecorder, check_storage, contradiction
from ampft.precision.tf32 import apply_float32_policy
from ampft.runs.prepared import Prepared
from ampft.tasks.task import Task
from ampft.training.loss_scale import ScaledGradient, finite_gradient, lowered_scales
from ampft.training.step import accumulate_gradient


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
        scaler = prepared.accelerator.scaler
        self.initial_scale: float | None = None if scaler is None else scaler.get_scale()

    def __call__(self, step_batch: StepBatch) -> StepGradient:
        """Return the gradient of `step_batch`. The first call records the dtypes of the products.

        Raises:
            InputError: The products did not run in the requested precision.
        """
        apply_float32_policy(self.precision)  # another mode may have set it since
        with numerics(self.precision):
            scales = lowered_scales(self.initial_scale)
            found = finite_gradient(partial(self._at_scale, step_batch), scales)
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
            mismatch = contradiction(self.precision, executed)
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
