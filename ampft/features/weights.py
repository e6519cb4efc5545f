"""Which weights are evaluated and saved: averaged ones, the best ones, merged adapters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ampft.engine.checkpoints.store import BEST_NAME
from ampft.engine.checkpoints.writing import without_prefix, write_tensors
from ampft.errors import InputError
from ampft.features.early_stopping import EarlyStopping
from ampft.features.feature import Feature, SavedFeature, StepRecord
from ampft.files import FileDigest, Sealed, atomic_path, check_disk_space
from ampft.hub import is_folder_or_hub_id
from ampft.models.adapters import adapter_files, lora_config, merge_adapters, write_files
from ampft.models.model_settings import ADAPTER_FOLDER
from ampft.models.weights import (
    LoadedModel,
    gather_model_state,
    gather_sharded_weights,
    gather_tensors,
    load_into_sharded_model,
    local_shard,
    reshard,
    sharded_like,
)
from ampft.ownership import private_file
from ampft.precision.accelerator import is_sharded
from ampft.precision.executed import dtype_name
from ampft.text.json_io import Count

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
    """

    name = "average"

    def __init__(self, model: nn.Module, decay: float) -> None:
        """Begin with the current weights.

        Args:
            model: Model whose parameters the optimizer changes; it may be sharded.
            decay: Largest weight of the old average, in (0, 1).
        """
        self.decay = decay  # Largest weight of the old average.
        self.updates = 0  # Number of steps in the average.
        # Weights of training by name, while the model has the average in their place.
        self.raw: dict[str, Tensor] = {}
        self._model = model
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
        current = [local_shard(p.detach()).float() for p in self._parameters.values()]
        averages = [local_shard(tensor) for tensor in self._average.values()]
        get_ema_multi_avg_fn(decay)(averages, current, 0)
        self.updates += 1

    @contextmanager
    def around_evaluation(self) -> Iterator[None]:
        """Give the model the average, inside this context."""
        self.apply()
        try:
            yield
        finally:
            self._copy_to_model(self.raw)
            self.raw = {}

    def apply(self) -> None:
        """Give the model a copy of the average; `raw` has the weights of training."""
        self.raw = {name: p.detach().clone() for name, p in self._parameters.items()}
        self._copy_to_model(self._average)

    def _copy_to_model(self, tensors: Mapping[str, Tensor]) -> None:
        reshard(self._model)
        for name, parameter in self._parameters.items():
            local_shard(parameter.detach()).copy_(local_shard(tensors[name]))

    def replaces_weights(self, step: int) -> bool:
        """Return True: the average is evaluated and saved."""
        return True

    def choose_weights(self) -> bool:
        """Give the model the average; `raw` then has whole tensors, on the main process."""
        self.apply()
        self.raw = gather_tensors(self.raw)
        return True

    def save(self, folder: Path, model: nn.Module) -> None:
        """Write the weights of training, while the model has the average in their place."""
        write_tensors(folder / RAW_NAME, self.raw)

    def tensors(self) -> Mapping[str, Tensor]:
        return self._average

    def state(self) -> AverageState:
        """Return the number of steps in the average."""
        return AverageState(self.updates)

    def restore(self, saved: SavedFeature) -> None:
        self.updates = saved.state.updates
        for name, tensor in self._average.items():
            local_shard(tensor).copy_(local_shard(sharded_like(saved.tensors[name], tensor)))


class Selector(Protocol):
    """What chooses between evaluations, such as a `Metric`."""

    @property
    def name(self) -> str:
        """Name of the metric."""

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values are better."""


@dataclass
class BestModel:
    """Keeps the weights of the best validation on disk."""

    output_dir: Path  # Output folder of the run.
    metric: Selector  # Metric of the validation split by which the best weights are kept.
    stopping: EarlyStopping = field(default_factory=EarlyStopping)  # Counts the evaluations.
    step: int | None = None  # Optimizer steps before the best evaluation so far.
    value: float | None = None  # Value of the metric in that evaluation.
    tie: float | None = None  # Its log loss: of equal values, the one with the lowest is the best.
    # Hash and size of the file, on the main process; None before the first evaluation.
    file: FileDigest | None = None
    # Average of the weights; the file then also has the weights of training.
    average: AveragedWeights | None = None

    @property
    def path(self) -> Path:
        """Safetensors file, written by the main process.

        It is replaced, never changed, so that checkpoints may link to it.

        Raises:
            InputError: Another program replaced its folder during the run.
        """
        return private_file(self.output_dir, BEST_NAME)

    def update(
        self,
        value: float | None,
        step: int,
        accelerator: Accelerator,
        model: nn.Module,
        *,
        tie: float | None = None,
    ) -> bool:
        """Save the weights if `value` of the metric is the best so far; return whether it is.

        An undefined value (None or NaN) is never the best. Of equal values the one with the lowest
        log loss is kept. Patience waits for more than rounding: a gain of a millionth of the value.

        Args:
            step: Optimizer steps before the evaluation.
            accelerator: Accelerator that prepared the model.
            tie: Log loss, which decides between equal values.

        Raises:
            InputError: The weights do not fit on the disk.
        """
        sign = 1 if self.metric.higher_is_better else -1
        best = -math.inf if self.value is None else sign * self.value
        gain = -math.inf if value is None else sign * value - best
        self.stopping.count(improved=gain > 1e-6 * abs(value or 0.0))
        is_lower = tie is not None and self.tie is not None and tie < self.tie
        if not (gain > 0 or (gain == 0 and is_lower)):
            return False
        self.step, self.value, self.tie = step, value, tie
        weights = gather_model_state(accelerator, model)
        raw = gather_tensors({} if self.average is None else self.average.raw)
        if accelerator.is_main_process:
            named = {**weights, **{f"{RAW_PREFIX}{name}": tensor for name, tensor in raw.items()}}
            size = sum(tensor.nbytes for tensor in named.values())
            check_disk_space(self.output_dir, size, "saving the best weights so far")
            with atomic_path(self.path) as temporary:
                self.file = write_tensors(temporary, named)
        return True

    def restore(self, accelerator: Accelerator, model: nn.Module) -> None:
        """Load the best weights into `model`. Their file remains until the run has ended.

        Raises:
            InputError: Their file is not the one that the run wrote, or does not fit the model.
        """
        accelerator.wait_for_everyone()
        errors: list[str | None] = [None]
        if accelerator.is_main_process:
            sealed = Sealed(
                folder=self.path.parent,
                manifest="",
                files={} if self.file is None else {self.path.name: self.file},
                event="its validation",
                remedy="",
            )
            for _, problem in sealed.faults([self.path.name]):
                errors = [_not_loaded(self.path, problem)]
        if accelerator.num_processes > 1:
            broadcast_object_list(errors)
        if errors[0] is not None:
            raise InputError(errors[0])
        unwrapped = accelerator.unwrap_model(model, keep_torch_compile=False)
        sharded = is_sharded(accelerator)
        tensors = {} if sharded and not accelerator.is_main_process else load_file(self.path)
        model_tensors = {n: t for n, t in tensors.items() if not n.startswith(RAW_PREFIX)}
        if self.average is not None:
            self.average.raw = without_prefix(tensors, RAW_PREFIX)
        if sharded:
            load_into_sharded_model(model, model_tensors)
        else:
            _check_fits(self.path, model_tensors, unwrapped.state_dict())
            unwrapped.load_state_dict(model_tensors)
        accelerator.wait_for_everyone()


def _not_loaded(path: Path, problem: str) -> str:
    return (
        f"{path}: the file of the best weights {problem}, so they were not loaded. If the run has "
        "checkpoints, continue with --resume_from_checkpoint latest. Otherwise repeat it, in a "
        "folder that no other program writes to."
    )


def _check_fits(path: Path, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Check that tensors have the names, shapes and dtypes of a model.

    Raises:
        InputError: They do not; the message names the first difference.
    """
    for name in sorted({*found, *expected}):
        kinds = [
            f"{dtype_name(tensors[name].dtype)} {list(tensors[name].shape)}"
            if name in tensors
            else "missing"
            for tensors in (found, expected)
        ]
        if kinds[0] != kinds[1]:
            problem = f"has {name} as {kinds[0]}, and the model has it as {kinds[1]}"
            raise InputError(_not_loaded(path, problem))


@dataclass
class AdapterMerging(Feature):
    """Merges the adapters, so that the model that is saved is the one that is evaluated.

    transformers and PEFT load a folder of adapters with the labels of the base model, or not at
    all, so that a whole model is saved, and the adapters in a subfolder.
    """

    name = "merged_adapters"

    model: Any  # Model without what Accelerate added.
    loaded: LoadedModel  # Model as it was loaded.
    _files: Mapping[str, bytes] = field(default_factory=dict)

    def choose_weights(self) -> bool:
        """Merge the adapters, which cannot be undone."""
        base, state = self.loaded.name, gather_sharded_weights(self.model)
        has_state = state is None or bool(state)  # of a sharded model only the main process
        if lora_config(self.model) is not None and is_folder_or_hub_id(base) and has_state:
            base_hash = self.loaded.base_sha256
            self._files = adapter_files(self.model, base=base, base_hash=base_hash, state=state)
        reshard(self.model)
        merge_adapters(self.model)
        return False

    def save(self, folder: Path, model: nn.Module) -> None:
        """Write the adapters into a subfolder, if their base can be loaded again."""
        if self._files:
            write_files(folder / ADAPTER_FOLDER, self._files)
