"""What the first optimizer step shows of a run: its dtypes, its memory, what it drew at random."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ampft.precision.executed import ExecutedDtypes, ProductRecorder, state_bytes, tensor_bytes
from ampft.precision.resolve import Precision
from ampft.training.saved_tensors import SavedBytes


@dataclass
class FirstStep:
    """Measures the first optimizer step and leaves the others alone.

    Attributes:
        precision: What the step was meant to compute in.
        executed: What it computed in; None before its end.
        memory: Bytes by name: weights, gradients, optimizer_state and activations.
        random_state: SHA-256 of the generators that dropout draws from, after the step: runs that
            agree in it dropped the same, as far as their layers are the same.
    """

    precision: Precision
    executed: ExecutedDtypes | None = None
    memory: dict[str, int] | None = None
    random_state: str | None = None

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
            self.random_state = _random_state()
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


def _random_state() -> str:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states.append(torch.cuda.get_rng_state())
    digest = hashlib.sha256()
    for state in states:
        digest.update(state.numpy().tobytes())
    return digest.hexdigest()
