"""Columns of images and sounds."""

from __future__ import annotations

from datasets import Dataset

from ampft.data.media import MEDIA


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
