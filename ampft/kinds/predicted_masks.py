"""Writes predicted masks as PNG files beside the table of predictions."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from ampft.errors import InputError
from ampft.files import atomic_path
from ampft.kinds.pixel_pictures import with_palette
from ampft.kinds.prediction import Predictions, PredictRequest, RowFormat
from ampft.kinds.rows import new_names
from ampft.text.numbers import counted

MASK_COLUMN = "mask"


@dataclass
class MaskOutput:
    """Largest classes and confidence of masks, and OUTPUT_masks/NAME.png for the image NAME.

    Without a file for the table, the masks are images in memory.

    Attributes:
        request: The user's choices.
        label_names: Names of the classes.
        config: Configuration of the model, with (red, green, blue) of each class.
        types: See `prediction.RowOutput`.
        formats: See `prediction.RowOutput`.
    """

    request: PredictRequest
    label_names: tuple[str, ...]
    config: Any
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    formats: Mapping[str, RowFormat] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Choose the folder, which is made with the first mask.

        Raises:
            InputError: No file is named for rows of files, or the folder contains files.
        """
        self._names: list[str] = []
        self.folder: Path | None = None
        if not self.request.files:
            return
        if self.request.output_file is None:
            raise InputError(
                "--output_file is missing: the masks are written into a folder beside it. Name a "
                "table, such as --output_file predicted.csv for masks in predicted_masks/."
            )
        path = Path(self.request.output_file)
        self.folder = path.with_name(f"{path.stem}_masks")
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise InputError(
                f"--output_file {path}: {self.folder}, the folder of the masks, exists. Remove it, "
                "or name another file."
            )

    def columns(
        self, rows: Sequence[tuple[Any, ...]], predictions: Predictions
    ) -> dict[str, list[Any]]:
        """Return prediction, confidence, and the path or picture of each mask.

        Args:
            rows: A path, a dictionary with a `path`, or an image in memory, each.
            predictions: Their predictions, with a PNG file of class indices each.
        """
        masks = list(predictions.decoded.get(MASK_COLUMN, ()))
        if self.folder is None:
            shown: list[Any] = [Image.open(io.BytesIO(png)) for png in masks]
        else:
            shown = [
                str(self._save(self.folder, image, png))
                for (image,), png in zip(rows, masks, strict=True)
            ]
        return {**predictions.columns(), MASK_COLUMN: shown}

    def summary(self) -> str | None:
        """Return the folder and the number of masks."""
        if self.folder is None:
            return None
        return f"{self.folder}: {counted(len(self._names), 'mask')}"

    def _save(self, folder: Path, image: Any, png: bytes) -> Path:
        """Write a mask with its palette; return its path."""
        folder.mkdir(exist_ok=True)
        name = image.get("path") if isinstance(image, dict) else image
        stem = Path(name).stem if isinstance(name, str) else f"image{len(self._names) + 1}"
        (free,) = new_names([stem], self._names)
        self._names.append(free)
        file = io.BytesIO()
        with_palette(png, self.config.label_colors).save(file, format="PNG")
        path = folder / f"{free}.png"
        with atomic_path(path) as temporary:
            temporary.write_bytes(file.getvalue())
        return path
