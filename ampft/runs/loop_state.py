"""What a training loop is made of, its state between two steps, and its record so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from torch import nn

from ampft.data.step_batches import StepBatches
from ampft.engine.checkpoints.store import CursorPart
from ampft.engine.first_step import FirstStepMonitor
from ampft.engine.out_of_memory import OutOfMemoryRetries
from ampft.features.feature import Feature, required_feature
from ampft.features.resources import PeakMemory, PeakMemoryMonitor
from ampft.models.weights import reshard
from ampft.precision.resolve import Precision
from ampft.runs.history import History
from ampft.runs.record import RunRecord, StepIdsHash

if TYPE_CHECKING:
    from accelerate import Accelerator


class LoopSettings(Protocol):
    """The settings that every loop has, whatever it trains."""

    @property
    def output_dir(self) -> str | None:
        """Output folder."""

    @property
    def overwrite_output_dir(self) -> bool:
        """Whether the results of an earlier run are replaced."""

    @property
    def resume_from_checkpoint(self) -> str | None:
        """Folder of a checkpoint, or "latest"; None begins at the first step."""

    @property
    def allow_topology_change(self) -> bool:
        """Whether processes, devices and micro-batches may differ from the checkpoint's."""

    @property
    def auto_micro_batch(self) -> bool:
        """Whether the program chooses the number of micro-batches."""

    @property
    def checkpointing_steps(self) -> str | None:
        """When checkpoints are written."""

    @property
    def checkpoint_total_limit(self) -> int | None:
        """Number of checkpoints that are kept; None keeps all."""

    @property
    def async_checkpoints(self) -> bool:
        """Whether they are written while the training continues."""


class Parts(Protocol):
    """What a loop trains, with what."""

    @property
    def args(self) -> LoopSettings:
        """Settings of the run."""

    @property
    def accelerator(self) -> Accelerator:
        """Accelerator of the precision."""

    @property
    def precision(self) -> Precision:
        """Precision, resolved for the device."""

    @property
    def model(self) -> nn.Module:
        """Prepared model."""

    @property
    def plain_model(self) -> Any:
        """The model without what Accelerate added."""

    @property
    def optimizer(self) -> Any:
        """Prepared optimizer."""

    @property
    def schedule(self) -> Any:
        """Schedule of the learning rate, not prepared."""

    @property
    def step_batches(self) -> StepBatches:
        """Step batches of the training split."""

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole training."""

    @property
    def folder(self) -> Path:
        """Output folder."""

    @property
    def can_resume(self) -> bool:
        """Whether an exact resume is proven for the precision."""

    @property
    def record(self) -> RunRecord:
        """Record before the first step."""

    @property
    def groups_may_change(self) -> bool:
        """Whether the code of a loop may change settings and groups of the optimizer."""


@contextmanager
def entered_in_order(contexts: Iterable[AbstractContextManager[None]]) -> Iterator[None]:
    """Enter contexts of features in their order."""
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


P = TypeVar("P", bound=Parts)


@dataclass
class LoopState(Generic[P]):
    """References to everything that changes while a loop trains, and that a checkpoint saves."""

    prepared: P  # Model, optimizer, schedule and scaler.
    history: History  # History of the optimizer steps.
    features: tuple[Feature, ...]  # Features of the run, in the order in which it calls them.
    first_step: FirstStepMonitor  # Measurements of the first step.
    retries: OutOfMemoryRetries  # Step batches with the current number of micro-batches.
    step_ids: StepIdsHash  # Hash of the example ids of each step.
    initial: RunRecord  # Record of the run at its start, with its continuations from checkpoints.
    # What computes gradients and updates by CUDA graphs; None if nothing does.
    graphs: tuple[Any, Any] | None = None
    # Restores weights, optimizer, schedule and random states of the checkpoint once more, for loops
    # whose code runs before their first step; None in a run that begins.
    restore_again: Callable[[], None] | None = None

    @property
    def cursor(self) -> CursorPart:
        """Position in the training."""
        steps = self.history.steps
        epoch, step_in_epoch = divmod(steps, len(self.prepared.step_batches))
        return CursorPart(epoch=epoch, step_in_epoch=step_in_epoch, step=steps)

    def plain_model(self) -> nn.Module:
        """Return the model without what Accelerate added, with the optimizer's parameters."""
        plain: nn.Module = self.prepared.plain_model
        reshard(plain)  # the optimizer has the sharded parameters
        return plain

    def memory(self) -> PeakMemory:
        """Return the peak memory so far, with its parts if the first step has measured them."""
        memory, parts = (
            required_feature(self.features, PeakMemoryMonitor).peak,
            self.first_step.memory,
        )
        return memory if parts is None else memory.split(**parts)

    def warnings(self) -> dict[str, str]:
        """Return reasons not to trust the training so far, by name."""
        return {name: text for f in self.features for name, text in f.warnings().items()}

    def timings(self) -> dict[str, Any]:
        """Return the timings of the steps so far, and what they cover."""
        parts = len(self.initial.resumes) + 1
        covers = (
            "the whole run, in one process"
            if parts == 1
            else f"the whole run in {parts} parts, each up to the checkpoint from which the next "
            "one continues; steps that were repeated after a checkpoint count once"
        )
        graphs = {
            name: value for part in self.graphs or () for name, value in part.as_dict().items()
        }
        used = {"cuda_graphs": graphs} if graphs else {}
        steps = self.history.timings() if self.history.steps else {}
        return {**steps, "covers": covers, **used}

    def record(self, status: str) -> RunRecord:
        """Return the record of the run so far.

        Args:
            status: One of `STATUSES`.
        """
        executed, steps = self.first_step.executed, self.history.steps
        known = {name: value for f in self.features for name, value in f.record().items()}
        if steps >= self.prepared.total_steps:
            known.pop("reason", None)  # it did not end early
        return replace(
            self.initial,
            status=status,
            precision=replace(
                self.initial.precision,
                executed=None if executed is None else executed.as_dict(),
                summary=None if executed is None else executed.summary(),
                lost_updates=self.history.lost_updates(),
            ),
            steps=replace(
                self.initial.steps,
                applied=steps - self.history.skipped,
                skipped=self.history.skipped,
                micro_batches=self.retries.step_batches.micro_batches,
            ),
            example_ids_sha256=self.step_ids.hexdigest(),
            random_state_sha256=self.first_step.random_state,
            timings=self.history.timings() if steps else {},
            memory=self.memory(),
            warnings=self.warnings(),
            **known,
        )
