"""Images and masks in two columns of a data set or of Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset, DatasetDict, Features, Image
from datasets import load_dataset as read_dataset

from ampft.data.columns import LABEL_FLAG, require
from ampft.data.request import DataRequest
from ampft.data.sources.mask_folders import FILE, IMAGE, MASK
from ampft.data.sources.table import POSITION, location
from ampft.errors import InputError, quoted_list

# Names of columns of masks in data sets of the hub, in lower case.
MASKS = (
    *("mask", "masks", "label", "labels", "annotation", "annotations", "segmentation"),
    *("segmentation_mask", "semantic_mask", "seg_map", "semantic_segmentation"),
)


@dataclass(frozen=True)
class MaskColumns:
    """The columns of images and of masks."""

    image: str
    mask: str


def read_parquet(paths: Mapping[str, Sequence[Path]]) -> DatasetDict:
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


def find_mask_columns(features: Features, request: DataRequest, name: str) -> MaskColumns:
    """Return the requested columns, or columns with a usual type and name.

    Raises:
        InputError: A named column is missing or has no images, or the choice is not clear.
    """
    images = [column for column, feature in features.items() if _holds_images(feature)]

    def describe() -> str:
        return quoted_list(features)

    named = request.label_column_names
    if named is not None:
        require(named, images, LABEL_FLAG, origin=name, describe=describe)
        mask = named[0]
    else:
        usual = [column for column in images if column.lower() in MASKS]
        if len(usual) != 1:
            raise InputError(
                f"{LABEL_FLAG}: {name} has {'several columns' if usual else 'no column'} of masks "
                f"with a usual name. Its columns: {describe()}. Name the column of the masks."
            )
        mask = usual[0]
    if request.image_column_name is not None:
        flag = "--image_column_name"
        require((request.image_column_name,), images, flag, origin=name, describe=describe)
        return MaskColumns(request.image_column_name, mask)
    others = [column for column in images if column != mask]
    if len(others) != 1:
        raise InputError(
            f"--image_column_name: besides the masks, {name} has {len(others)} columns of images. "
            f"Its columns: {describe()}. Name one."
        )
    return MaskColumns(others[0], mask)


def masks_from_columns(
    splits: Mapping[str, Dataset], columns: MaskColumns, name: str, *, unit: str
) -> DatasetDict:
    """Return only the images and masks, under the names that folders of masks have.

    Args:
        splits: The splits.
        columns: Columns of the images and masks.
        name: Name of the data, for messages.
        unit: What numbers of rows count: `row` of Parquet files, or `POSITION`.

    Raises:
        InputError: A split lacks a column, or a row lacks its image or mask.
    """
    parts = {}
    for split, part in splits.items():
        origin = f"{name}, split {split}"
        for column, flag in ((columns.image, "--image_column_name"), (columns.mask, LABEL_FLAG)):
            require((column,), part.column_names, flag, origin=origin)
        chosen = part.select_columns([columns.image, columns.mask])
        chosen = chosen.rename_columns({columns.image: IMAGE, columns.mask: MASK})
        chosen = chosen.cast_column(IMAGE, Image()).cast_column(MASK, Image(decode=False))
        first = 0 if unit == POSITION else 1
        places = [location(origin, unit, [first + row]) for row in range(len(part))]
        _refuse_missing(chosen, places)
        parts[split] = chosen.add_column(FILE, places)
    return DatasetDict(parts)


def _holds_images(feature: object) -> bool:
    """Return whether a column can hold images: also as bytes and path, without their type."""
    return isinstance(feature, Image) or (isinstance(feature, dict) and "bytes" in feature)


def _refuse_missing(part: Dataset, places: Sequence[str]) -> None:
    arrow = part.with_format("arrow")
    for column, what in ((IMAGE, "image"), (MASK, "mask")):
        for place, value in zip(places, arrow[:][column], strict=True):
            if not value.is_valid:
                raise InputError(f"{place}: no {what}. Add it, or remove the row.")
