"""Images of every mode as RGB of 8 bits, by one rule."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageOps

LARGEST_16_BIT = 65535


def as_rgb(image: Image.Image) -> Image.Image:
    """Return an image as it is meant to be seen, in RGB of 8 bits.

    - Turned as its EXIF orientation says.
    - Grey values of more than 8 bits (modes `I;16`, `I` and `F`) are scaled linearly from 0..65535
      to 0..255, and clipped outside: pillow's own conversion makes 255 of everything above 255.
    - What is transparent lies on white.

    Args:
        image: Any mode of pillow; left as it is.
    """
    image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        values = np.asarray(image, dtype=np.float64) * (255 / LARGEST_16_BIT)
        image = Image.fromarray(np.rint(values.clip(0, 255)).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(ground, image)
    return image.convert("RGB")
