"""Folders of images with folders of masks that have the same names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from datasets import Dataset, DatasetDict, Features, Image, Value

from ampft.data.images import IMAGE_SUFFIXES
from ampft.data.sources.folders import files_in
from ampft.data.sources.hub import SPLIT_NAMES
from ampft.errors import InputError, listed

IMAGE, MASK, FILE = "image", "mask", "file"
FEATURES = Features({IMAGE: Image(), MASK: Image(decode=False), FILE: Value("string")})
IMAGE_FOLDERS, MASK_FOLDERS = ("images",), ("masks", "labels", "annotations")
SUFFIX = "annot"

LAYOUTS = (
    f"train/ with train{SUFFIX}/ (also val/, test/), or images/ with masks/, each with or without "
    "train/, val/ and test/ inside"
)


def find_mask_folders(folder: Path) -> dict[str, tuple[Path, Path]]:
    """Return the folders of images and of masks by split; empty if the folder has no masks."""
    if not folder.is_dir():
        return {}
    found = {}
    for split, names in SPLIT_NAMES.items():
        pairs = (pair for name in names for pair in _pairs(folder, name))
        pair = next((pair for pair in pairs if pair[1].is_dir()), None)
        if pair is not None:
            found[split] = pair
    flat = next((pair for pair in _flat(folder) if pair[1].is_dir()), None)
    return found or ({} if flat is None else {"train": flat})


def _flat(folder: Path) -> Iterator[tuple[Path, Path]]:
    for images in IMAGE_FOLDERS:
        for masks in MASK_FOLDERS:
            yield folder / images, folder / masks


def _pairs(folder: Path, split: str) -> Iterator[tuple[Path, Path]]:
    yield folder / split, folder / f"{split}{SUFFIX}"
    for images, masks in _flat(folder):
        yield images / split, masks / split
    yield from _flat(folder / split)


def read_mask_folders(folder: Path, found: dict[str, tuple[Path, Path]]) -> DatasetDict:
    """Return the images with their masks by split, in the order of their names.

    Args:
        folder: Folder of the data set.
        found: Result of `find_mask_folders`.

    Raises:
        InputError: Training is missing, an image has no mask, a mask has no image, or a folder has
            another file; the message names the files.
    """
    if "train" not in found:
        raise InputError(
            f"--dataset_name {folder}: has masks for {' and '.join(found)}, but not for training. "
            f"Folders that are read: {LAYOUTS}."
        )
    return DatasetDict({split: _split(folder, *pair) for split, pair in found.items()})


def _split(folder: Path, images: Path, masks: Path) -> Dataset:
    if not images.is_dir():
        raise InputError(
            f"--dataset_name {folder}: {masks} has masks, but the folder {images} of their images "
            "does not exist. Create it, or remove the masks."
        )
    image_of, mask_of = _files(images), _files(masks)
    _same_names(images, image_of, masks, mask_of)
    names = sorted(image_of)
    return Dataset.from_dict(
        {
            IMAGE: [str(image_of[name]) for name in names],
            MASK: [str(mask_of[name]) for name in names],
            FILE: [image_of[name].relative_to(folder).as_posix() for name in names],
        },
        features=FEATURES,
    )


def _files(folder: Path) -> dict[str, Path]:
    """Return the images of a folder by their relative path without suffix."""
    files: dict[str, Path] = {}
    strays = []
    for path in files_in(folder):
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            strays.append(str(path))
            continue
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in files:
            raise InputError(
                f"{files[name]} and {path}: two files with one name, so that their mask or image "
                "is not clear. Rename or remove one."
            )
        files[name] = path
    if strays:
        raise InputError(
            f"{listed(strays, limit=3)}: not an image. The folder of a split must contain only "
            "images "
            f"({', '.join(IMAGE_SUFFIXES)}). Move the file elsewhere."
        )
    if not files:
        raise InputError(f"{folder}: the folder has no images. Add some, or remove the folder.")
    return files


def _same_names(
    images: Path, image_of: dict[str, Path], masks: Path, mask_of: dict[str, Path]
) -> None:
    for files, others, folder, what in (
        (image_of, mask_of, masks, "mask"),
        (mask_of, image_of, images, "image"),
    ):
        single = sorted(files.keys() - others.keys())
        if single:
            raise InputError(
                f"{listed([str(files[name]) for name in single], limit=3)}: no {what} with this "
                "name in "
                f"{folder}. Every image needs a mask with the same name and the other way round; "
                "suffixes may differ."
            )
