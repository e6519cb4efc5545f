"""What the loop, the report and the records know of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from ampft.data.dataset import ClassificationData
from ampft.data.steps import Examples, FloatArray, IntArray, MicroBatch
from ampft.errors import InputError
from ampft.models.weights import LoadedModel
from ampft.tasks.loss import balanced_class_weights, summed_cross_entropy


@dataclass(frozen=True)
class TaskSettings:
    """What a user may choose about a task.

    Attributes:
        model_name_or_path: Folder or hub id; None takes the task's own default model.
        max_seq_length: Longest text in tokens; longer ones are truncated, and that is said.
        pad_to_multiple_of: Tokens that a padded length is a multiple of; None pads to the longest.
        class_weights: None, "balanced", or one weight per class in label order, comma separated.
        label_smoothing: Share of the target that is spread over all classes, 0 to 1.
        remove_padding: Whether the model may run without padding where its family is supported.
        gradient_checkpointing: Whether activations are computed again in the backward pass.
        trust_remote_code: Whether code from a model's repository may run.
    """

    model_name_or_path: str | None = None
    max_seq_length: int = 128
    pad_to_multiple_of: int | None = None
    class_weights: str | None = None
    label_smoothing: float = 0.0
    remove_padding: bool = True
    gradient_checkpointing: bool = False
    trust_remote_code: bool = False


class Task(Protocol):
    """A kind of classification: how examples become tensors, a loss and predictions."""

    @property
    def data(self) -> ClassificationData:
        """The examples, in splits."""
        ...

    @property
    def label_names(self) -> tuple[str, ...]:
        """The C labels, in the order of the logits."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences to print, such as how many texts were cut."""
        ...

    def load_model(self) -> LoadedModel:
        """Return the model in float32; its new parts are drawn from torch's current seed."""
        ...

    def examples(self, split: str) -> Examples:
        """Return the examples of a split as tensors on request."""
        ...

    def loss(self, model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        """Return the loss summed over the micro-batch, a float32 scalar (0 for a dummy)."""
        ...

    def logits(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return (m, C) float32 logits."""
        ...

    def references(self, split: str, rows: slice) -> Mapping[str, Sequence[str]]:
        """Return what `predictions.parquet` shows of the examples `rows`, column by column."""
        ...

    def save_processor(self, folder: Path) -> None:
        """Save what turns raw examples into the model's inputs beside the saved model."""
        ...


def classification_loss(
    logits: Tensor, micro_batch: MicroBatch, class_weights: Tensor | None, label_smoothing: float
) -> Tensor:
    """Return the summed cross entropy of a micro-batch; a dummy's counts zero times."""
    loss = summed_cross_entropy(
        logits,
        micro_batch.inputs["labels"].to(logits.device),
        class_weights=None if class_weights is None else class_weights.to(logits.device),
        label_smoothing=label_smoothing,
    )
    return loss if micro_batch.counted else loss * 0.0


def forward_logits(model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
    """Call a model of transformers on `inputs` without its labels; return (m, C) float32 logits.

    A model in float64 keeps its logits so: the reference of a gradient's rounding is not rounded.
    """
    weight = next(model.parameters())
    moved: dict[str, Any] = {
        name: value.to(weight.device, _input_dtype(value, weight), non_blocking=True)
        for name, value in inputs.items()
        if name != "labels"
    }
    logits: Tensor = model(**moved).logits
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _input_dtype(value: Tensor, weight: Tensor) -> torch.dtype:
    """Without autocast, pixels have to come in the dtype of 16-bit weights."""
    return weight.dtype if value.is_floating_point() else value.dtype


def parse_class_weights(wanted: str | None, counts: IntArray) -> Tensor | None:
    """Return the (C,) float32 class weights that `--class_weights` asks for.

    Args:
        wanted: None, "balanced", or C positive numbers separated by commas.
        counts: (C,) training examples per class.

    Raises:
        InputError: The numbers are not C positive ones, or "balanced" meets a class without
            examples.
    """
    if wanted is None:
        return None
    if wanted == "balanced":
        if (counts == 0).any():
            raise InputError(
                "--class_weights balanced: a class has no training example, so that its weight "
                "would be infinite. Give the weights as numbers."
            )
        return balanced_class_weights(torch.from_numpy(counts))
    try:
        weights = [float(part) for part in wanted.split(",")]
    except ValueError:
        weights = []
    if len(weights) != len(counts) or not all(0 < weight < np.inf for weight in weights):
        raise InputError(
            f"--class_weights: received {wanted!r}; allowed: 'balanced', or {len(counts)} positive "
            "numbers separated by commas, in the order of the labels."
        )
    return torch.tensor(weights, dtype=torch.float32)


def example_weights(labels: IntArray, class_weights: Tensor | None) -> FloatArray:
    """Return the (n,) float64 weight of each example in the loss: its class's, or one."""
    if class_weights is None:
        return np.ones(len(labels))
    weights: FloatArray = class_weights.double().numpy()[labels]
    return weights
