"""Images: opened, with one message for a damaged file, and converted to 8-bit RGB."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageOps

from ampft.errors import InputError

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")
MAX_16_BIT = 65535
# Raised by Pillow for broken files, and for pixels that would fill the memory.
DECODING_ERRORS = (OSError, SyntaxError, ValueError, TypeError, Image.DecompressionBombError)


def open_image(value: Any) -> Image.Image:
    """Return a loaded image in the mode of its file; of an animation, the first frame.

    Args:
        value: A path, the bytes of a file, a dictionary with `bytes` or `path` as in a column of
            `datasets.Image`, or an image, which is returned as it is.

    Raises:
        InputError: It cannot be read; the message names the file.
    """
    if isinstance(value, Image.Image):
        return value
    path: Any = value.get("path") if isinstance(value, Mapping) else value
    content = value.get("bytes") if isinstance(value, Mapping) else value
    try:
        if not isinstance(content, bytes):
            # Pillow would keep the file of an animation open.
            content = Path(path).read_bytes()
        image = Image.open(io.BytesIO(content))
        image.load()
    except DECODING_ERRORS as error:
        name = path if isinstance(path, str | Path) else "an image in memory"
        raise InputError(f"{name}: not a readable image ({described_error(error)}).") from None
    return image


def described_error(error: Exception) -> str:
    """Return the reason why a file cannot be decoded, without the address of its buffer."""
    text = " ".join(str(error).split())
    return "not an image file" if text.startswith("cannot identify image file") else text


def as_rgb(image: Image.Image) -> Image.Image:
    """Return an image in 8-bit RGB.

    - It is rotated according to its EXIF orientation.
    - Grey values of more than 8 bits (modes `I;16`, `I` and `F`) are scaled linearly from 0..65535
      to 0..255 and clipped. Pillow would turn everything above 255 into 255.
    - Transparent parts are white.

    Args:
        image: An image in any mode of Pillow; it is not changed.
    """
    image = ImageOps.exif_transpose(image)
    if is_deep(image):
        values = np.asarray(image, dtype=np.float64) * (255 / MAX_16_BIT)
        image = Image.fromarray(np.rint(values.clip(0, 255)).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(background, image)
    return image.convert("RGB")


def is_deep(image: Image.Image) -> bool:
    """Return whether the grey values of an image have more than 8 bits."""
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def image_conversions(image: Image.Image) -> tuple[str, ...]:
    """Return what `as_rgb` and `open_image` change in an image, as words for the user.

    An image in grey or RGB with 8 bits, upright and without transparency, gives none.
    """
    kinds = {
        "rotated as its EXIF data says": exif_orientation(image) not in (None, 1),
        "with 16-bit grey values, scaled to 8 bits": is_deep(image),
        "with transparency, drawn on white": image.has_transparency_data,
        "with a palette": image.mode in ("P", "PA"),
        "in black and white": image.mode == "1",
        f"in {image.mode}": image.mode in ("CMYK", "YCbCr", "LAB", "HSV"),
        "animated, of which the first frame is used": getattr(image, "n_frames", 1) > 1,
    }
    return tuple(words for words, applies in kinds.items() if applies)


def exif_orientation(image: Image.Image) -> int | None:
    """Return the EXIF orientation of an image, 1 to 8; None if it has none."""
    orientation = image.getexif().get(ExifTags.Base.Orientation)
    return orientation if isinstance(orientation, int) else None
