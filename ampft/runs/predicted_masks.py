"""Writes predicted masks as PNG files beside the table of predictions."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ampft.errors import InputError
from ampft.files import atomic_path
from ampft.kinds.pixel_pictures import with_palette
from ampft.runs.predict_rows import new_names

MASK_COLUMN = "mask"


class MaskFolder:
    """A folder of masks: OUTPUT_masks/NAME.png for the image NAME."""

    def __init__(self, output_file: str | None, palette: Sequence[Any]) -> None:
        """Choose the folder; `save` creates it.

        Args:
            output_file: File of the table of predictions.
            palette: (red, green, blue) of each class, in which masks are shown.

        Raises:
            InputError: No file is named, or the folder of the masks contains files.
        """
        if output_file is None:
            raise InputError(
                "--output_file is missing: the masks are written into a folder beside it. Name a "
                "table, such as --output_file predicted.csv for masks in predicted_masks/."
            )
        path = Path(output_file)
        self.path = path.with_name(f"{path.stem}_masks")
        self._palette = palette
        self._names: list[str] = []
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise InputError(
                f"--output_file {path}: {self.path}, the folder of the masks, exists. Remove it, "
                "or name another file."
            )

    def save(self, images: Sequence[Any], masks: Iterable[bytes]) -> list[str]:
        """Write the masks of images as PNG files of class indices; return their paths.

        Args:
            images: Paths, dictionaries with a `path`, or images in memory, which get a number.
            masks: A PNG file of class indices for each image.
        """
        self.path.mkdir(exist_ok=True)
        paths = []
        for image, png in zip(images, masks, strict=True):
            name = image.get("path") if isinstance(image, dict) else image
            stem = Path(name).stem if isinstance(name, str) else f"image{len(self._names) + 1}"
            (free,) = new_names([stem], self._names)
            self._names.append(free)
            file = io.BytesIO()
            with_palette(png, self._palette).save(file, format="PNG")
            path = self.path / f"{free}.png"
            with atomic_path(path) as temporary:
                temporary.write_bytes(file.getvalue())
            paths.append(str(path))
        return paths
