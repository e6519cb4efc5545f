"""Gradients of step batches: in float64, and as training in a mode computes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ampft.data.steps import MicroBatch, StepBatch
from ampft.diagnosis.yardstick.sums import Found
from ampft.errors import InputError
from ampft.precision.accelerator import numerics, verify_prepared
from ampft.precision.executed import ProductRecorder, check_trainable_float32, contradiction
from ampft.precision.tf32 import apply_float32_policy
from ampft.runs.prepare import Prepared
from ampft.tasks.task import Task
from ampft.training.step import LOWEST_LOSS_SCALE, accumulate_gradient


class Source(Protocol):
    """Something that computes the gradient of a step batch."""

    def __call__(self, step_batch: StepBatch) -> Found:
        """Return the gradient of the mean loss of `step_batch`."""
        ...


class ModeGradients:
    """The gradient as `recipes/classify.py` computes it in one mode; dropout is off.

    Args:
        prepared: A training in that mode, from `prepare_mode`. It never steps: its optimizer only
            lets the scaler unscale the gradients.
    """

    def __init__(self, prepared: Prepared) -> None:
        check_trainable_float32(prepared.loaded.model)
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

    def __call__(self, step_batch: StepBatch) -> Found:
        """Return the gradient of `step_batch`; the first one is watched for its dtypes.

        Raises:
            InputError: The products ran in another precision than was asked for.
        """
        apply_float32_policy(self.precision)  # another mode may have set it since
        with numerics(self.precision):
            if self.executed is None:
                self.executed = self._watched(step_batch)
            else:
                self._differentiate(step_batch)
            return self._finite(step_batch)

    def _watched(self, step_batch: StepBatch) -> str:
        recorder = ProductRecorder(self.precision)
        with recorder:
            self._differentiate(step_batch)
        executed = recorder.census(self.model)
        wrong = contradiction(self.precision, executed)
        if wrong is not None:
            raise InputError(f"--modes {self.precision.mode}: {wrong}.")
        return executed.summary()

    def _finite(self, step_batch: StepBatch) -> Found:
        """Return the gradient just computed, or that at half the scale while it overflows."""
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
            if scale < LOWEST_LOSS_SCALE:
                break
            self._differentiate(step_batch)
        if scaler is not None:
            # Every batch begins like the first, so that its error depends on itself alone.
            scaler.update(self.initial_scale)
        self.model.zero_grad()
        return Found(gradient if finite else None, overflowed or not finite, scale)

    def _differentiate(self, step_batch: StepBatch) -> None:
        self.model.zero_grad()
        accumulate_gradient(
            self.prepared.accelerator, self.prepared.model, self.prepared.task.loss, step_batch
        )


class Float64Gradients:
    """The reference: plain torch in float64.

    Args:
        task: Its loss keeps the dtype of float64 logits.
        model: Padded; becomes float64. Not prepared.
        device: Where to compute.
    """

    def __init__(self, task: Task, model: nn.Module, device: torch.device) -> None:
        self.model = model.to(device).double().eval()
        self._task = task

    def __call__(self, step_batch: StepBatch) -> Found:
        """Return the float64 gradient of `step_batch`."""
        self.model.zero_grad()
        for micro_batch in step_batch:
            loss = self._task.loss(self.model, _in_float64(micro_batch))
            assert loss.dtype == torch.float64, "the task rounds its loss to fewer bits"
            (loss / step_batch.effective_weight).backward()
        gradient = gradients_of(self.model)
        self.model.zero_grad()
        return Found(gradient)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradient of every trainable parameter; zeros where the loss does not reach."""
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
