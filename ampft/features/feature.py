"""A feature of a run: everything that it adds to the loop, in one place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ampft.data.step_batches import StepBatch
    from ampft.engine.step import StepOutcome
    from ampft.files import FileDigest
    from ampft.tasks.outcome import Outcome

Write = Callable[[str], None]
"""Prints a line above the progress bar, on the main process."""


@dataclass(frozen=True)
class StepRecord:
    """An optimizer step that was made."""

    number: int  # Number of the step, from 1.
    batch: StepBatch  # Step batch of this process, as cut into micro-batches.
    losses: Sequence[Tensor]  # Results of `backward` for its micro-batches.
    outcome: StepOutcome  # Its outcome.
    ends_run: bool = False  # Whether the run stops because of it, before its update was applied.


@dataclass(frozen=True)
class SavedFeature:
    """What a checkpoint has for a feature."""

    state: Any  # Result of `Feature.state`; None if the feature has no state.
    tensors: Mapping[str, Tensor]  # Result of `Feature.tensors`.
    step: int  # Optimizer steps before the checkpoint.
    history: bytes  # The part of history.jsonl up to the checkpoint.
    folder: Path  # Folder of the checkpoint.
    files: Mapping[str, FileDigest]  # Hash and size of its files, by name.


class Feature:
    """A feature of a run, such as averaged weights. A run has an ordered list of them.

    The hooks do nothing in this class. The run calls each of them on all processes, in the order of
    the list, unless stated otherwise. They follow here in the order of a run.
    """

    name: ClassVar[str]  # Name of its state in checkpoints.

    def begin(self) -> None:
        """Begin, before the first step of this process and after `restore`."""

    def around_gradient(self, step: int) -> AbstractContextManager[None]:
        """Return a context for the forward and backward passes of a step.

        On exit, the model has the gradient before it is clipped, times the loss scale.

        Args:
            step: Number of the step, from 1.
        """
        return nullcontext()

    def after_step(self, record: StepRecord) -> Mapping[str, float | None]:
        """Return the columns of a step, applied or not, in the history; empty without any."""
        return {}

    @property
    def should_stop(self) -> bool:
        """Whether the training ends after this step, equal in all processes without a vote."""
        return False

    def around_evaluation(self) -> AbstractContextManager[None]:
        """Return a context for an evaluation on the validation split."""
        return nullcontext()

    def decided(self, outcome: Outcome, validation: Callable[[], Outcome]) -> Outcome:
        """Return an outcome with other decisions.

        Args:
            outcome: Outcome of any split.
            validation: Function that predicts the validation split, with these decisions.
        """
        return outcome

    def at_validation(self, step: int, outcome: Outcome) -> None:
        """Take note of an evaluation after `step` steps, inside `around_evaluation`."""

    def replaces_weights(self, step: int) -> bool:
        """Return whether `choose_weights` changes the weights of a training of `step` steps."""
        return False

    def choose_weights(self) -> bool:
        """Give the model the weights that are evaluated at the end and saved.

        Returns:
            Whether the weights before it can be loaded again.
        """
        return True

    def save(self, folder: Path, model: nn.Module) -> None:
        """Write files next to the final model, on the main process, before it is evaluated.

        Args:
            folder: Folder of the model, before it is published.
            model: Model, not yet saved, whose configuration may be changed.
        """

    def end(self, step: int, outcome: Outcome) -> None:
        """Take note of the final outcome, after `step` steps."""

    def save_results(self, folder: Path) -> None:
        """Write files that need the final outcome, on the main process.

        Args:
            folder: Folder of the results, before they are published.
        """

    def timings(self, timings: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return further timings for the record of a finished run, on the main process.

        Args:
            timings: Timings of the optimizer steps.
        """
        return {}

    def published(self, folder: Path) -> None:
        """Use the results, which are complete in `folder`, on the main process."""

    def record(self) -> Mapping[str, Any]:
        """Return its fields of the run record, by name."""
        return {}

    def warnings(self) -> Mapping[str, str]:
        """Return reasons not to trust the run so far, by name."""
        return {}

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the tensors of its state. Names, shapes and dtypes are the same in all steps."""
        return {}

    def state(self) -> Any:
        """Return the rest of its state: a dataclass that `from_json` can read; None without any."""
        return None

    def restore(self, saved: SavedFeature) -> None:
        """Restore a state, before the first step of this process."""


F = TypeVar("F", bound=Feature)


def required_feature(features: Iterable[Feature], kind: type[F]) -> F:
    """Return the feature of a kind that every run has."""
    return next(feature for feature in features if isinstance(feature, kind))


def tensors_of(features: Iterable[Feature]) -> dict[str, Tensor]:
    """Return the tensors of features by name. Each name begins with the feature's name."""
    return {f"{f.name}/{name}": tensor for f in features for name, tensor in f.tensors().items()}
