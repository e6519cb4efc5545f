"""Masks: images whose pixels are classes, converted to the indices of these classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from datasets import Dataset
from PIL import Image, ImageOps

from ampft.data.images import open_image

IGNORED = 255  # class index of pixels that do not count
MAX_CLASSES = 255
ROWS_AT_A_TIME = 16

MaskArray = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]
Color = tuple[int, int, int]


@dataclass(frozen=True)
class MaskClasses:
    """The classes of masks.

    Attributes:
        names: Names of the K classes, in the order of the logits.
        values: Value of each class in masks of one channel.
        ignore_index: Value of pixels that do not count in such masks.
        colors: Colour of each class in colour masks; None if colours are unknown.
        ignored_colors: Colours of pixels that do not count.
    """

    names: tuple[str, ...]
    values: tuple[int, ...]
    ignore_index: int
    colors: tuple[Color, ...] | None = None
    ignored_colors: tuple[Color, ...] = ()

    def indices(self, mask: Image.Image) -> MaskArray:
        """Return the (H, W) uint8 class indices of a mask, `IGNORED` for pixels that do not count.

        Raises:
            MaskError: A value or a colour belongs to no class.
        """
        codes = mask_values(mask, has_colors=self.colors is not None)
        known: IntArray = np.array([*self.values, self.ignore_index], dtype=np.int64)
        is_color = codes.ndim == 3
        if is_color:
            assert self.colors is not None, "mask_values returns colours only where they are known"
            known = color_codes(np.array([*self.colors, *self.ignored_colors]))
            codes = color_codes(codes)
        order = np.argsort(known)
        indices = np.full(len(known), IGNORED, dtype=np.uint8)
        indices[: len(self.names)] = np.arange(len(self.names))
        known, indices = known[order], indices[order]
        places = np.searchsorted(known, codes).clip(max=len(known) - 1)
        is_unknown = known[places] != codes
        if is_unknown.any():
            raise MaskError(self._unknown(codes[is_unknown], is_color=is_color))
        result: MaskArray = indices[places]
        return result

    def _unknown(self, codes: IntArray, *, is_color: bool) -> str:
        found, counts = np.unique(codes, return_counts=True)
        most = int(found[counts.argmax()])
        pixels = f"{int(counts.max()):,} pixels have"
        if is_color:
            color = (most >> 16, most >> 8 & 255, most & 255)
            return f"{pixels} the colour {color}, which --class_names_file gives to no class"
        low, high = min(self.values), max(self.values)
        return (
            f"{pixels} the value {most}, which is outside the classes {low} to {high} and is not "
            f"the ignored value {self.ignore_index} (--ignore_index)"
        )


class MaskError(ValueError):
    """A mask that cannot be converted; the message is the reason."""


def mask_values(mask: Image.Image, *, has_colors: bool = False) -> IntArray:
    """Return the values of a mask: (H, W) int64, or (H, W, 3) of a colour mask.

    Values are never scaled: 16-bit values and the indices of a palette are used as they are. A mask
    in RGB whose channels are equal is grey. Transparency is ignored.

    Args:
        mask: Image in any mode of Pillow.
        has_colors: Whether the colours of the classes are known.

    Raises:
        MaskError: It has colours but the classes' colours are unknown, or it is a JPEG.
    """
    if mask.format == "JPEG":
        raise MaskError("a JPEG, whose compression changes the values of pixels: save it as PNG")
    mask = ImageOps.exif_transpose(mask)
    if mask.mode in ("LA", "PA", "La"):
        mask = mask.getchannel(0)
    if mask.mode in ("1", "L", "P", "I") or mask.mode.startswith("I;16"):
        return np.asarray(mask).astype(np.int64)
    if mask.mode == "F":
        raise MaskError("it has fractions (mode F) instead of whole numbers")
    values = np.asarray(mask.convert("RGB")).astype(np.int64)
    if has_colors:
        return values
    if (values == values[..., :1]).all():
        return values[..., 0]
    raise MaskError(
        f"it is a colour mask (mode {mask.mode}), and the colours of the classes are unknown: pass "
        "them with --class_names_file"
    )


def color_codes(values: npt.NDArray[np.integer]) -> IntArray:
    """Return one number per colour (..., 3)."""
    red, green, blue = np.moveaxis(values.astype(np.int64), -1, 0)
    return red << 16 | green << 8 | blue


def resized_mask(mask: MaskArray, size: tuple[int, int]) -> MaskArray:
    """Return an (H, W) mask in another size, by the nearest pixel.

    Args:
        mask: Class indices.
        size: Height and width.
    """
    if mask.shape == size:
        return mask
    resized = Image.fromarray(mask).resize((size[1], size[0]), Image.Resampling.NEAREST)
    return np.asarray(resized)


@dataclass(frozen=True, eq=False)
class Masks:
    """The masks of one split, decoded on request.

    Attributes:
        column: Data set with only the column of the masks, not decoded.
        classes: Their classes.
        counts: (n, K) int64 pixels of each class that count.
        size: Height and width to which masks are resized; None keeps their own.
    """

    column: Dataset
    classes: MaskClasses
    counts: IntArray
    size: tuple[int, int] | None = None

    def __len__(self) -> int:
        """Number of masks, n."""
        return len(self.counts)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> IntArray:
        """Return the counts, which stand for the masks where only their equality matters."""
        return np.array(self.counts, dtype=dtype)

    def __getitem__(self, ids: IntArray) -> IntArray:
        """Return (m, H, W) int64 class indices of masks in one size."""
        return np.stack(self.decoded(ids)).astype(np.int64)

    def decoded(self, ids: IntArray) -> list[MaskArray]:
        """Return the (H, W) class indices of the masks `ids`."""
        (values,) = self.column[ids.tolist()].values()
        masks = [self.classes.indices(open_image(value)) for value in values]
        return masks if self.size is None else [resized_mask(mask, self.size) for mask in masks]

    def resized(self, size: tuple[int, int]) -> Masks:
        """Return the masks in one size, with their pixels counted again."""
        masks = Masks(self.column, self.classes, self.counts, size)
        counts = np.zeros_like(self.counts)
        for start in range(0, len(self), ROWS_AT_A_TIME):
            ids = np.arange(start, min(start + ROWS_AT_A_TIME, len(self)))
            for row, mask in zip(ids, masks.decoded(ids), strict=True):
                counts[row] = class_pixels(mask, counts.shape[1])
        return Masks(self.column, self.classes, counts, size)


def class_pixels(mask: MaskArray, classes: int) -> IntArray:
    """Return the (classes,) number of pixels of each class that count."""
    return np.bincount(mask.ravel(), minlength=IGNORED + 1)[:classes].astype(np.int64)


def padded(masks: Sequence[MaskArray]) -> tuple[IntArray, IntArray]:
    """Return (m, H, W) masks padded to one size, and their heights and widths (m, 2)."""
    sizes = np.array([mask.shape for mask in masks], dtype=np.int64)
    labels = np.full((len(masks), *sizes.max(axis=0)), IGNORED, dtype=np.int64)
    for label, mask in zip(labels, masks, strict=True):
        label[: mask.shape[0], : mask.shape[1]] = mask
    return labels, sizes
