"""Images: an image processor and a model that reads pixels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, ViTConfig, ViTImageProcessorPil

from ampft.data.dataset import ClassificationData
from ampft.data.step_batches import IntArray
from ampft.errors import InputError
from ampft.kinds.input_settings import InputSettings
from ampft.media.checked_files import ExampleCache, caches_if_they_fit
from ampft.media.image_processor import (
    Bytes,
    PixelTransform,
    has_constant_shape,
    load_image_processor,
    pixel_values,
    split_processor,
)
from ampft.media.images import Augmentation, as_rgb, open_image, parse_augmentation
from ampft.media.media_columns import media_reference, undecoded_column
from ampft.media.media_inputs import MediaInputs, error_in_one_line, refused_inputs
from ampft.models.pretrained import MODEL_NAME_FLAG, load_config

SMALL_VIT = "small ViT, random weights"
MAX_DEFAULT_SIZE = 64  # pixels of the small ViT for larger images
COMPARED = 4  # images on which the two steps of a processor are compared with itself
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True)
class ImageReader:
    """An image processor."""

    processor: Any  # Image processor, which resizes, rescales and normalizes.
    # Whether a batch also has the height and width of each image, for its mask.
    gives_sizes: bool = False

    def length(self, row: tuple[Any, ...]) -> int:
        """Return 1: all images cost the same."""
        return len(row)

    def collate(self, columns: Sequence[Sequence[Any]]) -> Mapping[str, Tensor]:
        """Return `pixel_values` (m, 3, H, W) float32, and `label_sizes` (m, 2) if asked for."""
        (values,) = columns
        images = [as_rgb(open_image(value)) for value in values]
        pixels = {"pixel_values": torch.from_numpy(pixel_values(self.processor, images))}
        if not self.gives_sizes:
            return pixels
        return {**pixels, "label_sizes": torch.tensor([image.size[::-1] for image in images])}

    def refused(self, columns: Any, model: Any, error: Exception) -> InputError:
        """Return the message that a model cannot take these images."""
        name = type(model).__name__
        return InputError(f"{name} cannot take this image ({error_in_one_line(error)}).")


def saved_reader(folder: Path, arguments: Mapping[str, Any], config: Any) -> ImageReader:
    """Return the conversion of images for a saved model, see `inputs.KindModule`."""
    del arguments, config
    return ImageReader(AutoImageProcessor.from_pretrained(str(folder)))


@dataclass(frozen=True)
class ImageExamples:
    """The images of one split, decoded on request."""

    files: datasets.Dataset  # Data set with only the image column, as files.
    lengths: IntArray  # (n,) ones, because all images cost the same.
    processor: Any  # Image processor, which resizes, rescales and normalizes.
    transform: PixelTransform | None = None  # Its two steps; None if they cannot be separated.
    cache: ExampleCache | None = None  # Images after the first step; None decodes them each time.
    augmentation: Augmentation | None = None  # Random changes after the first step.
    # Epoch of the training, in which images are augmented; None for evaluation.
    epoch: int | None = None

    def for_step(self, epoch: int, step: int) -> ImageExamples:
        """Return the images as every step of an epoch sees them."""
        del step
        return replace(self, epoch=epoch)

    def collate(self, ids: IntArray) -> Mapping[str, Tensor]:
        """Return `pixel_values` (m, 3, H, W) float32 of the examples."""
        if self.transform is None:
            values = pixel_values(self.processor, [self.picture(row) for row in ids.tolist()])
        else:
            pixels = [self._pixels(row, self.transform) for row in ids.tolist()]
            values = self.transform.values(np.stack(pixels))
        return {"pixel_values": torch.from_numpy(values)}

    def picture(self, row: int) -> Image.Image:
        """Return an image in 8-bit RGB."""
        (value,) = self.files[row].values()
        return as_rgb(open_image(value))

    def _pixels(self, row: int, transform: PixelTransform) -> Bytes:
        if self.cache is None:
            pixels = transform.resized(self.picture(row))
        else:
            flat = self.cache.get(row, lambda: transform.resized(self.picture(row)))
            pixels = flat.reshape(transform.shape)
        if self.augmentation is None or self.epoch is None:
            return pixels
        return self.augmentation(pixels, epoch=self.epoch, example=row)


def prepare_inputs(data: ClassificationData, settings: InputSettings) -> MediaInputs:
    """Prepare the images of `data` for the model that `settings` names.

    Raises:
        InputError: The image processor cannot be loaded, gives images of different sizes, or
            cannot be combined with `--augment`.
    """
    (column,) = data.input_columns
    images = {name: undecoded_column(part, column, "image") for name, part in data.splits.items()}
    plain = {
        name: ImageExamples(part, np.ones(len(part), dtype=np.int64), None)
        for name, part in images.items()
    }
    first = [plain["train"].picture(row) for row in range(min(COMPARED, len(images["train"])))]
    processor, notes = _load_processor(first[0].size, settings)
    transform = split_processor(processor, first)
    augmentation = parse_augmentation(settings.augment, "image", settings.seed)
    if augmentation is not None and transform is None:
        raise InputError(
            f"--augment: resizing and normalizing cannot be separated in {type(processor).__name__}"
            ", and images are augmented between the two. Remove the flag."
        )
    shape = pixel_values(processor, first[:1]).shape[1:]
    if not has_constant_shape(processor):
        _refuse_sizes(plain, processor, shape)
    caches: dict[str, ExampleCache] = {}
    if transform is not None:
        sizes = {name: np.full(len(part), np.prod(shape)) for name, part in images.items()}
        caches, note = caches_if_they_fit(sizes, np.uint8, "Resized images")
        notes = (*notes, *([note] if note else []))
    examples = {
        name: replace(
            part,
            processor=processor,
            transform=transform,
            cache=caches.get(name),
            augmentation=augmentation if name == "train" else None,
        )
        for name, part in plain.items()
    }

    def default(label_arguments: Mapping[str, Any]) -> tuple[ViTConfig, str]:
        height, width = processor.size["height"], processor.size["width"]
        name = SMALL_VIT if height == 8 else f"{SMALL_VIT}, for {height} x {width} pixels"
        return _small_vit(height, label_arguments), name

    def tried(model: Any) -> tuple[str, ...]:
        pixels = examples["train"].collate(np.arange(1))["pixel_values"]
        what = f"images of {pixels.shape[3]} x {pixels.shape[2]} pixels"
        remedy = "Save it with an image processor of the size that it needs."
        with refused_inputs(model, f"{MODEL_NAME_FLAG} {path}", what, remedy):
            model(pixel_values=pixels)
        return ()

    path = settings.model_path
    return MediaInputs(notes, path, processor, examples, default, tried)


def _refuse_sizes(
    examples: Mapping[str, ImageExamples], processor: Any, shape: tuple[int, ...]
) -> None:
    """Raise InputError for the first image whose values have another shape."""
    for split, part in examples.items():
        for row in range(len(part.lengths)):
            found = pixel_values(processor, [part.picture(row)]).shape[1:]
            if found != shape:
                place = media_reference(part.files, split, row)
                raise InputError(
                    f"{split} image {place}: the image processor makes it {found[2]} x "
                    f"{found[1]} pixels, and the first one {shape[2]} x {shape[1]}, which cannot "
                    "form a batch. Save the processor with a fixed height and width, "
                    "or with do_center_crop."
                )


def _small_vit(size: int, label_arguments: Mapping[str, Any]) -> ViTConfig:
    """Return a ViT with 0.1 to 0.2 million weights.

    Images of 8 x 8 pixels have 4 patches of 4 x 4, others 64 patches.
    """
    return ViTConfig(
        image_size=size,
        # 2 x 2 is 1.5 points less accurate for digits (three folds without the test split)
        patch_size=4 if size == 8 else size // 8,
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


def _load_processor(size: tuple[int, int], settings: InputSettings) -> tuple[Any, tuple[str, ...]]:
    """Return the image processor, and a note if it is not the model's own."""
    name = settings.model_path
    if name is None:
        side = min(*size, MAX_DEFAULT_SIZE) // 8 * 8 or 8
        return ViTImageProcessorPil(size={"height": side, "width": side}), ()
    config = load_config(name, trust_remote_code=settings.trust_remote_code)
    if settings.processor_name is not None:
        return load_image_processor(settings), ()
    if Path(name).is_dir() and not any((Path(name) / file).exists() for file in PROCESSOR_FILES):
        return _default_processor(name, config)
    return load_image_processor(settings), ()


def _default_processor(name: str, config: Any) -> tuple[Any, tuple[str, ...]]:
    """Return a processor for the size in a configuration, and a note.

    Raises:
        InputError: The configuration has no size.
    """
    size = getattr(config, "image_size", None)
    if isinstance(size, int):
        size = (size, size)
    if not isinstance(size, list | tuple) or len(size) != 2:
        raise InputError(
            f"{MODEL_NAME_FLAG} {name}: the folder has no preprocessor_config.json, and the "
            "config.json does not say which size images must have. Save the image processor there "
            "too, such as ViTImageProcessor(size={'height': 64, 'width': 64}).save_pretrained(...)."
        )
    height, width = size
    processor = ViTImageProcessorPil(size={"height": height, "width": width})
    note = (
        f"{name} has no image processor: images are resized to {width} x {height} pixels and "
        "normalized with mean 0.5 and deviation 0.5."
    )
    return processor, (note,)
