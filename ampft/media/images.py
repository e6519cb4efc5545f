"""Images: opened as 8-bit RGB, with one message for a damaged file, and changed at random.

The random changes of training examples depend only on the seed, the epoch and the example. So they
are the same in every precision, and independent of micro-batches, workers, processes and resuming.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps

from ampft.errors import InputError, did_you_mean

IMAGE_SUFFIXES = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".webp", ".avif", ".tif", ".tiff"),
)
MAX_16_BIT = 65535
IN_MEMORY = "an image in memory"
NEARLY_BLACK = 16  # of 255; 12-bit values in 16-bit images reach it
BITS_PER_SAMPLE, PHOTOMETRIC = 258, 262  # tags of TIFF
LOSSY_WEBP = "lossy WebP"
# Raised by Pillow for broken files, and for pixels that would fill the memory.
DECODING_ERRORS = (OSError, SyntaxError, ValueError, TypeError, Image.DecompressionBombError)


def open_image(value: Any) -> Image.Image:
    """Return a loaded image in the mode of its file; of an animation, the first frame.

    Args:
        value: A path, the bytes of a file, a dictionary with `bytes` or `path` as in a column of
            `datasets.Image`, or an image, which is returned as it is.

    Returns:
        The image; its `filename` is the path, if it has one.

    Raises:
        InputError: It cannot be read, or has a transparent colour with 16 bits per channel, of
            which Pillow reads 8; the message names the file.
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
        has_16_bits = any("16" in str(tile.args) for tile in image.tile)
        image.load()
    except FileNotFoundError:
        raise InputError(f"{path}: the file does not exist.") from None
    except DECODING_ERRORS as error:
        name = path if isinstance(path, str | Path) else IN_MEMORY
        reason = " ".join(str(error).split())
        if reason.startswith("cannot identify image file"):  # followed by the address of a buffer
            reason = "not an image file"
        raise InputError(f"{name}: not a readable image ({reason}).") from None
    if has_16_bits and image.mode == "RGB" and "transparency" in image.info:
        name = path if isinstance(path, str | Path) else IN_MEMORY
        raise InputError(
            f"{name}: a transparent colour with 16 bits per channel, which is not read exactly."
            " Save the image with 8 bits, or with an alpha channel."
        )
    image.filename = str(path) if isinstance(path, str | Path) else ""
    if image.format == "WEBP" and has_lossy_pixels(content):
        image.info["compression"] = LOSSY_WEBP
    return image


def has_lossy_pixels(content: bytes) -> bool:
    """Return whether a WebP file has a picture with lossy compression, a chunk called `VP8 `.

    Source: https://developers.google.com/speed/webp/docs/riff_container
    """
    start = 12  # after RIFF, the size of the file, and WEBP
    while start + 8 <= len(content):
        name = content[start : start + 4]
        if name in (b"VP8 ", b"VP8L"):
            return name == b"VP8 "
        size = int.from_bytes(content[start + 4 : start + 8], "little")
        # The chunks of a frame of an animation follow 16 bytes in it.
        start += 8 + (16 if name == b"ANMF" else size + size % 2)
    return False


def as_rgb(image: Image.Image) -> Image.Image:
    """Return an image in 8-bit RGB.

    - It is rotated according to its EXIF orientation.
    - Grey values of more than 8 bits are scaled linearly: integers (modes `I;16` and `I`) from
      0..65535, or from the range of the depth that a TIFF declares, and floats (mode `F`) from
      0..1. Pillow would clip them to 0..255.
    - Transparent parts are white.

    Args:
        image: An image in any mode of Pillow; it is not changed.

    Raises:
        InputError: Grey values are outside of their range, or NaN; the message names the file.
    """
    upright = ImageOps.exif_transpose(image)
    full_scale = grey_scale(image)
    if full_scale is not None:
        values = np.asarray(upright, dtype=np.float64)
        _refuse_outside(values, full_scale, image)
        if _tiff_tags(image).get(PHOTOMETRIC) == 0:  # white is zero; Pillow inverts only 8 bits
            values = full_scale - values
        pixels = np.rint(values * (255 / full_scale)).astype(np.uint8)
        if isinstance(transparent := image.info.get("transparency"), int):
            pixels[np.asarray(upright) == transparent] = 255
        upright = Image.fromarray(pixels)
    if upright.mode == "La":
        upright = upright.convert("LA")
    if upright.has_transparency_data:
        upright = upright.convert("RGBA")
        background = Image.new("RGBA", upright.size, "white")
        upright = Image.alpha_composite(background, upright)
    return upright.convert("RGB")


def grey_scale(image: Image.Image) -> int | None:
    """Return the grey value that is white in an image of more than 8 bits; None for others."""
    if image.mode == "F":
        return 1
    if image.mode != "I" and not image.mode.startswith("I;16"):
        return None
    bits = _tiff_tags(image).get(BITS_PER_SAMPLE, (16,))[0]
    return 2**bits - 1 if 8 < bits < 16 else MAX_16_BIT


def _tiff_tags(image: Image.Image) -> Mapping[int, Any]:
    return getattr(image, "tag_v2", {})


def _refuse_outside(values: npt.NDArray[np.float64], full_scale: int, image: Image.Image) -> None:
    """Raise InputError for grey values outside of 0..full_scale, whose scale is unknown."""
    low, high = values.min(), values.max()
    if low >= 0 and high <= full_scale:
        return
    missing = int((~np.isfinite(values)).sum())
    name = getattr(image, "filename", "") or IN_MEMORY
    kind = "floating point" if image.mode == "F" else "integers"
    found = (
        f"{missing} of {values.size} pixels are NaN or infinite"
        if missing
        else f"its grey values are {kind} from {low:g} to {high:g}"
    )
    raise InputError(
        f"{name}: {found} (mode {image.mode}); {kind} must be from 0 to {full_scale}. Scale the "
        "values to this range, or save the image with 8 bits."
    )


def refuse_nearly_black(peaks: Sequence[int], origin: str) -> None:
    """Refuse a data set in which no image is brighter than nearly black.

    A single image can be dark. If the whole data set is, the range of its values is wrong.

    Args:
        peaks: Highest value of each image in 8-bit RGB, at least one.
        origin: The data set, for the message.

    Raises:
        InputError: All peaks are at most `NEARLY_BLACK`.
    """
    if max(peaks) <= NEARLY_BLACK:
        raise InputError(
            f"{origin}: all {len(peaks)} images would be nearly black: in 8-bit RGB, their highest "
            f"value is {max(peaks)} of 255. Multiply 12-bit values in 16-bit images by 16, and "
            "8-bit values from 0 to 1 by 255."
        )


def image_conversions(image: Image.Image) -> tuple[str, ...]:
    """Return what `as_rgb` and `open_image` change in an image, as words for the user.

    An image in grey or RGB with 8 bits, upright and without transparency, gives none.
    """
    full_scale = grey_scale(image) or 0
    orientation = image.getexif().get(ExifTags.Base.Orientation)
    kinds = {
        "rotated as its EXIF data says": isinstance(orientation, int) and orientation != 1,
        "with grey values from 0 to 1, scaled to 8 bits": full_scale == 1,
        f"with {full_scale.bit_length()}-bit grey values, scaled to 8 bits": full_scale > 1,
        "with transparency, drawn on white": image.has_transparency_data,
        "with a palette": image.mode in ("P", "PA"),
        "in black and white": image.mode == "1",
        f"in {image.mode}": image.mode in ("CMYK", "YCbCr", "LAB", "HSV"),
        "animated (only the first frame is used)": getattr(image, "n_frames", 1) > 1,
    }
    return tuple(words for words, applies in kinds.items() if applies)


Array = npt.NDArray[Any]
Change = Callable[[Array, np.random.Generator], Array]

MARGIN = 8  # a crop is moved by at most an eighth of the size, as 4 of 32 pixels for CIFAR
SHIFT = 10  # a sound is shifted by at most a tenth of its length
MAX_GAIN = 6.0  # decibels


def random_flip(image: Array, random: np.random.Generator) -> Array:
    """Return a (C, H, W) image, mirrored left to right with probability 1/2."""
    return image[:, :, ::-1] if random.random() < 0.5 else image


def random_crop(image: Array, random: np.random.Generator) -> Array:
    """Return a (C, H, W) image moved by up to an eighth of its size, its margin reflected.

    Source: He et al. (2016), "Deep Residual Learning for Image Recognition", section 4.2, which
    fills the margin with zeros.
    """
    _, height, width = image.shape
    top, left = height // MARGIN, width // MARGIN
    padded = np.pad(image, ((0, 0), (top, top), (left, left)), mode="reflect")
    y, x = random.integers(0, 2 * top + 1), random.integers(0, 2 * left + 1)
    return padded[:, y : y + height, x : x + width]


def random_resized_crop(image: Array, random: np.random.Generator) -> Array:
    """Return a part of a (C, H, W) image, scaled to its size.

    Of ten tries, the first part that fits is taken: 8 to 100 % of the area, with a ratio of the
    sides from 3/4 to 4/3; otherwise the whole image. Source: Szegedy et al. (2015), "Going Deeper
    with Convolutions", section 6, and torchvision's `RandomResizedCrop`, whose numbers these are.
    """
    _, height, width = image.shape
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            y, x = random.integers(0, height - h + 1), random.integers(0, width - w + 1)
            part = Image.fromarray(image[:, y : y + h, x : x + w].transpose(1, 2, 0))
            scaled = part.resize((width, height), Image.Resampling.BILINEAR)
            return np.asarray(scaled).transpose(2, 0, 1)
    return image


def random_time_shift(samples: Array, random: np.random.Generator) -> Array:
    """Return (frames,) samples moved in time by up to a tenth of their length, with silence."""
    most = len(samples) // SHIFT
    offset = int(random.integers(-most, most + 1))
    moved = np.roll(samples, offset)
    moved[slice(0, offset) if offset >= 0 else slice(offset, None)] = 0
    return moved


def random_volume(samples: Array, random: np.random.Generator) -> Array:
    """Return (frames,) samples made louder or softer by up to 6 decibels."""
    return samples * np.float32(10 ** (random.uniform(-MAX_GAIN, MAX_GAIN) / 20))


CHANGES: Mapping[str, Mapping[str, Change]] = {
    "image": {"flip": random_flip, "crop": random_crop, "resized_crop": random_resized_crop},
    "pixels": {"flip": random_flip},  # a crop would change how many pixels count
    "sound": {"shift": random_time_shift, "volume": random_volume},
}
PLURALS = {"image": "images", "pixels": "images with masks", "sound": "sounds"}


@dataclass(frozen=True)
class Augmentation:
    """Changes of the training examples of one kind."""

    kind: str  # Key of `CHANGES`.
    names: tuple[str, ...]  # Changes in the order in which they are made.
    seed: int  # Seed of the run.
    longest: int | None = None  # Values of a sound to keep, from a random place; None keeps all.

    def __call__(self, values: Array, *, epoch: int, example: int) -> Array:
        """Return the changed values of an example of the training split in an epoch."""
        random = np.random.Generator(np.random.PCG64([self.seed, epoch, example]))
        if self.longest is not None and len(values) > self.longest:
            start = int(random.integers(len(values) - self.longest + 1))
            values = values[start : start + self.longest]
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
