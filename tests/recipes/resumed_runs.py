"""Interrupts runs where a test wants it, and gathers what must not depend on that."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from running import text_settings

from ampft.engine.out_of_memory import OutOfMemoryRetries
from ampft.runs.run import Run

TIMES = ("seconds", "examples_per_second", "tokens_per_second", "waiting_share", "memory_mib")
LATEST = ("--resume_from_checkpoint", "latest")
RECORDED = (
    "status", "steps", "example_ids_sha256", "random_state_sha256", "validations", "best",
    "metrics", "warnings", "label_names", "arguments",
)  # fmt: skip


def two_epochs(files: Path, model: Path, folder: Path, *more: object) -> list[str]:
    """Return flags that train 2 epochs of 9 steps."""
    settings = text_settings(files, model, folder)
    return [*settings, "--num_train_epochs", "2", *map(str, more)]


@contextlib.contextmanager
def interrupted(step: int | None, *, saving: bool = False) -> Iterator[None]:
    """Interrupt a run in the optimizer step `step`, from 1, after its update of the weights.

    Args:
        step: The step; None interrupts nothing.
        saving: Whether to interrupt after the step instead, between a checkpoint and a validation.
    """
    record = Run.record

    def record_or_stop(self, outcome):
        is_last = self.steps + 1 == step
        if is_last and saving:
            record(self, outcome)
            self.checkpoints.save("before the validation")
        if is_last:
            raise KeyboardInterrupt
        record(self, outcome)

    with patch.object(Run, "record", record_or_stop):
        yield


@contextlib.contextmanager
def large_loss_scale() -> Iterator[None]:
    """Let fp16 begin with a scale at which the first steps overflow."""
    scaler = partial(torch.amp.GradScaler, init_scale=2.0**26)
    with patch.object(torch.amp, "GradScaler", scaler):
        yield


@contextlib.contextmanager
def full_memory(step: int) -> Iterator[None]:
    """Let memory run out in a step of the first epoch, from 1, and later, with one micro-batch."""
    gradient = OutOfMemoryRetries.gradient

    def planted(self, compute, step_batch):
        def compute_or_raise(batch):
            if (batch.epoch, batch.step + 1) >= (0, step) and len(batch.micro_batches) == 1:
                raise MemoryError("planted")
            return compute(batch)

        return gradient(self, compute_or_raise, step_batch)

    with patch.object(OutOfMemoryRetries, "gradient", planted):
        yield


def evidence(folder: Path) -> dict[str, Any]:
    """Return what must not depend on interruptions."""
    record = json.loads((folder / "run.json").read_text())
    record["arguments"] = {
        name: value
        for name, value in record["arguments"].items()
        if not name.startswith(("output_dir", "resume", "checkpoint", "async"))
    }
    rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    return {
        "weights": _sha256(folder / "model.safetensors"),
        "predictions": _sha256(folder / "predictions.parquet"),
        "history": [{k: v for k, v in row.items() if k not in TIMES} for row in rows],
        **{name: record[name] for name in RECORDED},
        "lost updates": record["precision"]["lost_updates"],
        "executed": record["precision"]["executed"],
    }


def checkpoints(folder: Path) -> list[str]:
    """Return the names of everything visible in the folder of the checkpoints."""
    return sorted(path.name for path in (folder / "checkpoints").glob("[!.]*"))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
