"""Predicted masks: written as PNG files, and shown beside image, truth and error."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from ampft.errors import InputError
from ampft.files import atomic_path, refuse_link
from ampft.kinds.prediction import PredictedRows, PredictRequest, RowOutput
from ampft.kinds.rows import unused_column_names
from ampft.media.masks import IGNORED, MaskArray
from ampft.text.numbers import counted
from ampft.words.class_names import Color

MASK_COLUMN = "mask"
LONGEST_NAME = 255  # bytes, of a file or folder
ROOM = 15  # bytes, for a number and a suffix


def mask_output(request: PredictRequest, config: Any) -> RowOutput:
    """Return what predictions add to images: largest classes, confidence, and where the masks are.

    Masks are OUTPUT_masks/NAME.png for the image NAME or, for images in memory, pictures.

    Args:
        request: The user's choices.
        config: Configuration of the model, with (red, green, blue) of each class.

    Raises:
        InputError: No file is named for rows of files, or the folder contains files.
    """
    if not request.files:
        return RowOutput(_pictures)
    if request.output_file is None:
        raise InputError(
            "--output_file is missing: the masks are written into a folder beside it. Choose a "
            "table, such as --output_file predicted.csv for masks in predicted_masks/."
        )
    path = Path(request.output_file)
    folder = MaskFolderWriter(path.with_name(f"{path.stem}_masks"), config.label_colors)
    if (excess := len(os.fsencode(folder.path.name)) - LONGEST_NAME) > 0:
        raise InputError(
            f"--output_file {path}: the masks are written into {folder.path.name}, a name that is "
            f"{counted(excess, 'byte')} too long for a folder. Choose a shorter one."
        )
    refuse_link(folder.path, "--output_file: the folder of the masks")
    if folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
        raise InputError(
            f"--output_file {path}: {folder.path}, the folder of the masks, exists. Remove it, "
            "or choose another file."
        )
    return RowOutput(folder.columns, summary=folder.summary)


def _pictures(rows: Sequence[tuple[Any, ...]], predictions: PredictedRows) -> dict[str, list[Any]]:
    """Return prediction, confidence, and the picture of each mask."""
    del rows
    masks = predictions.decoded.get(MASK_COLUMN, ())
    pictures = [Image.open(io.BytesIO(png)) for png in masks]
    return {**predictions.columns(), MASK_COLUMN: pictures}


@dataclass
class MaskFolderWriter:
    """Writes predicted masks to a folder, which is created with the first one."""

    path: Path  # Path of the folder.
    palette: Sequence[Any]  # (red, green, blue) of each class.
    # Names of the masks that were written, without the suffix.
    names: list[str] = field(default_factory=list)

    def columns(
        self, rows: Sequence[tuple[Any, ...]], predictions: PredictedRows
    ) -> dict[str, list[Any]]:
        """Write the masks; return prediction, confidence, and the path of each.

        Args:
            rows: A path, a dictionary with a `path`, or an image in memory, each.
            predictions: Their predictions, with a PNG file of class indices each.
        """
        masks = predictions.decoded.get(MASK_COLUMN, ())
        paths = [str(self._save(image, png)) for (image,), png in zip(rows, masks, strict=True)]
        return {**predictions.columns(), MASK_COLUMN: paths}

    def summary(self) -> str:
        return f"{self.path}: {counted(len(self.names), 'mask')}"

    def _save(self, image: Any, png: bytes) -> Path:
        """Write a mask with its palette; return its path."""
        self.path.mkdir(exist_ok=True)
        name = image.get("path") if isinstance(image, dict) else image
        stem = Path(name).stem if isinstance(name, str) else f"image{len(self.names) + 1}"
        (free,) = unused_column_names([stem], self.names)
        if len(os.fsencode(f"{free}.png")) > LONGEST_NAME:
            short = os.fsencode(stem)[: LONGEST_NAME - ROOM].decode(errors="ignore")
            (free,) = unused_column_names([short], self.names)
        self.names.append(free)
        file = io.BytesIO()
        with_palette(png, self.palette).save(file, format="PNG")
        path = self.path / f"{free}.png"
        with atomic_path(path) as temporary:
            temporary.write_bytes(file.getvalue())
        return path


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
    counted = truth != IGNORED
    faded = np.asarray(image.convert("L").convert("RGB")) // 2 + 96
    shown = np.where(((truth != prediction) & counted)[..., None], WRONG, faded)
    return Image.fromarray(np.where(counted[..., None], shown, UNCOUNTED).astype(np.uint8))


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


def with_palette(png: bytes, palette: Sequence[Color]) -> Image.Image:
    """Open a PNG file of class indices as an image that is shown in colours; its values stay."""
    mask = Image.open(io.BytesIO(png))
    mask.putpalette([channel for color in palette for channel in color])
    return mask


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
