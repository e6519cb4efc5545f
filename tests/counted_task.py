"""A task whose logits are a function of the example id, for evaluations by the hundred."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ampft.data.step_batches import TensorExamples
from ampft.tasks.single_label import Predictions, SingleLabel

CLASSES = ("ant", "bee", "cow")


class BufferedModel(nn.Module):
    """A linear model with a buffer, which DistributedDataParallel broadcasts before a forward."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.linear = nn.Linear(4, len(CLASSES))
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(len(CLASSES), 4, generator=generator))
            self.linear.bias.zero_()
        self.register_buffer("offset", torch.zeros(len(CLASSES)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.offset


@dataclass(frozen=True)
class CountedTask:
    """What `evaluate` asks of a task, over n random vectors."""

    n: int

    @property
    def _labels(self) -> np.ndarray:
        return np.random.default_rng(self.n).integers(0, len(CLASSES), self.n)

    def examples(self, split: str) -> TensorExamples:
        generator = torch.Generator().manual_seed(self.n)
        return TensorExamples({"x": torch.randn(self.n, 4, generator=generator)})

    def logits(self, model: nn.Module, inputs) -> torch.Tensor:
        return model(inputs["x"]).float()

    def decode(self, model: nn.Module, inputs) -> dict[str, torch.Tensor]:
        return SingleLabel(CLASSES).decode(self.logits(model, inputs))

    def outcome(self, split: str, kept) -> Predictions:
        return SingleLabel(CLASSES).outcome(split, self._labels, kept)
