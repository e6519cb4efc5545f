"""Columns of files, whose kinds the add-on `media` adds."""

from __future__ import annotations

from pathlib import PurePath

from datasets import Dataset

from ampft.data.extension_points import FILE_KINDS
from ampft.data.media_kind import MediaKind

MEDIA: dict[str, MediaKind] = {
    name: kind for kinds in FILE_KINDS.all() for name, kind in kinds.items()
}


def kind_of_file(name: str) -> str | None:
    """Return `image` or `sound` for the name of such a file, and None for another name."""
    suffix = PurePath(name).suffix.lower()
    return next((kind.name for kind in MEDIA.values() if suffix in kind.suffixes), None)


def undecoded_column(part: Dataset, column: str, kind: str) -> Dataset:
    """Return only a column of images or sounds, as dictionaries with `bytes` and `path`."""
    return part.select_columns([column]).cast_column(column, MEDIA[kind].undecoded)


def media_reference(files: Dataset, split: str, row: int) -> str:
    """Return the path of an image or sound; if it was read from a table, its split and row.

    Args:
        files: The only column of a split, see `undecoded_column`.
    """
    (value,) = files[row].values()
    is_file = isinstance(value, dict) and value["bytes"] is None
    return value["path"] if is_file else f"{split}/{row}"
