"""Loads image processors, and applies them in two steps: geometry, then numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from transformers import AutoImageProcessor

from ampft.models.model_settings import ModelSettings
from ampft.models.pretrained import check_model_name, loading_error

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

NO_GEOMETRY = {"do_resize": False, "do_center_crop": False, "do_pad": False}
NO_NUMBERS = {"do_rescale": False, "do_normalize": False}


def load_image_processor(settings: ModelSettings) -> Any:
    """Return the image processor that settings name.

    Raises:
        InputError: It cannot be loaded.
    """
    path, flag = str(settings.processor_path), settings.processor_flag
    check_model_name(path, flag=flag)
    try:
        return AutoImageProcessor.from_pretrained(
            path, trust_remote_code=settings.trust_remote_code
        )
    except Exception as error:  # a damaged file can raise any exception
        raise loading_error(path, error, flag=flag) from error


@dataclass(frozen=True)
class PixelTransform:
    """An image processor whose geometry and numbers can be applied separately.

    After resizing and cropping, an image consists of bytes, which are cached and augmented. What
    rescaling and normalizing make of a byte is looked up in a table, made by the processor itself.
    """

    processor: Any  # The image processor.
    table: Floats  # (3, 256) float32: pixel value of each byte, by channel.
    shape: tuple[int, ...]  # Shape (3, H, W) of every image after the geometry.

    def resized(self, image: Image.Image) -> Bytes:
        """Return (3, H, W) bytes of an RGB image, resized and cropped."""
        (pixels,) = self.processor([image], return_tensors="np", **NO_NUMBERS)["pixel_values"]
        return np.asarray(pixels, dtype=np.uint8)

    def values(self, pixels: Bytes) -> Floats:
        """Return (m, 3, H, W) rescaled and normalized values of images of bytes."""
        return np.stack([self.table[c][pixels[:, c]] for c in range(3)], axis=1)


def pixel_values(processor: Any, images: list[Image.Image]) -> Floats:
    """Return (m, 3, H, W) float32 values of RGB images by the processor itself."""
    values = processor(images, return_tensors="np")["pixel_values"]
    return np.asarray(values, dtype=np.float32)


def split_processor(processor: Any, images: list[Image.Image]) -> PixelTransform | None:
    """Return the two steps of a processor; None if together they do not give its values.

    Args:
        images: RGB images on which the values are compared, bit for bit.
    """
    every_byte = np.arange(256, dtype=np.uint8).reshape(16, 16)
    grey = Image.fromarray(np.stack([every_byte] * 3, axis=-1))
    try:
        (values,) = processor([grey], return_tensors="np", **NO_GEOMETRY)["pixel_values"]
        table = np.asarray(values, dtype=np.float32).reshape(3, 256)
        shape = pixel_values(processor, images[:1]).shape[1:]
        transform = PixelTransform(processor, table, shape)
        for image in images:
            twin = transform.values(transform.resized(image)[None])
            if not np.array_equal(twin, pixel_values(processor, [image])):
                return None
    except (TypeError, ValueError, KeyError):
        return None
    return transform


def has_constant_shape(processor: Any) -> bool:
    """Return whether a processor gives images of every size the same size."""
    tall, wide = Image.new("RGB", (40, 64)), Image.new("RGB", (64, 40))
    return len({pixel_values(processor, [image]).shape for image in (tall, wide)}) == 1
