"""What add-ons add to a run: features, checks, simple methods, graphs, and plain clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ampft.registry import ExtensionPoint

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from accelerate import Accelerator
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from ampft.arguments import ClassifyArguments
    from ampft.data.dataset import ClassificationData
    from ampft.data.step_batches import MicroBatch, StepBatches
    from ampft.features.feature import Feature, Write
    from ampft.models.weights import LoadedModel
    from ampft.precision.resolve import Precision
    from ampft.runs.client_answers import ServedPart
    from ampft.runs.prepared import Prepared
    from ampft.runs.record import RunRecord
    from ampft.tasks.outcome import Outcome
    from ampft.tasks.task import Task

    CompareGradients = Callable[[Iterable[Tensor], Iterable[Tensor]], "GradientChange"]


class Graphs(Protocol):
    """Computes the steps of a run by CUDA graphs."""

    def check_cuda_graphs(self, prepared: Prepared) -> None:
        """Reject `--cuda_graphs` where it cannot be."""
        ...

    def uses_graphs(
        self,
        args: ClassifyArguments,
        precision: Precision,
        accelerator: Accelerator,
        loaded: LoadedModel,
    ) -> bool:
        """Return whether steps have the shapes of graphs."""
        ...

    def shaping(
        self, args: ClassifyArguments, loaded: LoadedModel, step_batches: StepBatches
    ) -> Callable[[MicroBatch], MicroBatch]:
        """Return a function that gives micro-batches these shapes."""
        ...

    def graphs_of(self, prepared: Prepared, write: Write) -> tuple[Any, Any] | None:
        """Return what computes gradients and updates by graphs; None if nothing does."""
        ...


class GroupedAttentionCheck(Protocol):
    """Checks that a model without padding runs on its device as the padded one does."""

    def __call__(
        self, prepared: nn.Module, model: PreTrainedModel, batch: Mapping[str, Tensor]
    ) -> str | None:
        """Return why attention runs in groups; None if it does not have to."""
        ...


class GradientChange(Protocol):
    """How a gradient differs from the one in float32."""

    @property
    def sums(self) -> Tensor:
        """Sums of g * g32, g^2, g32^2 and (g - g32)^2 for each parameter, (parameters, 4)."""

    @property
    def harm(self) -> object | None:
        """What is wrong with the gradient; None if it trains as the one in float32 does."""

    @property
    def cosine(self) -> float:
        """Cosine of the angle between the two."""

    @property
    def size(self) -> float:
        """Norm relative to that in float32."""

    @property
    def error(self) -> float:
        """Norm of the difference, relative to that in float32."""


class LabelInspection(Protocol):
    """Returns the feature that finds wrong labels, prints and saves them."""

    def __call__(self, task: Task, write: Write, device: torch.device, seed: int) -> Feature: ...


class RangeMonitor(Protocol):
    """Returns the feature that measures the ranges of every N-th step."""

    def __call__(
        self,
        every: int,
        accelerator: Accelerator,
        model: nn.Module,
        precision: Precision,
        write: Write,
    ) -> Feature: ...


class ServeBack(Protocol):
    """Asks plain clients about some rows of the final split, and compares their answers."""

    def __call__(
        self, folder: Path, record: RunRecord, outcome: Outcome, data: ClassificationData
    ) -> ServedPart: ...


@dataclass(frozen=True)
class MethodLimit:
    """The time that a simple method may take."""

    seconds: float
    is_left_of_max_time: bool = False  # Otherwise, it is a share of the training.


class Baselines(Protocol):
    """Returns functions that predict the rows of an outcome by simple methods."""

    def __call__(
        self,
        task: Task,
        outcome: Outcome,
        device: torch.device,
        seed: int,
        limit: MethodLimit | None,
        probe: tuple[Tensor, Tensor] | None = None,
    ) -> dict[str, Callable[[], Outcome]]: ...


@dataclass(frozen=True)
class SimpleMethods:
    """The simple methods with which a run is compared, and the time that each may take."""

    baselines: Baselines
    share: float  # Of the training.
    least_seconds: float  # Allowed even after a short training.


GRAPHS = ExtensionPoint[Graphs]("fast", "captures CUDA graphs")
GROUPED_ATTENTION_CHECK = ExtensionPoint[GroupedAttentionCheck](
    "fast", "runs models without padding"
)
# Compares the parts of a gradient with the same parts in float32.
GRADIENT_CHANGE: ExtensionPoint[Callable[[Iterable[Tensor], Iterable[Tensor]], GradientChange]] = (
    ExtensionPoint("checks", "judges gradients")
)
LABEL_INSPECTION = ExtensionPoint[LabelInspection]("checks", "inspects labels")
RANGE_MONITOR = ExtensionPoint[RangeMonitor]("checks", "watches ranges of values")
SERVE_BACK = ExtensionPoint[ServeBack]("integrations", "asks plain clients")
METHODS_TO_COMPARE = ExtensionPoint[SimpleMethods]("checks", "compares with simple methods")
# Prints the expected time of the remaining steps and the evaluations.
EXPECTED_TIME: ExtensionPoint[Callable[[Prepared], None]] = ExtensionPoint("checks", "times steps")
