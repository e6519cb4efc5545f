"""Images: an image processor and a model that reads pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import transformers
from torch import Tensor
from transformers import ViTConfig, ViTImageProcessorPil

from ampft.data.dataset import ClassificationData
from ampft.data.images import as_rgb
from ampft.data.steps import IntArray
from ampft.errors import InputError
from ampft.models.image_processor import load_image_processor
from ampft.models.pretrained import enable_gradient_checkpointing, load_pretrained
from ampft.models.weights import LoadedModel
from ampft.tasks.task import TaskSettings

SMALL_VIT = "small ViT, random weights"


@dataclass(frozen=True)
class ImageExamples:
    """The images of one split, decoded on request.

    Attributes:
        images: Data set with only the image column.
        lengths: (n,) ones, because all images cost the same.
        processor: Image processor, which resizes, rescales and normalizes.
    """

    images: datasets.Dataset
    lengths: IntArray
    processor: Any

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        """Return `pixel_values` (m, 3, H, W) float32 of the examples."""
        (images,) = self.images[ids.tolist()].values()
        pixels = self.processor([as_rgb(image) for image in images], return_tensors="pt")
        return {"pixel_values": pixels["pixel_values"].float()}


@dataclass(frozen=True)
class ImageInputs:
    """Images; build them with `prepare_inputs`."""

    notes: tuple[str, ...]
    model_path: str | None
    processor: Any = field(repr=False)
    images: Mapping[str, ImageExamples] = field(repr=False)

    def examples(self, split: str) -> ImageExamples:
        """Return the images of a split."""
        return self.images[split]

    def load_model(
        self, model_class: str, label_arguments: Mapping[str, Any], settings: TaskSettings
    ) -> LoadedModel:
        """Return the named model in float32, or a small ViT with random weights."""
        auto_class = getattr(transformers, model_class)
        notes: tuple[str, ...] = ()
        if self.model_path is None:
            model = auto_class.from_config(_small_vit(label_arguments))
        else:
            model, notes = load_pretrained(
                auto_class,
                self.model_path,
                label_arguments,
                trust_remote_code=settings.trust_remote_code,
            )
        if settings.gradient_checkpointing:
            enable_gradient_checkpointing(model)
        return LoadedModel(model, self.model_path or SMALL_VIT, False, notes)

    def references(self, split: str, rows: slice) -> Mapping[str, Sequence[str]]:
        """Return a reference to each image: its split and row."""
        count = len(self.images[split].lengths)
        return {"reference": [f"{split}/{row}" for row in range(*rows.indices(count))]}

    def save_processor(self, folder: Path) -> None:
        """Save the image processor."""
        self.processor.save_pretrained(folder)


def prepare_inputs(data: ClassificationData, settings: TaskSettings) -> ImageInputs:
    """Prepare the images of `data` for the model that `settings` names.

    Raises:
        InputError: The image processor cannot be loaded.
    """
    (column,) = data.input_columns
    processor = _load_processor(data.splits["train"][0][column].size, settings)
    images = {
        name: ImageExamples(
            images=split.select_columns([column]),
            lengths=np.ones(len(split), dtype=np.int64),
            processor=processor,
        )
        for name, split in data.splits.items()
    }
    return ImageInputs((), settings.model_name_or_path, processor, images)


def _small_vit(label_arguments: Mapping[str, Any]) -> ViTConfig:
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
        # ViT's 0.02 is for a width of 768; it would make the output of this narrow model constant.
        initializer_range=0.1,
        **label_arguments,
    )


def _load_processor(size: tuple[int, int], settings: TaskSettings) -> Any:
    if settings.model_name_or_path is None:
        if size != (8, 8):
            raise InputError(
                f"--model_name_or_path is missing: the default {SMALL_VIT} needs images of 8 x 8 "
                f"pixels, and these have {size[0]} x {size[1]}. Name an image model."
            )
        return ViTImageProcessorPil(size={"height": 8, "width": 8})
    return load_image_processor(
        settings.model_name_or_path, trust_remote_code=settings.trust_remote_code
    )
