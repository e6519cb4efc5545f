"""A feature of a run: everything that it adds to the loop, in one place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from ampft.training.step import StepOutcome


class Feature:
    """A feature of a run, such as averaged weights. A run has an ordered list of them.

    The hooks do nothing in this class. The run calls each of them on all processes, in the order of
    the list, unless stated otherwise. A checkpoint has the state of each feature: names, shapes and
    dtypes of `tensors`, and the form of `values`, are the same from the first step to the last.

    Attributes:
        name: Name of its state in checkpoints.
    """

    name: ClassVar[str]

    def around_gradient(self, step: int) -> AbstractContextManager[None]:
        """Return a context for the forward and backward passes of a step.

        On exit, the model has the gradient before it is clipped, times the loss scale.

        Args:
            step: Number of the step, from 1.
        """
        del step
        return nullcontext()

    def after_step(self, outcome: StepOutcome) -> Mapping[str, float]:
        """Return the columns of a step, applied or not, in the history; empty without any."""
        del outcome
        return {}

    def around_evaluation(self) -> AbstractContextManager[None]:
        """Return a context for an evaluation on the validation split."""
        return nullcontext()

    def warnings(self) -> Mapping[str, str]:
        """Return reasons not to trust the run so far, by name."""
        return {}

    def save(self, folder: Path) -> None:
        """Write files next to the final model, on the main process."""

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the tensors of its state, by name."""
        return {}

    def values(self) -> Mapping[str, Any]:
        """Return the rest of its state, as JSON values by name."""
        return {}

    def restore(
        self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], history: bytes
    ) -> None:
        """Restore a state, before the first step of this process.

        Args:
            tensors: Result of `tensors`.
            values: Result of `values`.
            history: The part of history.jsonl up to the checkpoint.
        """


def tensors_of(features: Iterable[Feature]) -> dict[str, Tensor]:
    """Return the tensors of features by name. Each name begins with the feature's name."""
    return {f"{f.name}/{name}": tensor for f in features for name, tensor in f.tensors().items()}
