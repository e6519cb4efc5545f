"""Masks as pictures: beside image, truth and error, in the colours of their classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from ampft.media.masks import IGNORED, MaskArray
from ampft.words.class_names import Color

PICTURES = 8  # images of a sheet, from the worst to the best
TILE_WIDTH = 320  # pixels
MARGIN, LINE = 8, 18
WRONG, UNCOUNTED = (220, 30, 30), (0, 0, 0)
PANELS = ("image", "truth", "prediction", "error (red)")


@dataclass(frozen=True)
class Picture:
    """An image with its masks."""

    title: str  # Line above it.
    image: Image.Image  # Image in RGB.
    truth: MaskArray  # (H, W) class indices, `IGNORED` for pixels that do not count.
    prediction: MaskArray  # (H, W) class indices.

    def panels(self, palette: Sequence[Color]) -> tuple[Image.Image, ...]:
        """Return image, truth, prediction and error in RGB."""
        masks = (colored_mask(mask, palette) for mask in (self.truth, self.prediction))
        return (self.image, *masks, error_image(self.image, self.truth, self.prediction))


def error_image(image: Image.Image, truth: MaskArray, prediction: MaskArray) -> Image.Image:
    """Return an image in pale grey, with wrong pixels in red and those that do not count in black.

    Args:
        truth: (H, W) class indices, `IGNORED` for pixels that do not count.
        prediction: (H, W) class indices.
    """
    counts = truth != IGNORED
    faded = np.asarray(image.convert("L").convert("RGB")) // 2 + 96
    shown = np.where(((truth != prediction) & counts)[..., None], WRONG, faded)
    return Image.fromarray(np.where(counts[..., None], shown, UNCOUNTED).astype(np.uint8))


def default_palette(classes: int) -> tuple[Color, ...]:
    """Return the colours of PASCAL VOC, which differ in the high bits of neighbouring indices."""
    colors = []
    for index in range(1, classes + 1):
        channels = [0, 0, 0]
        for bit in range(8):
            for channel in range(3):
                channels[channel] |= (index >> (3 * bit + channel) & 1) << (7 - bit)
        colors.append((channels[0], channels[1], channels[2]))
    return tuple(colors)


def colored_mask(mask: MaskArray, palette: Sequence[Color]) -> Image.Image:
    """Return a mask in the colours of its classes; pixels that do not count are black."""
    table = np.zeros((256, 3), dtype=np.uint8)
    table[: len(palette)] = palette
    return Image.fromarray(table[mask])


def indices_spread_by_value(
    values: npt.NDArray[np.floating], count: int = PICTURES
) -> npt.NDArray[np.intp]:
    """Return the indices of `count` values, evenly spread from the least to the largest."""
    order = np.argsort(values, kind="stable")
    places = np.linspace(0, len(order) - 1, min(count, len(order)))
    return order[np.rint(places).astype(np.int64)]


def stack_with_legend(
    pictures: Sequence[Picture], label_names: Sequence[str], palette: Sequence[Color]
) -> Image.Image:
    """Return pictures below each other, with a legend of the classes above them."""
    font = ImageFont.load_default(13)
    heights = [max(1, round(p.image.height * TILE_WIDTH / p.image.width)) for p in pictures]
    width = len(PANELS) * (TILE_WIDTH + MARGIN) + MARGIN
    legend = _legend_places(label_names, width, font)
    top = legend[-1][1] + 2 * LINE
    height = top + sum(heights) + len(pictures) * (LINE + MARGIN) + LINE
    canvas = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(canvas)
    for (x, y), name, color in zip(legend, label_names, palette, strict=True):
        draw.rectangle((x, y + 2, x + 12, y + 14), fill=tuple(color), outline="black")
        draw.text((x + 18, y), name, fill="black", font=font)
    for column, name in enumerate(PANELS):
        draw.text((MARGIN + column * (TILE_WIDTH + MARGIN), top - LINE), name, "black", font)
    y = top
    for picture, tile_height in zip(pictures, heights, strict=True):
        draw.text((MARGIN, y), picture.title, fill="black", font=font)
        for column, panel in enumerate(picture.panels(palette)):
            is_photo = column == 0
            how = Image.Resampling.BILINEAR if is_photo else Image.Resampling.NEAREST
            tile = panel.resize((TILE_WIDTH, tile_height), how)
            canvas.paste(tile, (MARGIN + column * (TILE_WIDTH + MARGIN), y + LINE))
        y += LINE + tile_height + MARGIN
    return canvas


def _legend_places(
    label_names: Sequence[str], width: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont
) -> list[tuple[int, int]]:
    places, x, y = [], MARGIN, MARGIN
    for name in label_names:
        length = round(font.getlength(name)) + 36
        if x + length > width and x > MARGIN:
            x, y = MARGIN, y + LINE
        places.append((x, y))
        x += length
    return places
