"""Images: an image processor and `AutoModelForImageClassification`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    ViTConfig,
    ViTImageProcessorPil,
)

from ampft.data.dataset import ClassificationData, label_codes
from ampft.data.steps import FloatArray, IntArray, MicroBatch
from ampft.errors import InputError
from ampft.models.pretrained import (
    cannot_load,
    compute_activations_again,
    label_arguments,
    load_pretrained,
)
from ampft.models.weights import LoadedModel
from ampft.tasks.pixels import as_rgb
from ampft.tasks.task import (
    TaskSettings,
    classification_loss,
    example_weights,
    forward_logits,
    parse_class_weights,
)

SMALL_VIT = "small ViT, random weights"


@dataclass(frozen=True)
class ImageExamples:
    """The images of one split, decoded when they are asked for.

    Attributes:
        images: Data set with the image column alone.
        labels: (n,) class indices.
        weights: (n,) weights in the loss.
        lengths: (n,) ones: every image costs the same.
        processor: Resizes, rescales and normalizes.
    """

    images: datasets.Dataset
    labels: IntArray
    weights: FloatArray
    lengths: IntArray
    processor: Any

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        """Return `pixel_values` (m, 3, H, W) float32 and `labels` (m,) of the examples."""
        (images,) = self.images[ids.tolist()].values()
        pixels = self.processor([as_rgb(image) for image in images], return_tensors="pt")
        return {
            "pixel_values": pixels["pixel_values"].float(),
            "labels": torch.from_numpy(self.labels[ids]),
        }


@dataclass(frozen=True)
class ImageTask:
    """Classification of images; build it with `image_task`."""

    data: ClassificationData
    settings: TaskSettings
    label_names: tuple[str, ...]
    notes: tuple[str, ...]
    class_weights: Tensor | None
    processor: Any = field(repr=False)
    images: Mapping[str, ImageExamples] = field(repr=False)

    def load_model(self) -> LoadedModel:
        """Return the named model in float32, or a small ViT with random weights."""
        path = self.settings.model_name_or_path
        notes: tuple[str, ...] = ()
        if path is None:
            model = AutoModelForImageClassification.from_config(_small_vit(self.label_names))
        else:
            model, notes = load_pretrained(
                AutoModelForImageClassification,
                path,
                self.label_names,
                trust_remote_code=self.settings.trust_remote_code,
            )
        if self.settings.gradient_checkpointing:
            compute_activations_again(model)
        return LoadedModel(model, path or SMALL_VIT, False, notes)

    def examples(self, split: str) -> ImageExamples:
        """Return the images of a split."""
        return self.images[split]

    def loss(self, model: nn.Module, micro_batch: MicroBatch) -> Tensor:
        """Return the summed cross entropy of a micro-batch, a float32 scalar."""
        logits = self.logits(model, micro_batch.inputs)
        return classification_loss(
            logits, micro_batch, self.class_weights, self.settings.label_smoothing
        )

    def logits(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return (m, C) float32 logits."""
        return forward_logits(model, inputs)

    def references(self, split: str, rows: slice) -> Mapping[str, Sequence[str]]:
        """Return a reference to each image: its place in the split."""
        count = len(self.images[split].labels)
        return {"reference": [f"{split}/{row}" for row in range(*rows.indices(count))]}

    def save_processor(self, folder: Path) -> None:
        """Save the image processor."""
        self.processor.save_pretrained(folder)


def image_task(data: ClassificationData, settings: TaskSettings) -> ImageTask:
    """Prepare `data` for the model that `settings` names.

    Raises:
        InputError: The image processor cannot be loaded.
    """
    (column,) = data.input_columns
    label_names = tuple(data.splits["train"].features["label"].names)
    labels = {name: label_codes(split) for name, split in data.splits.items()}
    counts = np.bincount(labels["train"], minlength=len(label_names))
    class_weights = parse_class_weights(settings.class_weights, counts)
    processor = _load_processor(data.splits["train"][0][column].size, settings)
    images = {
        name: ImageExamples(
            images=split.select_columns([column]),
            labels=labels[name],
            weights=example_weights(labels[name], class_weights),
            lengths=np.ones(len(split), dtype=np.int64),
            processor=processor,
        )
        for name, split in data.splits.items()
    }
    return ImageTask(data, settings, label_names, (), class_weights, processor, images)


def _small_vit(label_names: tuple[str, ...]) -> ViTConfig:
    """Return a ViT for images of 8 x 8 pixels: 4 patches of 4 x 4, 0.1 million weights."""
    return ViTConfig(
        image_size=8,
        patch_size=4,  # 2 x 2 is 1.5 points less accurate (three folds without the test split)
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=128,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.0,
        # ViT's own 0.02 is for a width of 768: so narrow a model would begin almost constant.
        initializer_range=0.1,
        **label_arguments(label_names),
    )


def _load_processor(size: tuple[int, int], settings: TaskSettings) -> Any:
    if settings.model_name_or_path is None:
        if size != (8, 8):
            raise InputError(
                f"--model_name_or_path is missing: the default {SMALL_VIT} takes images of 8 x 8 "
                f"pixels, and these have {size[0]} x {size[1]}. Name an image model."
            )
        return ViTImageProcessorPil(size={"height": 8, "width": 8})
    try:
        return AutoImageProcessor.from_pretrained(
            settings.model_name_or_path, trust_remote_code=settings.trust_remote_code
        )
    except Exception as error:  # a damaged file raises whatever its reader trips over
        raise cannot_load(settings.model_name_or_path, error) from error
