"""Images and sounds as data: checked and hashed once, and kept in memory once decoded."""

from __future__ import annotations

import hashlib
import mmap
import os
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
from datasets import Audio, Dataset, Image

from ampft.data.dataset import CONTENT_COLUMN, batches
from ampft.data.images import (
    IMAGE_SUFFIXES,
    as_rgb,
    image_conversions,
    open_image,
    refuse_nearly_black,
)
from ampft.data.row_collector import LabelledRows
from ampft.data.sounds import SOUND_SUFFIXES, open_sound
from ampft.errors import InputError, listed
from ampft.text.numbers import byte_size, byte_sizes

FRAMES_COLUMN = "ampft_frames"  # of a split of sounds: the number of frames of each
RATE_COLUMN = "ampft_rate"  # the same for frames per second
MAX_THREADS = 16


@dataclass(frozen=True)
class InspectedMedia:
    """An image or sound that was decoded."""

    sha256: bytes  # Hash of the pixels or samples, which is the same in another lossless format.
    conversions: tuple[str, ...]  # Words for the user about how it is converted.
    frames: int = 0  # Number of frames of a sound; 0 for an image.
    rate: int = 0  # Frames per second of a sound; 0 for an image.
    peak: int = 255  # Highest value of an image in 8-bit RGB; 255 for a sound.


def inspect_image(value: Any) -> InspectedMedia:
    """Decode a cell of a column of images."""
    image = open_image(value)
    pixels = as_rgb(image)
    size = f"{pixels.size[0]} {pixels.size[1]} ".encode()
    digest = hashlib.sha256(size + pixels.tobytes()).digest()
    return InspectedMedia(digest, image_conversions(image), peak=int(np.asarray(pixels).max()))


def inspect_sound(value: Any) -> InspectedMedia:
    """Decode a cell of a column of sounds."""
    sound = open_sound(value)
    channels = sound.samples.shape[1]
    digest = hashlib.sha256(f"{sound.rate} {channels} ".encode() + sound.samples.tobytes()).digest()
    conversions = () if channels == 1 else (f"with {channels} channels, averaged to one",)
    return InspectedMedia(digest, conversions, len(sound.samples), sound.rate)


@dataclass(frozen=True)
class MediaKind:
    """Images or sounds."""

    name: str  # Kind of the data, `image` or `sound`.
    suffixes: tuple[str, ...]  # Names of files end in one of them.
    undecoded: Image | Audio  # Type of `datasets` that gives the bytes and the path of a file.
    # Type of the column in a split; for sounds the same, because `datasets` needs torchcodec to
    # decode them.
    column_type: Image | Audio
    inspect: Callable[[Any], InspectedMedia]  # Function that decodes a cell and describes it.
    converted: str  # What files are converted to, in words, such as "8-bit RGB".


MEDIA = {
    "image": MediaKind(
        "image", IMAGE_SUFFIXES, Image(decode=False), Image(),
        inspect_image, "8-bit RGB",
    ),
    "sound": MediaKind(
        "sound", SOUND_SUFFIXES, Audio(decode=False),
        Audio(decode=False), inspect_sound, "one channel",
    ),
}  # fmt: skip


def kind_of_file(name: str) -> str | None:
    """Return `image` or `sound` for the name of such a file, and None for another name."""
    suffix = PurePath(name).suffix.lower()
    return next((kind.name for kind in MEDIA.values() if suffix in kind.suffixes), None)


def check_media(
    rows: Mapping[str, LabelledRows], column: str, kind: str
) -> tuple[dict[str, LabelledRows], list[str]]:
    """Decode every image or sound once, in threads, before anything is trained.

    Args:
        kind: Key of `MEDIA`.

    Returns:
        The splits with `CONTENT_COLUMN` and, for sounds, `FRAMES_COLUMN` and `RATE_COLUMN`; and a
        note on conversions, if there are any.

    Raises:
        InputError: Some cannot be decoded; the message names their files and rows.
    """
    media = MEDIA[kind]
    checked: dict[str, LabelledRows] = {}
    conversions: Counter[str] = Counter()
    peaks: list[int] = []
    for split, part in rows.items():
        found = _inspect_all(part, column, media)
        conversions.update(words for each in found for words in each.conversions)
        peaks += [each.peak for each in found]
        inputs = part.inputs.add_column(CONTENT_COLUMN, [each.sha256 for each in found])
        if any(each.rate for each in found):
            inputs = inputs.add_column(FRAMES_COLUMN, [each.frames for each in found])
            inputs = inputs.add_column(RATE_COLUMN, [each.rate for each in found])
        checked[split] = replace(part, inputs=inputs)
    refuse_nearly_black(peaks, rows["train"].origin)
    total = sum(len(part.labels) for part in rows.values())
    converted = [f"{count} {words}" for words, count in conversions.most_common()]
    note = f"Of {total} {kind}s, these are converted to {media.converted}: {listed(converted)}."
    return checked, [note] if converted else []


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


def _inspect_all(part: LabelledRows, column: str, media: MediaKind) -> list[InspectedMedia]:
    def inspect(value: Any) -> InspectedMedia | InputError:
        try:
            return media.inspect(value)
        except InputError as error:
            return error

    results: list[InspectedMedia | InputError] = []
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MAX_THREADS)) as threads:
        for batch in batches(undecoded_column(part.inputs, column, media.name)):
            results += threads.map(inspect, batch[column])
    problems = []
    for row, result in enumerate(results):
        if isinstance(result, InputError):
            # Files of a folder have no row.
            place = "" if part.table.unit == media.name else part.location(np.array([row])) + ", "
            problems.append(place.removeprefix(f"{part.origin}, ") + str(result).rstrip("."))
    if problems:
        raise InputError(
            f"{part.origin}: {len(problems)} of {len(results)} {media.name}s cannot be used:"
            f" {listed(problems, limit=3, separator='; ')}. Fix or remove them."
        )
    return [result for result in results if isinstance(result, InspectedMedia)]


IntArray = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

MAX_SHARE = 0.25  # of the memory that is free at the start of the run
NOTED = 2**20  # bytes from which a cache is worth a note


class ExampleCache:
    """One array per example, computed when it is first asked for.

    The memory is mapped anonymously and shared: what a forked worker computes, the training process
    and the workers of later epochs find. Memory is used as it is filled.

    Args:
        sizes: (n,) number of values of each example, at most.
        dtype: Type of the values.
    """

    def __init__(self, sizes: IntArray, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        self._values = _shared(int(self._starts[-1]), self._dtype)
        self._used = _shared(len(sizes), np.dtype(np.int64))  # 0 for an example not yet computed

    def get(self, example: int, compute: Callable[[], Array]) -> Array:
        """Return the values of an example as one row.

        Args:
            compute: Function that returns its values, not empty; called the first time.
        """
        start = int(self._starts[example])
        used = int(self._used[example])
        if used:
            return self._values[start : start + used]
        values = compute().reshape(-1)
        if len(values) <= self._starts[example + 1] - start:
            self._values[start : start + len(values)] = values
            self._used[example] = len(values)  # last, because another process may read
        return values

    def __reduce__(self) -> tuple[Any, ...]:
        """Give a process that is not forked an empty cache."""
        return ExampleCache, (np.diff(self._starts), self._dtype)


def _shared(count: int, dtype: np.dtype[Any]) -> Array:
    memory = mmap.mmap(-1, max(1, count * dtype.itemsize))
    return np.frombuffer(memory, dtype=dtype, count=count)


def make_caches(
    sizes: dict[str, IntArray], dtype: npt.DTypeLike, what: str
) -> tuple[dict[str, ExampleCache], str]:
    """Return a cache for each split if all fit, and a note for the user; "" if it is tiny.

    Args:
        sizes: Number of values of each example, by split.
    """
    needed = sum(int(split.sum()) for split in sizes.values()) * np.dtype(dtype).itemsize
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    limit = int(psutil.virtual_memory().available * MAX_SHARE / processes)
    if needed > limit:
        would, has = byte_sizes(needed, limit)
        return {}, (
            f"{what} would take {would}, and a quarter of the free memory is {has}: they are "
            "not cached, and each epoch decodes the files again "
            "(--dataloader_num_workers does so in other processes)."
        )
    caches = {split: ExampleCache(values, dtype) for split, values in sizes.items()}
    if needed < NOTED:
        return caches, ""
    return caches, f"{what} are cached: {byte_size(needed)}, at most a quarter of the free memory."
