"""Masks: images whose pixels are classes, their classes, and their conversion to indices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from datasets import Dataset
from PIL import Image, ImageOps

from ampft.errors import InputError, listed, quoted
from ampft.media.images import LOSSY_WEBP, open_image
from ampft.text.numbers import counted
from ampft.words.class_names import FLAG, MAX_CLASSES, Color, read_class_names

IGNORED = 255  # class index of pixels that do not count
GREY, PALETTE, COLOR = "grey", "palette", "colour"
LOSSY = ("JPEG", "MPO", "AVIF")
# Lossy compressions of files that can also have others, as Pillow and `open_image` call them.
LOSSY_COMPRESSIONS = {
    "jpeg": "TIFF with JPEG compression",
    "tiff_jpeg": "TIFF with JPEG compression",
    LOSSY_WEBP: LOSSY_WEBP,
}
IGNORED_CODE = -1  # instead of a colour, of a pixel that does not count
ROWS_AT_A_TIME = 16

MaskArray = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class MaskClasses:
    """The classes of masks."""

    names: tuple[str, ...]  # Names of the K classes, in the order of the logits.
    values: tuple[int, ...]  # Value of each class in masks of one channel.
    ignore_index: int | None  # Value of pixels that do not count in such masks; None if all count.
    # Colour of each class in colour masks; None if colours are unknown.
    colors: tuple[Color, ...] | None = None
    ignored_colors: tuple[Color, ...] = ()  # Colours of pixels that do not count.
    # Kinds of masks, `GREY` or `PALETTE`, that are read by colours, not by the numbers they store.
    by_color: frozenset[str] = frozenset()

    def indices(self, mask: Image.Image) -> MaskArray:
        """Return the (H, W) uint8 class indices of a mask, `IGNORED` for pixels that do not count.

        Raises:
            MaskError: A value or a colour belongs to no class.
        """
        codes = mask_values(mask, by_color=self.by_color, has_colors=self.colors is not None)
        ignored = [] if self.ignore_index is None else [self.ignore_index]
        known: IntArray = np.array([*self.values, *ignored], dtype=np.int64)
        is_color = codes.ndim == 3
        if is_color:
            assert self.colors is not None, "mask_values returns colours only where they are known"
            known = packed_colors(np.array([*self.colors, *self.ignored_colors]))
            known = np.append(known, IGNORED_CODE)
            codes = self._color_codes(mask, codes)
        order = np.argsort(known)
        indices = np.full(len(known), IGNORED, dtype=np.uint8)
        indices[: len(self.names)] = np.arange(len(self.names))
        known, indices = known[order], indices[order]
        places = np.searchsorted(known, codes).clip(max=len(known) - 1)
        is_unknown = known[places] != codes
        if is_unknown.any():
            raise MaskError(self._unknown(codes[is_unknown], is_color=is_color))
        return indices[places]

    def _color_codes(self, mask: Image.Image, colors: IntArray) -> IntArray:
        """Return codes of colours, `IGNORED_CODE` where a mask that stores numbers ignores one."""
        codes = packed_colors(colors)
        if mask_kind(mask) != COLOR and self.ignore_index is not None:
            known = packed_colors(np.array([*(self.colors or ()), *self.ignored_colors]))
            is_ignored = mask_values(mask, by_color=frozenset()) == self.ignore_index
            codes[is_ignored & ~np.isin(codes, known)] = IGNORED_CODE
        return codes

    def _unknown(self, codes: IntArray, *, is_color: bool) -> str:
        found, counts = np.unique(codes, return_counts=True)
        most = int(found[counts.argmax()])
        pixels = f"{int(counts.max()):,} pixels have"
        if is_color:
            color = (most >> 16, most >> 8 & 255, most & 255)
            return f"{pixels} the colour {color}, which --class_names_file gives to no class"
        low, high = min(self.values), max(self.values)
        ignored = f" and is not the ignored value {self.ignore_index} (--ignore_index)"
        return f"{pixels} the value {most}, which is outside the classes {low} to {high}" + (
            ignored if self.ignore_index is not None else ""
        )


class MaskError(ValueError):
    """A mask that cannot be converted; the message is the reason."""


def mask_kind(mask: Image.Image) -> str:
    """Return whether a mask stores grey values, indices of a palette, or colours."""
    if mask.mode in ("P", "PA"):
        return PALETTE
    return GREY if mask.mode in ("1", "L", "LA", "La", "I") or "I;16" in mask.mode else COLOR


def mask_colors(mask: Image.Image) -> IntArray:
    """Return the (H, W, 3) colours of a mask."""
    upright = ImageOps.exif_transpose(mask)
    if mask.mode == "I" or "I;16" in mask.mode:  # Pillow would clip the values
        return np.repeat(np.asarray(upright).astype(np.int64)[..., None], 3, axis=-1)
    return np.asarray(upright.convert("RGB")).astype(np.int64)


def mask_values(
    mask: Image.Image, *, by_color: frozenset[str] = frozenset(), has_colors: bool = False
) -> IntArray:
    """Return the values of a mask: (H, W) int64, or (H, W, 3) of a colour mask.

    Values are never scaled: 16-bit values and the indices of a palette are used as they are. A mask
    in RGB whose channels are equal is grey. Transparency is ignored.

    Args:
        mask: Image in any mode of Pillow.
        by_color: Kinds of masks whose colours are returned instead of their numbers.
        has_colors: Whether the colours of the classes are known.

    Raises:
        MaskError: It has colours but the classes' colours are unknown, or it is a JPEG or AVIF.
    """
    compression = str(mask.info.get("compression"))
    if mask.format in LOSSY or compression in LOSSY_COMPRESSIONS:
        kind = LOSSY_COMPRESSIONS.get(compression, str(mask.format))
        article = "an" if kind[0] in "AI" else "a"
        raise MaskError(
            f"{article} {kind}, whose compression changes the values of pixels: save it as PNG"
        )
    if mask_kind(mask) in by_color:
        return mask_colors(mask)
    mask = ImageOps.exif_transpose(mask)
    if mask.mode in ("LA", "PA", "La"):
        mask = mask.getchannel(0)
    if mask.mode in ("1", "L", "P", "I") or mask.mode.startswith("I;16"):
        return np.asarray(mask).astype(np.int64)
    if mask.mode == "F":
        raise MaskError("it has fractions (mode F) instead of whole numbers")
    values = mask_colors(mask)
    if has_colors:
        return values
    if (values == values[..., :1]).all():
        return values[..., 0]
    raise MaskError(
        f"it is a colour mask (mode {mask.mode}), and the colours of the classes are unknown: pass "
        "them with --class_names_file"
    )


def packed_colors(values: npt.NDArray[np.integer]) -> IntArray:
    """Return one number per colour (..., 3)."""
    red, green, blue = np.moveaxis(values.astype(np.int64), -1, 0)
    return red << 16 | green << 8 | blue


def resized_mask(mask: MaskArray, size: tuple[int, int]) -> MaskArray:
    """Return an (H, W) mask in another size, by the nearest pixel."""
    if mask.shape == size:
        return mask
    resized = Image.fromarray(mask).resize((size[1], size[0]), Image.Resampling.NEAREST)
    return np.asarray(resized)


@dataclass(frozen=True, eq=False)
class Masks:
    """The masks of one split, decoded on request."""

    column: Dataset  # Data set with only the column of the masks, not decoded.
    classes: MaskClasses  # Their classes.
    counts: IntArray  # (n, K) int64 pixels of each class that count.
    # Height and width to which masks are resized; None keeps their own.
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

    def subset(self, ids: IntArray) -> Masks:
        """Return the masks `ids`, in this order."""
        return replace(self, column=self.column.select(ids), counts=self.counts[ids])

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


def pad_masks(masks: Sequence[MaskArray]) -> tuple[IntArray, IntArray]:
    """Return (m, H, W) masks padded to one size, and their heights and widths (m, 2)."""
    sizes = np.array([mask.shape for mask in masks], dtype=np.int64)
    labels = np.full((len(masks), *sizes.max(axis=0)), IGNORED, dtype=np.int64)
    for label, mask in zip(labels, masks, strict=True):
        label[: mask.shape[0], : mask.shape[1]] = mask
    return labels, sizes


def classes_of_file(path: Path, ignored: int) -> tuple[MaskClasses, str]:
    """Return the classes of a file of names, and a note.

    Args:
        ignored: Value of pixels that do not count.

    Raises:
        InputError: `read_class_names` rejects the file, or it has fewer than two classes that
            count.
    """
    entries = read_class_names(path)
    numbered = [(value, entry) for value, entry in enumerate(e for e in entries if not e.ignore)]
    kept = [(value, entry) for value, entry in numbered if value != ignored]
    if len(kept) < 2:
        raise InputError(
            f"--ignore_index {ignored}: without this value, {path} has "
            f"{counted(len(kept), 'class')}, but at least two are needed. Check the flag, or add "
            "classes."
        )
    colors = tuple(entry.color for _, entry in kept if entry.color is not None)
    ignored_entries = [entry for entry in entries if entry.ignore]
    ignored_entries += [entry for value, entry in numbered if value == ignored]
    classes = MaskClasses(
        names=tuple(entry.name for _, entry in kept),
        values=tuple(value for value, _ in kept),
        ignore_index=ignored,
        colors=colors or None,
        ignored_colors=tuple(entry.color for entry in ignored_entries if entry.color is not None),
    )
    names = listed([quoted(entry.name) for entry in ignored_entries])
    note = f"{len(kept)} classes from {path.name}. "
    note += f"Pixels of {names} do not count." if names else ""
    return classes, note


def classes_of_values(values: set[int], ignored: int | None) -> tuple[MaskClasses, str]:
    """Return the classes that the values of the training masks are, and a note.

    Args:
        ignored: Value of pixels that do not count; None if all count, as in masks of 0 and 255.

    Raises:
        InputError: They are not at least two numbers from 0 to `MAX_CLASSES` - 1.
    """
    if ignored is None:
        low, high = sorted(values)
        return MaskClasses((str(low), str(high)), (low, high), None), (
            f"The training masks have the values {low} and {high}: two classes. "
            f"{FLAG} gives them names; --ignore_index {high} would ignore {high}."
        )
    found = values - {ignored}
    top = max(found, default=0)
    if min(found, default=0) < 0 or top >= MAX_CLASSES or len(found) < 2:
        shown = ", ".join(map(str, sorted(found)[:12])) + (", ..." if len(found) > 12 else "")
        raise InputError(
            f"--ignore_index {ignored}: the other values of the training masks are "
            f"{shown or 'none'}. They must be classes: at least two whole numbers from 0 "
            f"to {MAX_CLASSES - 1}. Convert the masks, or check the flag."
        )
    kept = tuple(value for value in range(top + 1) if value != ignored)
    unused = len(kept) - len(found)
    gaps = f", {counted(unused, 'class')} without a pixel" if unused else ""
    return MaskClasses(tuple(map(str, kept)), kept, ignored), (
        f"Classes {kept[0]} to {top} from the values of the training masks{gaps}; the value "
        f"{ignored} is ignored (--ignore_index). --class_names_file gives them names."
    )
