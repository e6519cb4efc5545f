"""What `prepare` builds: the components of a training."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from ampft.arguments import ClassifyArguments
from ampft.data.steps import StepBatches
from ampft.metrics.sums import Metric
from ampft.models.weights import LoadedModel
from ampft.precision.resolve import Precision
from ampft.runs.fingerprint import configuration_of, preprocessing_of
from ampft.runs.resume_point import ResumePoint
from ampft.tasks.task import Task

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class ProcessStart:
    """Time and memory of the process after the imports, before data and model are loaded.

    Attributes:
        seconds: `time.perf_counter()`.
        memory: Peak resident set in bytes; None if it cannot be read.
    """

    seconds: float
    memory: int | None


@dataclass(frozen=True)
class Prepared:
    """The components of a training; build them with `prepare`.

    Attributes:
        started: Time and memory at the start of the process.
        args: Settings of the run.
        output_dir: Folder of the results; None writes nothing.
        precision: Precision resolved for this device.
        accelerator: Accelerator for `precision`.
        task: Examples, loss and outcome.
        loaded: Model as loaded, before `accelerator.prepare`.
        model: Prepared model.
        optimizer: Prepared optimizer.
        schedule: Learning rate schedule. It is not prepared, because Accelerate would advance it
            once per process.
        step_batches: Step batches of the training split. They are not prepared, because Accelerate
            would shard them a second time.
        check_notes: Why attention runs in groups, and the result of `--check_precision`.
        resume_point: Where the training begins with `--resume_from_checkpoint`.
    """

    started: ProcessStart
    args: ClassifyArguments
    output_dir: Path | None
    precision: Precision
    accelerator: Accelerator
    task: Task
    loaded: LoadedModel
    model: nn.Module
    optimizer: Any
    schedule: LRScheduler
    step_batches: StepBatches
    resume_point: ResumePoint | None = None
    check_notes: tuple[str, ...] = ()

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the whole training."""
        return total_steps_of(self.args, self.step_batches)

    @cached_property
    def configuration(self) -> dict[str, Any]:
        """The effective configuration of the model, see `fingerprint.configuration_of`."""
        return configuration_of(self.loaded.model)

    @cached_property
    def preprocessing(self) -> dict[str, Any]:
        """What its tokenizer or processor does, see `fingerprint.preprocessing_of`."""
        return preprocessing_of(self.task)

    @property
    def folder(self) -> Path:
        """Folder of the results of a run, which `prepare` has chosen."""
        assert self.output_dir is not None, "prepare() chooses a folder"
        return self.output_dir

    @property
    def plain_model(self) -> Any:
        """The model without what Accelerate added."""
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False)

    @property
    def resumes(self) -> bool:
        """Whether the training continues from a checkpoint."""
        return self.resume_point is not None and self.resume_point.checkpoint is not None

    @property
    def final_split(self) -> str:
        """The split of the final report: test if it exists, otherwise validation."""
        return "test" if "test" in self.task.data.splits else "validation"

    @property
    def selects_best(self) -> bool:
        """Whether the best weights on the validation split are kept."""
        return "validation" in self.task.data.splits and self.args.load_best_model_at_end

    @property
    def can_resume(self) -> bool:
        """Whether an exact resume is proven for the precision."""
        return not self.precision.properties.replaces_layers

    @property
    def best_metric(self) -> Metric:
        """The metric of the validation split that selects the best weights."""
        metrics = self.task.problem.metrics
        return metrics[self.args.metric_for_best_model or next(iter(metrics))]


def total_steps_of(args: ClassifyArguments, step_batches: StepBatches) -> int:
    """Return the optimizer steps of a whole training."""
    return args.max_train_steps or args.num_train_epochs * len(step_batches)
