"""Predicted masks, written as PNG files."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from ampft.errors import InputError
from ampft.files import atomic_path, refuse_link
from ampft.kinds.prediction import PredictedRows, PredictRequest, RowOutput
from ampft.kinds.rows import unused_column_names
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
        return RowOutput(partial(_pictures, decimals=request.decimals))
    if request.output_file is None:
        raise InputError(
            "--output_file is missing: the masks are written into a folder beside it. Choose a "
            "table, such as --output_file predicted.csv for masks in predicted_masks/."
        )
    path = Path(request.output_file)
    folder = MaskFolderWriter(
        path.with_name(f"{path.stem}_masks"), config.label_colors, request.decimals
    )
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


def _pictures(
    rows: Sequence[tuple[Any, ...]], predictions: PredictedRows, *, decimals: int | None
) -> dict[str, list[Any]]:
    """Return prediction, confidence, and the picture of each mask."""
    del rows
    masks = predictions.decoded.get(MASK_COLUMN, ())
    pictures = [Image.open(io.BytesIO(png)) for png in masks]
    return {**predictions.columns(decimals=decimals), MASK_COLUMN: pictures}


@dataclass
class MaskFolderWriter:
    """Writes predicted masks to a folder, which is created with the first one."""

    path: Path  # Path of the folder.
    palette: Sequence[Any]  # (red, green, blue) of each class.
    decimals: int | None = 6  # Decimal places of the confidences; None does not round.
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
        return {**predictions.columns(decimals=self.decimals), MASK_COLUMN: paths}

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


def with_palette(png: bytes, palette: Sequence[Color]) -> Image.Image:
    """Open a PNG file of class indices as an image that is shown in colours; its values stay."""
    mask = Image.open(io.BytesIO(png))
    mask.putpalette([channel for color in palette for channel in color])
    return mask
