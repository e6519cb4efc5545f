"""A task: inputs and a problem, combined for the loop, the evaluation and the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from ampft.data.dataset import ClassificationData
from ampft.data.groups import FILE_COLUMN, ID_COLUMN, NUMBER_COLUMNS
from ampft.data.row_labels import Targets
from ampft.data.steps import FloatArray, IntArray, MicroBatch
from ampft.errors import InputError
from ampft.models.adapters import check_whole_layers
from ampft.models.trained_part import TrainedPart, restrict_training
from ampft.models.weights import LoadedModel
from ampft.precision.float32_modules import apply_patterns, description
from ampft.tasks import TASKS, TaskKind, default_task
from ampft.tasks.outcome import Outcome, Problem
from ampft.tasks.windows import select_logits

# Flags that have no effect on other kinds of data.
WORDS = ("text", "token")
KINDS_OF_FLAGS = {
    "max_seq_length": WORDS,
    "long_text": WORDS,
    "stride": WORDS,
    "padding": WORDS,
    "pad_to_multiple_of": WORDS,
    "token_buckets": WORDS,
    "image_size": ("pixels",),
    "multi_scale": ("pixels",),
    "augment": ("image", "sound", "pixels"),
    "channels_last": ("image",),
}
ORIGINS = {FILE_COLUMN: "file", **NUMBER_COLUMNS, ID_COLUMN: "id"}


@dataclass(frozen=True)
class TaskSettings:
    """The user's choices about a task.

    Attributes:
        task: Name of the task; None uses the default for the kind of data.
        model_name_or_path: Folder or hub id; None uses the default model of the task.
        max_seq_length: Maximum number of tokens; longer texts are truncated and counted, or split.
        long_text: What happens to longer texts: `truncate` or `windows`. Words with labels always
            get windows.
        stride: Number of tokens that neighbouring windows share; None for a quarter of a window.
        pad_to_multiple_of: Number of which padded lengths are multiples; None pads to the longest.
        class_weights: None, "balanced", or comma-separated weights in the order of the labels.
        label_smoothing: Share of the target that is spread over all classes, 0 to 1.
        focal_gamma: Exponent of the focal loss; 0 for cross entropy.
        threshold: Probability from which a label is predicted, if there can be several.
        remove_padding: Whether the model runs without padding if its architecture is supported.
        token_buckets: Number of which the tokens of a micro-batch without padding are multiples,
            by fillers; None adds no fillers.
        gradient_checkpointing: Whether activations are recomputed in the backward pass.
        trust_remote_code: Whether code from a model's repository may run.
        trained_part: Part of the model that is trained.
        augment: Comma-separated random changes of training examples; None for no change.
        channels_last: Whether convolutions store the channels of a pixel next to each other.
        seed: Seed of the augmentation.
        image_size: Height and width of the model's input; None for the image processor's.
        multi_scale: Whether images with masks are scaled by a random factor in each step.
        fp32_modules: Patterns of modules that compute in float32; if empty, those that the model
            was saved with.
    """

    task: str | None = None
    model_name_or_path: str | None = None
    max_seq_length: int = 128
    long_text: str = "truncate"
    stride: int | None = None
    pad_to_multiple_of: int | None = None
    class_weights: str | None = None
    label_smoothing: float = 0.0
    focal_gamma: float = 0.0
    threshold: float = 0.5
    remove_padding: bool = True
    token_buckets: int | None = None
    gradient_checkpointing: bool = False
    trust_remote_code: bool = False
    trained_part: TrainedPart = field(default_factory=TrainedPart)
    augment: str | None = None
    channels_last: bool = False
    seed: int = 0
    image_size: tuple[int, int] | None = None
    multi_scale: bool = False
    fp32_modules: tuple[str, ...] = ()

    def changes(self, flag: str) -> bool:
        """Return whether a flag has another value than its default."""
        if flag == "padding":
            return not self.remove_padding
        return bool(getattr(self, flag) != getattr(TaskSettings, flag))


class InputExamples(Protocol):
    """The inputs of one split, as tensors on request."""

    @property
    def lengths(self) -> IntArray:
        """(n,) cost of each example: its number of tokens, or 1 if all cost the same."""
        ...

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        """Return the model's inputs of the examples `ids`, padded to one shape."""
        ...


@runtime_checkable
class AugmentedInputs(Protocol):
    """Inputs that are augmented in training."""

    def for_epoch(self, epoch: int) -> InputExamples:
        """Return the inputs as an epoch sees them; it depends only on the epoch and their ids."""
        ...


@runtime_checkable
class SteppedInputs(Protocol):
    """Inputs that are augmented in training, all of one optimizer step alike."""

    def for_step(self, epoch: int, step: int) -> InputExamples:
        """Return the inputs as a step sees them; it depends only on the step and their ids."""
        ...


@runtime_checkable
class ScaledInputs(Protocol):
    """Inputs that have another size in each optimizer step."""

    def in_largest_size(self) -> InputExamples:
        """Return the inputs in the largest size that a step can have."""
        ...


@runtime_checkable
class LabellingInputs(Protocol):
    """Inputs that change the labels, such as the size of masks."""

    def labels(self, split: str) -> Targets:
        """Return the labels of a split."""
        ...


@runtime_checkable
class PicturedInputs(Protocol):
    """Inputs whose predictions are shown in pictures."""

    def picture(self, outcome: Outcome) -> Image.Image:
        """Return a picture of some predictions."""
        ...


class Inputs(Protocol):
    """The conversion of raw examples to the inputs of a model, and the loading of that model."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences to print, such as how many texts were truncated."""
        ...

    def examples(self, split: str) -> InputExamples:
        """Return the inputs of a split."""
        ...

    def load_model(
        self, model_class: str, label_arguments: Mapping[str, Any], settings: TaskSettings
    ) -> LoadedModel:
        """Return the model in float32; new parameters are drawn with torch's current seed.

        Args:
            model_class: Name of the class in transformers that loads it.
            label_arguments: Labels, as arguments of its configuration.
            settings: The user's choices.
        """
        ...

    def references(self, split: str, rows: slice) -> Mapping[str, Sequence[str]]:
        """Return the columns of `predictions.parquet` that show the examples `rows`."""
        ...

    def save_processor(self, folder: Path) -> None:
        """Save the tokenizer or image processor in the folder of the model."""
        ...


@dataclass(frozen=True)
class LabelledExamples:
    """The examples of one split: inputs, labels, and weights in the loss.

    Attributes:
        inputs: The inputs.
        targets: (n, ...) labels, or labels of the units of n examples.
        weights: (n,) weights in the loss, float64.
    """

    inputs: InputExamples
    targets: Targets
    weights: FloatArray

    @property
    def lengths(self) -> IntArray:
        """(n,) cost of each example."""
        return self.inputs.lengths

    def for_epoch(self, epoch: int) -> LabelledExamples:
        """Return the examples as an epoch of the training sees them."""
        if isinstance(self.inputs, AugmentedInputs):
            return replace(self, inputs=self.inputs.for_epoch(epoch))
        return self

    def for_step(self, epoch: int, step: int) -> LabelledExamples:
        """Return the examples as an optimizer step of the training sees them."""
        if isinstance(self.inputs, SteppedInputs):
            return replace(self, inputs=self.inputs.for_step(epoch, step))
        return self.for_epoch(epoch)

    def in_largest_size(self) -> LabelledExamples:
        """Return the examples in the largest size that an optimizer step can have."""
        if isinstance(self.inputs, ScaledInputs):
            return replace(self, inputs=self.inputs.in_largest_size())
        return self

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        """Return the model's inputs and `labels` (m, ...) of the examples `ids`.

        Inputs on which the shape of the labels depends collate them too.
        """
        collated = self.inputs.collate(ids)
        if "labels" in collated:
            return collated
        return {**collated, "labels": torch.from_numpy(self.targets[ids])}


@dataclass(frozen=True)
class Task:
    """What is classified; `make_task` creates it.

    Attributes:
        name: Key in `TASKS`.
        kind: Row of `TASKS`.
        data: The examples, in splits.
        settings: The user's choices.
        problem: Loss, decoding and outcome of its labels.
        inputs: Conversion of the examples to tensors.
        labels: (n, ...) labels by split, or those of the units of n examples.
    """

    name: str
    kind: TaskKind
    data: ClassificationData
    settings: TaskSettings
    problem: Problem
    inputs: Inputs = field(repr=False)
    labels: Mapping[str, Targets] = field(repr=False)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The K labels, in the order of the logits."""
        return self.problem.label_names

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences to print, such as how many texts were truncated."""
        return self.inputs.notes

    def load_model(self) -> LoadedModel:
        """Return the model in float32; new parameters are drawn with torch's current seed."""
        arguments = self.problem.model_arguments()
        loaded = self.inputs.load_model(self.kind.model_class, arguments, self.settings)
        loaded = restrict_training(loaded, self.settings.trained_part)
        # Afterwards, so that a layer with adapters is kept as a whole.
        handle = apply_patterns(loaded.model, self.settings.fp32_modules)
        check_whole_layers(loaded.model, handle.names)
        kept = description(handle)
        return replace(loaded, notes=(*loaded.notes, kept)) if kept else loaded

    def examples(self, split: str) -> LabelledExamples:
        """Return the examples of a split as tensors on request."""
        targets = self.labels[split]
        return LabelledExamples(self.inputs.examples(split), targets, self.problem.weights(targets))

    def loss(self, model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        """Return the loss summed over the micro-batch, a float32 scalar (0 for a dummy)."""
        logits = self.logits(model, micro_batch.inputs)
        labels = micro_batch.inputs["labels"].to(logits.device, non_blocking=True)
        loss: Tensor = self.problem.loss(logits, labels)
        return loss if micro_batch.counted else loss * 0.0

    def logits(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return (m, K) float32 logits."""
        return forward_logits(model, inputs)

    def decode(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
        """Return the decoded predictions: tensors (m, ...) on its device, or arrays of objects."""
        return self.problem.decode(self.logits(model, inputs), inputs)

    def outcome(self, split: str, decoded: Mapping[str, npt.NDArray[Any]]) -> Outcome:
        """Return the outcome of a split.

        Args:
            split: Name of the split.
            decoded: Results of `decode` for all examples, in order.
        """
        return self.problem.outcome(split, self.labels[split], decoded)

    def references(self, split: str, rows: slice) -> Mapping[str, Sequence[str]]:
        """Return the columns of `predictions.parquet` that show the examples `rows`."""
        return self.inputs.references(split, rows)

    def origins(self, split: str, rows: slice) -> dict[str, list[Any]]:
        """Return where the examples `rows` come from: `file`, `file_line` or `file_row`, `id`."""
        part = self.data.splits[split]
        names = {name: shown for name, shown in ORIGINS.items() if name in part.column_names}
        columns = part.select_columns(list(names))[rows] if names else {}
        return {names[name]: values for name, values in columns.items()}

    def save_processor(self, folder: Path) -> None:
        """Save the tokenizer or image processor in the folder of the model."""
        self.inputs.save_processor(folder)

    def save_pictures(self, path: Path, outcome: Outcome) -> None:
        """Save a picture of the predictions as PNG, if the task has pictures."""
        if isinstance(self.inputs, PicturedInputs):
            self.inputs.picture(outcome).save(path, format="PNG")


def make_task(data: ClassificationData, settings: TaskSettings) -> Task:
    """Return the task for `data`.

    Args:
        data: Labelled examples in splits.
        settings: The user's choices.

    Raises:
        InputError: The task needs another kind of data, or the tokenizer or image processor cannot
            be loaded.
    """
    name = settings.task or default_task(data.kind)
    kind = TASKS[name]
    if kind.data_kind != data.kind:
        raise InputError(
            f"--task {name} needs {kind.data_kind} data, but {data.name} contains {data.kind} "
            "data. Remove the flag, or use other data."
        )
    for flag, kinds in KINDS_OF_FLAGS.items():
        if kind.data_kind not in kinds and settings.changes(flag):
            raise InputError(f"--{flag} has no effect on {kind.data_kind} data. Remove the flag.")
    inputs = import_module(f"ampft.tasks.{kind.inputs}").prepare_inputs(data, settings)
    source = inputs if isinstance(inputs, LabellingInputs) else data
    labels = {split: source.labels(split) for split in data.splits}
    problem_type: Any = kind.problem_type()
    problem = problem_type.from_settings(data.label_names, labels["train"], settings)
    return Task(name, kind, data, settings, problem, inputs, labels)


def forward_logits(
    model: nn.Module, inputs: Mapping[str, Tensor], *, max_rows: int | None = None
) -> Tensor:
    """Call a model of transformers on `inputs` without what is about labels; return its logits.

    They are those of examples or words, see `select_logits`, and float32; those of a float64 model
    stay float64, so that a reference is not rounded.

    Args:
        model: Any model, prepared by Accelerate or not.
        inputs: Collated batch.
        max_rows: Largest number of rows, such as windows, per forward pass; None for all.
    """
    arguments = model_inputs(inputs)
    rows = len(next(iter(arguments.values())))
    if max_rows is None or rows <= max_rows:
        return select_logits(_row_logits(model, arguments), inputs)
    parts = [
        {name: value[start : start + max_rows] for name, value in arguments.items()}
        for start in range(0, rows, max_rows)
    ]
    return select_logits(torch.cat([_row_logits(model, part) for part in parts]), inputs)


def _row_logits(model: nn.Module, arguments: Mapping[str, Tensor]) -> Tensor:
    """Return the logits of the rows of a batch."""
    # Imported here because it imports transformers, which a model needs anyway.
    from ampft.models.by_length import merged_logits, padded_inputs, parts_by_length

    parts = parts_by_length(model, arguments)
    if not parts:
        return _logits(model, padded_inputs(model, arguments))
    return merged_logits([(rows, _logits(model, part)) for rows, part in parts], arguments)


def _logits(model: nn.Module, arguments: Mapping[str, Tensor]) -> Tensor:
    from ampft.models.packing.install import layout_on_host

    weight = next(model.parameters())
    moved: dict[str, Any] = {
        name: value.to(weight.device, _input_dtype(value, weight), non_blocking=True)
        for name, value in arguments.items()
    }
    logits: Tensor = model(**moved, **layout_on_host(model, arguments)).logits
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def model_inputs(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what the model reads of a collated batch: not what is about labels."""
    return {name: value for name, value in inputs.items() if not name.startswith("label")}


def _input_dtype(value: Tensor, weight: Tensor) -> torch.dtype:
    """Return the dtype of the weights for floats: without autocast, pixels must have it."""
    return weight.dtype if value.is_floating_point() else value.dtype
