"""Images and sounds as data: checked and hashed once, and kept in memory once decoded."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from ampft.data.dataset import CONTENT_COLUMN, batches
from ampft.data.labelled_rows import LabelledRows
from ampft.data.media import MEDIA
from ampft.data.media_kind import FRAMES_COLUMN, RATE_COLUMN, MediaKind
from ampft.errors import InputError, listed
from ampft.media.images import as_rgb, image_conversions, open_image, refuse_nearly_black
from ampft.media.media_columns import undecoded_column
from ampft.media.sounds import open_sound, sound_library
from ampft.text.numbers import byte_size, byte_sizes

IntArray = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

MAX_THREADS = 16
CANCELLED = 0.05  # of the level of the channels; if their mean has less, they cancel each other out
MASK_NAME = re.compile(
    r"(.+?)[-_. ]masks?(?:[-_. ]?\d+)?", re.IGNORECASE
)  # `cat_mask`, `cat_mask_1`


@dataclass(frozen=True)
class InspectedMedia:
    """An image or sound that was decoded."""

    sha256: bytes  # Hash of the pixels or samples, which is the same in another lossless format.
    conversions: tuple[str, ...]  # Words for the user about how it is converted.
    frames: int = 0  # Number of frames of a sound; 0 for an image.
    rate: int = 0  # Frames per second of a sound; 0 for an image.
    peak: int = 255  # Highest value of an image in 8-bit RGB; 255 for a sound.
    is_silent: bool = False  # Whether nothing is heard of a sound in one channel.


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
    heard, recorded = _level(sound.mono()), _level(sound.samples)
    conversions: tuple[str, ...] = ()
    if channels > 1 and heard < CANCELLED * recorded:
        conversions = (
            f"with {channels} channels that cancel each other out, so that their mean is nearly "
            "silent (keep one channel: sox IN OUT remix 1)",
        )
    elif channels > 1:
        conversions = (f"with {channels} channels, averaged to one",)
    is_silent = heard <= CANCELLED * recorded
    return InspectedMedia(digest, conversions, len(sound.samples), sound.rate, is_silent=is_silent)


def _level(samples: Array) -> float:
    """Return the root mean square of samples."""
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


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
    if kind == "sound":
        sound_library()  # before any file is read
    checked: dict[str, LabelledRows] = {}
    conversions: Counter[str] = Counter()
    peaks: list[int] = []
    silent: list[bool] = []
    for split, part in rows.items():
        if kind == "image":
            _refuse_masks(part, column)
        found = _inspect_all(part, column, media)
        conversions.update(words for each in found for words in each.conversions)
        peaks += [each.peak for each in found]
        silent += [each.is_silent for each in found if each.rate]
        inputs = part.inputs.add_column(CONTENT_COLUMN, [each.sha256 for each in found])
        if any(each.rate for each in found):
            inputs = inputs.add_column(FRAMES_COLUMN, [each.frames for each in found])
            inputs = inputs.add_column(RATE_COLUMN, [each.rate for each in found])
        checked[split] = replace(part, inputs=inputs)
    refuse_nearly_black(peaks, rows["train"].origin)
    if silent and all(silent):
        raise InputError(
            f"{rows['train'].origin}: all {len(silent)} sounds are silent in one channel: their "
            "samples are 0, or their channels cancel each other out. Keep one channel of each: sox "
            "IN OUT remix 1."
        )
    total = sum(len(part.labels) for part in rows.values())
    converted = [f"{count} {words}" for words, count in conversions.most_common()]
    note = f"Of {total} {kind}s, these are converted to {media.converted}: {listed(converted)}."
    return checked, [note] if converted else []


def _elsewhere(problem: str, folder: Path, media: MediaKind) -> str:
    """Return where a missing file of a table is; empty if it is not near the table.

    Args:
        problem: Message on the file, which begins with its path.
        folder: Folder of the table.
    """
    path, found, _ = problem.partition(": the file does not exist")
    if not found or not folder.is_dir() or not Path(path).is_relative_to(folder):
        return ""
    name = Path(path).relative_to(folder)
    places = [folder, folder.parent, *(p for f in (folder, folder.parent) for p in f.iterdir())]
    for place in dict.fromkeys(p for p in places if p.is_dir()):
        for suffix in ("", *media.suffixes):
            file = place / f"{name}{suffix}"
            if file.is_file():
                written = os.path.relpath(file, folder)
                return (
                    f" Paths count from the folder of the table, so write {written} instead of"
                    f" {name}, and the others likewise."
                )
    return ""


def _on_windows_paths(problems: Sequence[str]) -> str:
    """Return what to do if missing files have absolute paths or network paths of Windows."""
    if not all(
        re.search(r"(?:\b[A-Za-z]:/|//\w).*: the file does not exist", each) for each in problems
    ):
        return ""
    return " These are paths on a Windows machine: write them relative to the folder of the table."


def _refuse_masks(part: LabelledRows, column: str) -> None:
    """Raise InputError for images that are masks of others, which lie beside them."""
    values = undecoded_column(part.inputs, column, "image")[:][column]
    paths = [PurePath(value["path"]) for value in values if value["path"]]
    known = {(path.parent, path.stem) for path in paths}
    masks = [
        path
        for path in paths
        if (found := MASK_NAME.fullmatch(path.stem)) and (path.parent, found[1]) in known
    ]
    if masks:
        raise InputError(
            f"{part.origin}: {len(masks)} of {len(paths)} images are named as masks of others, such"
            f" as {masks[0]}. Move them elsewhere to classify images, or pass images with masks "
            "and --task pixels."
        )


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
    problems, elsewhere = [], ""
    for row, result in enumerate(results):
        if isinstance(result, InputError):
            elsewhere = elsewhere or _elsewhere(str(result), Path(part.origin).parent, media)
            # Files of a folder have no row.
            place = "" if part.table.unit == media.name else part.location(np.array([row])) + ", "
            problems.append(place.removeprefix(f"{part.origin}, ") + str(result).rstrip("."))
    if problems:
        raise InputError(
            f"{part.origin}: {len(problems)} of {len(results)} {media.name}s cannot be used:"
            f" {listed(problems, limit=3, separator='; ')}."
            f"{elsewhere or _on_windows_paths(problems) or ' Fix or remove them.'}"
        )
    return [result for result in results if isinstance(result, InspectedMedia)]


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


def caches_if_they_fit(
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
