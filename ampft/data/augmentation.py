"""Random changes of training examples, which depend only on the seed, the epoch and the example.

So they are the same in every precision, and independent of micro-batches, workers, processes and
resuming.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ampft.errors import InputError, did_you_mean

Array = npt.NDArray[Any]
Change = Callable[[Array, np.random.Generator], Array]

MARGIN = 8  # a crop is moved by at most an eighth of the size, as 4 of 32 pixels for CIFAR
SHIFT = 10  # a sound is shifted by at most a tenth of its length
MAX_GAIN = 6.0  # decibels


def flip(image: Array, random: np.random.Generator) -> Array:
    """Return a (C, H, W) image, mirrored left to right with probability 1/2."""
    return image[:, :, ::-1] if random.random() < 0.5 else image


def crop(image: Array, random: np.random.Generator) -> Array:
    """Return a (C, H, W) image moved by up to an eighth of its size, its margin reflected.

    Source: He et al. (2016), "Deep Residual Learning for Image Recognition", section 4.2, which
    fills the margin with zeros.
    """
    _, height, width = image.shape
    top, left = height // MARGIN, width // MARGIN
    padded = np.pad(image, ((0, 0), (top, top), (left, left)), mode="reflect")
    y, x = random.integers(0, 2 * top + 1), random.integers(0, 2 * left + 1)
    return padded[:, y : y + height, x : x + width]


def shift(samples: Array, random: np.random.Generator) -> Array:
    """Return (frames,) samples moved in time by up to a tenth of their length, with silence."""
    most = len(samples) // SHIFT
    offset = int(random.integers(-most, most + 1))
    moved = np.roll(samples, offset)
    moved[slice(0, offset) if offset >= 0 else slice(offset, None)] = 0
    return moved


def volume(samples: Array, random: np.random.Generator) -> Array:
    """Return (frames,) samples made louder or softer by up to 6 decibels."""
    return samples * np.float32(10 ** (random.uniform(-MAX_GAIN, MAX_GAIN) / 20))


CHANGES: Mapping[str, Mapping[str, Change]] = {
    "image": {"flip": flip, "crop": crop},
    "pixels": {"flip": flip},  # a crop would change how many pixels count
    "sound": {"shift": shift, "volume": volume},
}
PLURALS = {"image": "images", "pixels": "images with masks", "sound": "sounds"}


@dataclass(frozen=True)
class Augmentation:
    """Changes of the training examples of one kind.

    Attributes:
        kind: Key of `CHANGES`.
        names: Changes in the order in which they are made.
        seed: Seed of the run.
    """

    kind: str
    names: tuple[str, ...]
    seed: int

    def __call__(self, values: Array, *, epoch: int, example: int) -> Array:
        """Return the changed values of an example of the training split in an epoch."""
        random = np.random.Generator(np.random.PCG64([self.seed, epoch, example]))
        for name in self.names:
            values = CHANGES[self.kind][name](values, random)
        return values


def parse_augmentation(text: str | None, kind: str, seed: int) -> Augmentation | None:
    """Return the augmentation that `--augment` names; None without the flag.

    Raises:
        InputError: A name is unknown for this kind of data, or is named twice.
    """
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    changes = CHANGES[kind]
    for name in names:
        if name not in changes:
            raise InputError(
                f"--augment: received {name!r}; {PLURALS[kind]} can be augmented by"
                f" {', '.join(changes)}.{did_you_mean(name, changes)}"
            )
    if len(set(names)) < len(names):
        raise InputError(f"--augment: received {text!r}, which names a change twice.")
    return Augmentation(kind, names, seed)
