"""Images with masks: an image processor and a model with one logit per class and pixel."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
import transformers
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from transformers import SegformerImageProcessorPil

from ampft.data.dataset import ClassificationData
from ampft.errors import InputError
from ampft.kinds.input_settings import InputSettings
from ampft.kinds.inputs import PredictedMasks
from ampft.media.erfnet import MODEL_TYPE, ErfnetConfig, ErfnetForSemanticSegmentation
from ampft.media.image_processor import load_image_processor, pixel_values
from ampft.media.image_tensors import ImageReader
from ampft.media.image_tensors import saved_reader as image_reader
from ampft.media.images import Augmentation, as_rgb, parse_augmentation
from ampft.media.mask_folders import FILE
from ampft.media.mask_pictures import (
    Picture,
    default_palette,
    indices_spread_by_value,
    stack_with_legend,
)
from ampft.media.masks import IntArray, Masks, pad_masks
from ampft.media.media_inputs import refused_inputs
from ampft.models.pretrained import MODEL_NAME_FLAG, enable_gradient_checkpointing, load_pretrained
from ampft.models.weights import LoadedModel
from ampft.words.class_names import Color

Size = tuple[int, int]  # height, width
SCALES = (0.5, 1.5)  # least and largest factor of `--multi_scale`, as in YOLOv5
SCALE_STREAM = 1  # keeps the factors apart from other draws with the seed of a run


@dataclass(frozen=True)
class PixelExamples:
    """The images and masks of one split, decoded on request."""

    images: datasets.Dataset  # Data set with only the image column.
    masks: Masks  # The masks; in training they have the size of the model's input.
    processor: Any  # Image processor, which resizes, rescales and normalizes.
    lengths: IntArray  # (n,) ones, because all images cost the same.
    # Whether labels have the size of the model's input; otherwise masks of several sizes are padded
    # to one.
    training: bool
    # Random changes of images with their masks in training.
    augmentation: Augmentation | None = None
    scale_seed: int | None = None  # Seed of the factors of `--multi_scale`; None for no scaling.
    epoch: int | None = None  # Epoch of the training; None for evaluation.
    step: int = 0  # Step in this epoch.
    is_largest: bool = False  # Whether the factor is the largest one in every step.

    def for_step(self, epoch: int, step: int) -> PixelExamples:
        """Return the images and masks as a step of the training sees them."""
        return replace(self, epoch=epoch, step=step)

    def in_largest_size(self) -> PixelExamples:
        """Return the images and masks as a step with the largest images sees them."""
        return replace(self, is_largest=True)

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        """Return `pixel_values` (m, 3, h, w) float32 and `labels` (m, H, W) int64.

        In evaluation also `label_sizes` (m, 2), the height and width of each mask.
        """
        (images,) = self.images[ids.tolist()].values()
        values = pixel_values(self.processor, [as_rgb(image) for image in images])
        pixels = torch.from_numpy(values)
        masks = self.masks.decoded(ids)
        if self.training:
            labels = torch.from_numpy(np.stack(masks)).long()
            if self.epoch is not None and self.augmentation is not None:
                pixels, labels = self._augmented(ids, pixels, labels, self.augmentation, self.epoch)
            return {"pixel_values": self._scaled(pixels), "labels": labels}
        labels, sizes = map(torch.from_numpy, pad_masks(masks))
        return {"pixel_values": pixels, "labels": labels, "label_sizes": sizes}

    @staticmethod
    def _augmented(
        ids: IntArray, pixels: Tensor, labels: Tensor, augmentation: Augmentation, epoch: int
    ) -> tuple[Tensor, Tensor]:
        """Return the images and masks, each pair changed in the same way."""
        pairs = torch.cat([pixels, labels[:, None].float()], dim=1).numpy()
        changed = [
            augmentation(pair, epoch=epoch, example=int(row))
            for row, pair in zip(ids, pairs, strict=True)
        ]
        both = torch.from_numpy(np.stack(changed))
        return both[:, :-1].contiguous(), both[:, -1].long()

    def _scaled(self, pixels: Tensor) -> Tensor:
        """Return images in the size of the step.

        The masks keep theirs, to which the logits are resized, so that as many pixels count.
        """
        if self.scale_seed is None:
            return pixels
        if self.is_largest:
            size = scaled_size(pixels.shape[-2:], max(SCALES))
        elif self.epoch is not None:
            size = step_size(pixels.shape[-2:], self.scale_seed, self.epoch, self.step)
        else:
            return pixels
        return functional.interpolate(pixels, size=size, mode="bilinear", align_corners=False)


@dataclass(frozen=True)
class PixelInputs:
    """Images with masks; build them with `prepare_inputs`."""

    notes: tuple[str, ...]
    model_path: str
    data: ClassificationData = field(repr=False)
    processor: Any = field(repr=False)
    splits: Mapping[str, PixelExamples] = field(repr=False)

    def labels(self, split: str) -> Masks:
        """Return the masks of a split; training masks have the size of the model's input."""
        return self.splits[split].masks

    def load_model(
        self, model_class: str, label_arguments: Mapping[str, Any], settings: InputSettings
    ) -> LoadedModel:
        """Return the named model in float32, or ERFNet with random weights."""
        name = self.model_path
        notes: tuple[str, ...]
        model: Any
        if is_new_erfnet(name):
            model, name = ErfnetForSemanticSegmentation(ErfnetConfig(**label_arguments)), "ERFNet"
            notes = ("random weights",)
        else:
            model, notes = load_pretrained(
                getattr(transformers, model_class),
                name,
                label_arguments,
                trust_remote_code=settings.trust_remote_code,
                as_it_is=settings.evaluate_only is not None,
            )
        if settings.gradient_checkpointing:
            enable_gradient_checkpointing(model)
        notes = (*notes, *freeze_auxiliary_head(model))
        self._try(model)
        # Saved with the model, for the masks of `ampft predict`.
        model.config.label_colors = [list(color) for color in self.palette]
        return LoadedModel(model, name, False, notes, is_random=is_new_erfnet(self.model_path))

    def _try(self, model: Any) -> None:
        """Run the model once in the size of the images, and in the extreme ones of a scaling.

        Raises:
            InputError: It refuses a size.
        """
        examples = self.splits["train"]
        pixels = examples.collate(np.arange(1))["pixel_values"]
        height, width = pixels.shape[-2:]
        sizes = {(height, width): "Pass the --image_size that it needs."}
        if examples.scale_seed is not None:
            extremes = [scaled_size((height, width), factor) for factor in SCALES]
            sizes |= dict.fromkeys(extremes, "Remove --multi_scale.")
        for size, remedy in sizes.items():
            what = f"images of {size[1]} x {size[0]} pixels"
            with refused_inputs(model, f"{MODEL_NAME_FLAG} {self.model_path}", what, remedy):
                model(pixel_values=functional.interpolate(pixels, size=size))

    def references(self, split: str, rows: slice) -> Mapping[str, Sequence[str]]:
        """Return the file of each image in the folder of the data, or its split and row."""
        return {"image": self.data.splits[split].select_columns([FILE])[rows][FILE]}

    def picture(self, outcome: PredictedMasks) -> Image.Image:
        """Return images beside their masks, their predictions and the errors of these.

        They are spread evenly from the lowest to the highest pixel accuracy.
        """
        assert outcome.masks is not None, "the masks were predicted in this process"
        examples = self.splits[outcome.split]
        accuracy = outcome.pixel_accuracies
        rows = indices_spread_by_value(accuracy)
        (images,) = examples.images[rows.tolist()].values()
        files = self.references(outcome.split, slice(None))["image"]
        pictures = [
            Picture(
                f"{files[row]}: pixel accuracy {accuracy[row]:.3f}",
                as_rgb(image),
                truth,
                np.asarray(Image.open(io.BytesIO(outcome.masks[row]))),
            )
            for row, image, truth in zip(rows, images, examples.masks.decoded(rows), strict=True)
        ]
        return stack_with_legend(pictures, outcome.label_names, self.palette)

    @property
    def palette(self) -> tuple[Color, ...]:
        """The colours of the classes, from their file or the default palette."""
        classes = self.splits["train"].masks.classes
        return classes.colors or default_palette(len(classes.names))

    def save_processor(self, folder: Path) -> None:
        self.processor.save_pretrained(folder)


def prepare_inputs(data: ClassificationData, settings: InputSettings) -> PixelInputs:
    """Prepare the images and masks of `data` for the model that `settings` names.

    Raises:
        InputError: No model is named, the image processor cannot be loaded, or the size of the
            images is not known.
    """
    path = settings.model_path
    if path is None:
        raise InputError(
            "--model_name_or_path is missing: --task pixels has no default model. Pass erfnet, or "
            "a model for semantic segmentation, such as nvidia/mit-b0."
        )
    if is_new_erfnet(path):
        processor = SegformerImageProcessorPil()
    else:
        processor = load_image_processor(settings)
    size = _size(processor, data, settings)
    processor.size = {"height": size[0], "width": size[1]}
    for name in ("do_center_crop", "do_pad", "do_reduce_labels"):
        if getattr(processor, name, None):
            setattr(processor, name, False)
    augmentation = parse_augmentation(settings.augment, "pixels", settings.seed)
    splits = {}
    for name, part in data.splits.items():
        masks = data.labels(name)
        assert isinstance(masks, Masks), "the data are images with masks"
        splits[name] = PixelExamples(
            images=part.select_columns(list(data.input_columns)),
            masks=masks.resized(size) if name == "train" else masks,
            processor=processor,
            lengths=np.ones(len(part), dtype=np.int64),
            training=name == "train",
            augmentation=augmentation if name == "train" else None,
            scale_seed=settings.seed if settings.multi_scale and name == "train" else None,
        )
    note = f"The model's input is {size[0]} x {size[1]} pixels (height x width), its masks in "
    note += "training too; predictions are compared with masks in their own size."
    return PixelInputs((note,), path, data, processor, splits)


def saved_reader(folder: Path, arguments: Mapping[str, Any], config: Any) -> ImageReader:
    """Return the conversion of images for a saved model, see `inputs.KindModule`."""
    processor = image_reader(folder, arguments, config).processor
    return ImageReader(processor, gives_sizes=True)


def freeze_auxiliary_head(model: nn.Module) -> tuple[str, ...]:
    """Freeze the head that transformers adds for its own loss, as to UperNet; return a note.

    It does not predict, so it has no gradient, for which several processes would wait.
    """
    head = getattr(model, "auxiliary_head", None)
    if not isinstance(head, nn.Module):
        return ()
    head.requires_grad_(False)
    return ("its auxiliary head is not trained, because it does not predict",)


def step_size(size: Sequence[int], seed: int, epoch: int, step: int) -> Size:
    """Return the height and width of the images of a step: 0.5 to 1.5 times `size`.

    They are multiples of 8.
    """
    random = np.random.Generator(np.random.PCG64([seed, epoch, step, SCALE_STREAM]))
    return scaled_size(size, random.uniform(*SCALES))


def scaled_size(size: Sequence[int], factor: float) -> Size:
    """Return height and width times a factor, as multiples of 8."""
    height, width = (max(round(side * factor / 8), 1) * 8 for side in size)
    return height, width


def is_new_erfnet(name: str) -> bool:
    """Return whether a name stands for an ERFNet with random weights."""
    return name == MODEL_TYPE and not Path(name).exists()


def _size(processor: Any, data: ClassificationData, settings: InputSettings) -> Size:
    """Return the height and width of the model's input."""
    if settings.input_size is not None:
        return settings.input_size
    size = processor.size or {}
    is_new = is_new_erfnet(str(settings.model_name_or_path))
    if not is_new and size.get("height") and size.get("width"):
        return int(size["height"]), int(size["width"])
    (column,) = data.input_columns
    sizes = {as_rgb(image).size[::-1] for part in data.splits.values() for image in part[column]}
    if len(sizes) > 1:
        listed = ", ".join(f"{height},{width}" for height, width in sorted(sizes)[:4])
        raise InputError(
            f"--image_size is missing: the images have {len(sizes)} sizes ({listed}"
            f"{', ...' if len(sizes) > 4 else ''}; height,width), and a batch needs one. Pass it, "
            "such as --image_size 360,480."
        )
    return sizes.pop()
