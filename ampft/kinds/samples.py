"""Inputs of each kind that need no data: an exported model is traced and tried with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

from ampft.data.sounds import Sound

LENGTHS = (3, 5, 7, 9)  # words of a text
SECONDS = (0.6, 0.6, 0.8, 1.0)
RATE = 16_000
SIDE = 48  # pixels


def texts(columns: int) -> list[tuple[str, ...]]:
    """Return texts of unequal lengths, or tuples of them.

    Args:
        columns: Number of input columns.
    """
    return [tuple(" ".join(words) for _ in range(columns)) for words in sentences(columns)]


def sentences(columns: int) -> list[list[str]]:
    """Return lists of words of unequal lengths."""
    del columns
    return [["one", "two", "three"] * (count // 3) + ["end"] * (count % 3) for count in LENGTHS]


def pictures(columns: int) -> list[Image.Image]:
    """Return images of noise."""
    del columns
    random = np.random.default_rng(0)
    shape = (SIDE, SIDE, 3)
    return [Image.fromarray(random.integers(256, size=shape, dtype=np.uint8)) for _ in LENGTHS]


def sounds(columns: int) -> Sequence[Sound]:
    """Return noise of 0.6 to 1 seconds, the first two of equal length."""
    del columns
    random = np.random.default_rng(0)
    return [
        Sound(random.normal(scale=0.1, size=(int(seconds * RATE), 1)).astype(np.float32), RATE, "")
        for seconds in SECONDS
    ]
