"""A kind of data whose cells are files, such as images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from datasets import Audio, Image

from ampft.data.labelled_rows import LabelledRows

FRAMES_COLUMN = "ampft_frames"  # of a split of sounds: the number of frames of each
RATE_COLUMN = "ampft_rate"  # the same for frames per second
Checked = tuple[dict[str, LabelledRows], list[str]]  # Rows of all splits, and notes.


@dataclass(frozen=True)
class MediaKind:
    """A kind of files, such as images."""

    name: str  # Kind of the data, `image` or `sound`.
    suffixes: tuple[str, ...]  # Names of files end in one of them.
    undecoded: Image | Audio  # Type of `datasets` that gives the bytes and the path of a file.
    # Type of the column in a split; for sounds the same, because `datasets` needs torchcodec to
    # decode them.
    column_type: Image | Audio
    inspect: Callable[[Any], Any]  # Function that decodes a cell and describes it.
    converted: str  # What files are converted to, in words, such as "8-bit RGB".
    # Function that decodes every file of the rows, in a column of this kind.
    check: Callable[[Mapping[str, LabelledRows], str, str], Checked]
