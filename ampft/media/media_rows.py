"""Rows of images and sounds to predict, and samples."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ampft.data.media import MEDIA
from ampft.data.sources.arrow_rows import as_file
from ampft.data.sources.file_names import files_in
from ampft.data.sources.source_table import SourceTable
from ampft.errors import InputError, listed
from ampft.kinds.prediction import InputRows, PredictRequest, TrainingInfo
from ampft.kinds.rows import LENGTHS, are_media, find_labels, table_of_lists, table_of_rows
from ampft.media.sounds import Sound

FILE_COLUMN = "file"
LABEL_COLUMN = "label"
SECONDS = (0.6, 0.6, 0.8, 1.0)
RATE = 16_000
SIDE = 48  # pixels


def media_as_table(
    paths: Sequence[str], kind: str, class_names: Collection[str] = (), *, flag: str = "FILE"
) -> SourceTable:
    """Return the images or sounds in `paths`, which may be folders, as a table of their paths.

    If every file lies in a folder of one of the classes, as in training, the table has the column
    `label` with its name.

    Args:
        kind: `image` or `sound`.
        class_names: Names of the classes that a folder can have.
        flag: What names the paths, for the messages.

    Raises:
        InputError: A path does not exist, or a folder has no such files.
    """
    suffixes = MEDIA[kind].suffixes
    rows: list[list[str]] = []
    others: list[str] = []
    for path in map(Path, paths):
        if not path.exists():
            raise InputError(f"{flag}: {path} does not exist.")
        found = [*files_in(path)] if path.is_dir() else [path]
        usable = [file for file in found if file.suffix.lower() in suffixes]
        if not usable:
            raise InputError(f"{flag}: {path} has no {kind}s ({', '.join(suffixes)}).")
        rows += [[str(file), _class_folder(file, path)] for file in usable]
        others += [str(file) for file in found if file.suffix.lower() not in suffixes]
    has_labels = all(label in class_names for _, label in rows)
    columns = (FILE_COLUMN, LABEL_COLUMN) if has_labels else (FILE_COLUMN,)
    cells = [(number, row[: len(columns)]) for number, row in enumerate(rows, start=1)]
    table = table_of_lists(columns, cells, kind, ", ".join(paths))
    note = f"Files that are not {kind}s are left out: {listed(others, limit=3)}."
    return replace(table, notes=(note,) if others else ())


def _class_folder(file: Path, folder: Path) -> str:
    """Return the name of the outermost folder inside `folder` that holds a file, or nothing."""
    return file.relative_to(folder).parts[0] if file.parent != folder and file != folder else ""


def media_rows(
    media: str, request: PredictRequest, trained: TrainingInfo, *, has_classes: bool = True
) -> InputRows:
    """Return rows of images or sounds: files, folders of them, or a table of paths.

    Args:
        media: `image` or `sound`.
        request: The user's choices.
        has_classes: Whether a case has labels that can be read.
    """
    if request.texts:
        raise InputError(f"--text: the model was trained on {media}s. Pass {media}s or folders.")
    if are_media(request.files, media):
        request.refuse_table_options(f"files of {media}s")
        class_names = trained.label_names if has_classes else ()
        table = media_as_table(request.files, media, class_names, flag=request.flag)
        sources: tuple[str, ...] = (FILE_COLUMN,)
        folder = None
    else:
        needed = f"{media}s. Pass {media}s, folders of them or a table"
        table, inputs = table_of_rows(request, trained, flag=request.flag, needed=needed)
        sources, folder = inputs.sources, Path(table.origin).parent

    def convert(cells: Sequence[Any], place: str) -> tuple[Any, ...] | None:
        del place
        files = tuple(cells if folder is None else (as_file(cell, folder) for cell in cells))
        return None if None in files else files

    labels = find_labels(table, sources, request, trained) if has_classes else None
    missing = f"no {media} in column {', '.join(map(repr, sources))}"
    return InputRows(table, sources, convert, missing, labels)


def mask_rows(request: PredictRequest, trained: TrainingInfo) -> InputRows:
    """Return rows of images, whose masks are not scored."""
    if request.label_column_name is not None:
        raise InputError(
            f"--label_column_name {request.label_column_name}: predicted masks are not scored. "
            "Remove the flag."
        )
    return media_rows("image", request, trained, has_classes=False)


def sample_pictures(columns: int) -> list[Image.Image]:
    """Return images of noise."""
    del columns
    random = np.random.default_rng(0)
    shape = (SIDE, SIDE, 3)
    return [Image.fromarray(random.integers(256, size=shape, dtype=np.uint8)) for _ in LENGTHS]


def sample_sounds(columns: int) -> Sequence[Sound]:
    """Return noise of 0.6 to 1 seconds, the first two of equal length."""
    del columns
    random = np.random.default_rng(0)
    return [
        Sound(random.normal(scale=0.1, size=(int(seconds * RATE), 1)).astype(np.float32), RATE, "")
        for seconds in SECONDS
    ]
