"""An exponential moving average of the trained weights, which is evaluated and saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ampft.features.feature import Feature, SavedFeature, StepRecord
from ampft.text.json_io import Count
from ampft.training.checkpoints.writing import write_tensors

RAW_PREFIX = "raw/"  # of the weights of training in the file of the best weights
RAW_NAME = "raw_weights.safetensors"


@dataclass(frozen=True)
class AverageState:
    """The number of steps in an average."""

    updates: Count


class AveragedWeights(Feature):
    """The average of the trained weights over the optimizer steps.

    After step t, counted from 0, the average is d times itself plus (1 - d) times the weights, with
    d = min(decay, (1 + t) / (10 + t)), so that the initial weights are soon forgotten. Source:
    TensorFlow's `ExponentialMovingAverage` with `num_updates`. It is float32 in every mode. Frozen
    weights and buffers are not averaged.

    Attributes:
        decay: Largest weight of the old average.
        updates: Number of steps in the average.
        raw: Weights of training by name, while the model has the average in their place.
    """

    name = "average"

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Begin with the current weights.

        Args:
            model: Model, not prepared, whose parameters the optimizer changes.
            decay: Largest weight of the old average, in (0, 1).
        """
        self.decay = decay
        self.updates = 0
        self.raw: dict[str, Tensor] = {}
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._average = {n: p.detach().float().clone() for n, p in self._parameters.items()}

    def after_step(self, record: StepRecord) -> Mapping[str, float]:
        """Add the weights after a step that was applied."""
        if not record.outcome.skipped:
            self.update()
        return {}

    def update(self) -> None:
        """Add the weights after an optimizer step that was not skipped."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        current = [parameter.detach().float() for parameter in self._parameters.values()]
        get_ema_multi_avg_fn(decay)(list(self._average.values()), current, 0)
        self.updates += 1

    @contextmanager
    def around_evaluation(self) -> Iterator[None]:
        """Give the model the average, inside this context."""
        self.apply()
        try:
            yield
        finally:
            for name, parameter in self._parameters.items():
                parameter.data = self.raw[name]
            self.raw = {}

    def apply(self) -> None:
        """Give the model a copy of the average; `raw` has the weights of training."""
        self.raw = {name: parameter.data for name, parameter in self._parameters.items()}
        for name, parameter in self._parameters.items():
            parameter.data = self._average[name].to(parameter.dtype, copy=True)

    def replaces_weights(self, step: int) -> bool:
        """Return True: the average is evaluated and saved."""
        del step
        return True

    def choose_weights(self) -> bool:
        """Give the model the average."""
        self.apply()
        return True

    def save(self, folder: Path, model: nn.Module) -> None:
        """Write the weights of training, while the model has the average in their place."""
        del model
        write_tensors(folder / RAW_NAME, self.raw)

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the average by name."""
        return self._average

    def state(self) -> AverageState:
        """Return the number of steps in the average."""
        return AverageState(self.updates)

    def restore(self, saved: SavedFeature) -> None:
        """Restore the average, in place."""
        self.updates = saved.state.updates
        for name, tensor in self._average.items():
            tensor.copy_(saved.tensors[name])
