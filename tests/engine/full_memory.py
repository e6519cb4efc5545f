"""A simulated device with limited memory, and a small network with dropout and batch norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ampft.data.step_batches import MicroBatch, TensorExamples

EXAMPLES, EFFECTIVE = 36, 12


class Full(nn.Module):
    """Raises out-of-memory errors for more than `rows` rows, in the forward or backward pass."""

    def __init__(self, rows: int, where: str = "forward") -> None:
        super().__init__()
        self.rows, self.where = rows, where

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.rows and self.where == "forward":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0")
        if len(x) > self.rows and x.requires_grad:
            x.register_hook(_raise)
        return x


def _raise(gradient: Tensor) -> Tensor:
    raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")


def network(full: Full, *, dropout: float = 0.5, norm: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 16),
        nn.BatchNorm1d(16, track_running_stats=True) if norm else nn.Tanh(),
        full,
        nn.Dropout(dropout),
        nn.Linear(16, 4),
    )


def examples() -> TensorExamples:
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(4, (EXAMPLES,), generator=generator)
    return TensorExamples({"x": torch.randn(EXAMPLES, 8, generator=generator), "labels": labels})


def loss(model: nn.Module, micro_batch: MicroBatch) -> Tensor:
    logits = model(micro_batch.inputs["x"])
    return cross_entropy(logits, micro_batch.inputs["labels"], reduction="sum")
