"""Images with masks: in folders with the same file names, or in two columns of a data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from datasets import Dataset, DatasetDict, Features, Image, Value
from datasets import load_dataset as read_dataset

from ampft.data.columns import INPUT_FLAGS, LABEL_FLAG, require
from ampft.data.images import IMAGE_SUFFIXES
from ampft.data.request import DataRequest
from ampft.data.sources.folders import files_in
from ampft.data.sources.hub import SPLIT_NAMES
from ampft.data.sources.table import POSITION, location
from ampft.errors import InputError, listed, quoted_list

IMAGE, MASK, FILE = "image", "mask", "file"
FEATURES = Features({IMAGE: Image(), MASK: Image(decode=False), FILE: Value("string")})
IMAGE_FOLDER, MASK_FOLDERS = "images", ("masks", "labels", "annotations")
SUFFIX = "annot"
# Names of columns of masks in data sets of the hub, in lower case.
MASK_NAMES = (
    *("mask", "masks", "label", "labels", "annotation", "annotations", "segmentation"),
    *("segmentation_mask", "semantic_mask", "seg_map", "semantic_segmentation"),
)

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
        pairs = chain.from_iterable(_possible_folders(folder, name) for name in names)
        pair = next((pair for pair in pairs if pair[1].is_dir()), None)
        if pair is not None:
            found[split] = pair
    flat = [folder / masks for masks in MASK_FOLDERS if (folder / masks).is_dir()]
    return found or ({"train": (folder / IMAGE_FOLDER, flat[0])} if flat else {})


def _possible_folders(folder: Path, split: str) -> Iterator[tuple[Path, Path]]:
    yield folder / split, folder / f"{split}{SUFFIX}"
    for masks in MASK_FOLDERS:
        yield folder / IMAGE_FOLDER / split, folder / masks / split
    for masks in MASK_FOLDERS:
        yield folder / split / IMAGE_FOLDER, folder / split / masks


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
    for files, others, other_folder, what in (
        (image_of, mask_of, masks, "mask"),
        (mask_of, image_of, images, "image"),
    ):
        single = [str(files[name]) for name in sorted(files.keys() - others.keys())]
        if single:
            raise InputError(
                f"{listed(single, limit=3)}: no {what} with this name in {other_folder}. Every "
                "image needs a mask with the same name and the other way round; suffixes may "
                "differ."
            )
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


def read_mask_files(paths: Mapping[str, Sequence[Path]]) -> DatasetDict:
    """Return Parquet files by split.

    Raises:
        InputError: A file has another format, or cannot be read.
    """
    for files in paths.values():
        for path in files:
            if path.suffix.lower() != ".parquet":
                raise InputError(
                    f"{path}: images with masks are read from Parquet files and folders. Pass a "
                    ".parquet file, or a folder with --dataset_name."
                )
    names = {split: [str(path) for path in some] for split, some in paths.items()}
    try:
        return DatasetDict(read_dataset("parquet", data_files=names))
    except Exception as error:  # downloads, caches and parsers raise many kinds
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"--train_file: cannot read the Parquet files ({reason}).") from error


def find_mask_columns(features: Features, request: DataRequest, name: str) -> tuple[str, str]:
    """Return the requested columns of images and masks, or columns with a usual type and name.

    Raises:
        InputError: A named column is missing or has no images, or the choice is not clear.
    """
    images = [
        column
        for column, feature in features.items()
        # Without their type, images are dictionaries of bytes and path.
        if isinstance(feature, Image) or (isinstance(feature, dict) and "bytes" in feature)
    ]
    listing = partial(quoted_list, features)
    named, image = request.label_columns, request.image_column_name
    if named is not None:
        require(named, images, LABEL_FLAG, origin=name, describe=listing)
    usual = named or [column for column in images if column.lower() in MASK_NAMES]
    if named is None and len(usual) != 1:
        raise InputError(
            f"{LABEL_FLAG}: {name} has {'several columns' if usual else 'no column'} of masks "
            f"with a usual name. Its columns: {listing()}. Pass the column of the masks."
        )
    mask = usual[0]
    others = [column for column in images if column != mask]
    if image is not None:
        require((image,), images, INPUT_FLAGS["image"], origin=name, describe=listing)
    elif len(others) != 1:
        raise InputError(
            f"{INPUT_FLAGS['image']}: besides the masks, {name} has {len(others)} columns of"
            f" images. Its columns: {listing()}. Pass one."
        )
    return image or others[0], mask


def read_mask_columns(
    splits: Mapping[str, Dataset], image: str, mask: str, name: str, *, unit: str
) -> DatasetDict:
    """Return only the images and masks, under the names that folders of masks have.

    Args:
        splits: The splits.
        image: Column of the images.
        mask: Column of the masks.
        name: Name of the data, for messages.
        unit: What numbers of rows count: `row` of Parquet files, or `POSITION`.

    Raises:
        InputError: A split lacks a column, or a row lacks its image or mask.
    """
    parts = {}
    for split, part in splits.items():
        origin = f"{name}, split {split}"
        require((image,), part.column_names, INPUT_FLAGS["image"], origin=origin)
        require((mask,), part.column_names, LABEL_FLAG, origin=origin)
        chosen = part.select_columns([image, mask]).rename_columns({image: IMAGE, mask: MASK})
        chosen = chosen.cast_column(IMAGE, Image()).cast_column(MASK, Image(decode=False))
        first = 0 if unit == POSITION else 1
        places = [location(origin, unit, [first + row]) for row in range(len(part))]
        arrow = chosen.with_format("arrow")[:]
        for column, what in ((IMAGE, "image"), (MASK, "mask")):
            for place, value in zip(places, arrow[column], strict=True):
                if not value.is_valid:
                    raise InputError(f"{place}: no {what}. Add it, or remove the row.")
        parts[split] = chosen.add_column(FILE, places)
    return DatasetDict(parts)
