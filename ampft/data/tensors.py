"""Examples that are tensors already: the simplest source of step batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ampft.data.steps import FloatArray, IntArray


@dataclass(frozen=True)
class TensorExamples:
    """Examples held in memory; each weighs one in the loss and costs the same.

    Attributes:
        tensors: Name to a tensor (n, ...) whose first dimension counts the examples.
    """

    tensors: Mapping[str, Tensor]

    @property
    def weights(self) -> FloatArray:
        """(n,) ones."""
        return np.ones(len(next(iter(self.tensors.values()))))

    @property
    def lengths(self) -> IntArray:
        """(n,) ones."""
        return np.ones(len(next(iter(self.tensors.values()))), dtype=np.int64)

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        """Return the rows `ids` of every tensor."""
        return {name: tensor[ids] for name, tensor in self.tensors.items()}
