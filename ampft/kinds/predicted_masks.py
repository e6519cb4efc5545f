"""Writes predicted masks as PNG files beside the table of predictions."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from ampft.errors import InputError
from ampft.files import atomic_path
from ampft.kinds.pixel_pictures import with_palette
from ampft.kinds.prediction import PredictedRows, PredictRequest, RowOutput
from ampft.kinds.rows import new_names
from ampft.text.numbers import counted

MASK_COLUMN = "mask"


def mask_output(request: PredictRequest, config: Any) -> RowOutput:
    """Return largest classes and confidence of masks, and where the masks are.

    They are OUTPUT_masks/NAME.png for the image NAME or, for images in memory, pictures.

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
    folder = MaskFolder(path.with_name(f"{path.stem}_masks"), config.label_colors)
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
class MaskFolder:
    """The folder of masks, made with the first one.

    Attributes:
        path: Path of the folder.
        palette: (red, green, blue) of each class.
    """

    path: Path
    palette: Sequence[Any]
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
        """Return the folder and the number of masks."""
        return f"{self.path}: {counted(len(self.names), 'mask')}"

    def _save(self, image: Any, png: bytes) -> Path:
        """Write a mask with its palette; return its path."""
        self.path.mkdir(exist_ok=True)
        name = image.get("path") if isinstance(image, dict) else image
        stem = Path(name).stem if isinstance(name, str) else f"image{len(self.names) + 1}"
        (free,) = new_names([stem], self.names)
        self.names.append(free)
        file = io.BytesIO()
        with_palette(png, self.palette).save(file, format="PNG")
        path = self.path / f"{free}.png"
        with atomic_path(path) as temporary:
            temporary.write_bytes(file.getvalue())
        return path
