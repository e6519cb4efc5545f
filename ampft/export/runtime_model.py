"""A module that predicts with another runtime, so that all code for models can call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers.modeling_outputs import ModelOutput

Arrays = Mapping[str, npt.NDArray[Any]]


class RuntimeModel(nn.Module):
    """A model whose forward pass is a call of another runtime on the CPU.

    Attributes:
        config: Configuration of the model, which says how its batches are made.
        session: The session or compiled model of the runtime.
        parameter: Says that inputs are float32 and on the CPU, as a parameter of a model does.
    """

    def __init__(
        self,
        config: Any,
        session: Any,
        names: Sequence[str],
        call: Callable[[Arrays], npt.NDArray[Any]],
    ) -> None:
        """Wrap a session.

        Args:
            config: Configuration of the model.
            session: The session.
            names: Names of its inputs.
            call: Function that returns the logits of a batch.
        """
        super().__init__()
        self.config = config
        self.session = session
        self.parameter = nn.Parameter(torch.zeros(()), requires_grad=False)
        self._names, self._call = tuple(names), call

    def forward(self, **inputs: Tensor) -> Any:
        """Return the logits as float32."""
        logits = self._call({name: inputs[name].numpy() for name in self._names})
        return ModelOutput(logits=torch.from_numpy(np.array(logits, dtype=np.float32)))
