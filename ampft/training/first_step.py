"""What the first optimizer step shows of a run: the dtypes that it multiplied, and its memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import nn

from ampft.executed import ExecutedDtypes, ProductRecorder
from ampft.precision import Precision
from ampft.tensor_census import state_bytes, tensor_bytes
from ampft.training.saved_tensors import SavedBytes


@dataclass
class FirstStep:
    """Measures the first optimizer step and leaves the others alone.

    Attributes:
        precision: What the step was meant to compute in.
        executed: What it computed in; None before its end.
        memory: Bytes by name: weights, gradients, optimizer_state and activations.
    """

    precision: Precision
    executed: ExecutedDtypes | None = None
    memory: dict[str, int] | None = None

    @contextmanager
    def measured(self, model: nn.Module, optimizer: Any) -> Iterator[None]:
        """Measure what happens inside, if it is the first step.

        Args:
            model: Its gradients stay until the context is left.
            optimizer: As Accelerate prepared it.
        """
        if self.executed is None:
            recorder, saved = ProductRecorder(self.precision), SavedBytes(model.parameters())
            with recorder, saved:
                yield
            self.executed = recorder.census(model, optimizer.optimizer)
            gradients = (p.grad for p in model.parameters() if p.grad is not None)
            self.memory = {
                "weights": tensor_bytes(model.parameters()),
                "gradients": tensor_bytes(gradients),
                "optimizer_state": 0,
                "activations": saved.peak,
            }
        else:
            yield
        # A step that fp16 skips leaves an optimizer as empty as it was.
        if self.memory is not None and self.memory["optimizer_state"] == 0:
            self.memory["optimizer_state"] = state_bytes(optimizer.optimizer)
