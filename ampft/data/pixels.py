"""Load images with masks: a request goes in; checked and split examples come out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from datasets import Dataset, DatasetDict, Image
from PIL import ImageOps

from ampft.data.class_names_file import read_class_names
from ampft.data.dataset import ClassificationData, value_bytes
from ampft.data.images import (
    as_rgb,
    brightest,
    image_conversions,
    open_image,
    refuse_nearly_black,
)
from ampft.data.masks import (
    IGNORED,
    MAX_CLASSES,
    IntArray,
    MaskClasses,
    MaskError,
    Masks,
    class_pixels,
    mask_values,
)
from ampft.data.request import DataRequest, refuse_unused_options
from ampft.data.sources.hub import fetch, standard_splits
from ampft.data.sources.mask_columns import find_mask_columns, masks_from_columns, read_parquet
from ampft.data.sources.mask_folders import (
    FILE,
    IMAGE,
    LAYOUTS,
    MASK,
    find_mask_folders,
    read_mask_folders,
)
from ampft.data.sources.table import POSITION
from ampft.data.splits import missing_splits, subsample
from ampft.errors import InputError, listed, quoted
from ampft.text.numbers import counted

KIND = "pixels"
# Value of pixels that do not count, in the segmentation tasks of transformers and torchvision.
DEFAULT_IGNORE_INDEX = 255
UNUSED_OPTIONS = (
    *("text_column_names", "several_labels", "label_separator", "group_column", "id_column"),
    *("drop_missing_text", "drop_missing_labels", "ignore_labels", "sheet_name"),
)
COLUMN_OPTIONS = ("image_column_name", "label_column_names", "dataset_config_name")


def load_pixels(request: DataRequest, data: DatasetDict | None) -> ClassificationData | None:
    """Read, check and split images with masks; return None if a request names other data.

    Args:
        request: The user's choices.
        data: Data in memory, by split; None reads those that the request names.

    Raises:
        InputError: The data or the options must be corrected; each problem has one message.
    """
    is_requested = request.data_kind == KIND
    name = str(request.dataset_name)
    folders = {} if request.dataset_name is None else find_mask_folders(Path(name))
    if folders and (is_requested or request.data_kind is None):
        refuse_unused_options(request, (*UNUSED_OPTIONS, *COLUMN_OPTIONS), "folders of masks")
        splits = read_mask_folders(Path(name), folders)
        return _assemble(splits, request, name, has_files=True)
    if not is_requested:
        return None
    refuse_unused_options(request, UNUSED_OPTIONS, "images with masks")
    unit = POSITION if data is not None or not request.files else "row"
    if data is None and request.files:
        name = ", ".join(map(str, request.files.values()))
        data = read_parquet(request.paths())
    elif data is None and request.dataset_name is not None:
        data = fetch(name, request.dataset_config_name)
    if data is None:
        raise InputError(
            "--task pixels: no data. Name a folder with --dataset_name, which contains "
            f"{LAYOUTS}; a data set with a column of images and one of masks; or --train_file "
            "x.parquet."
        )
    found, notes = standard_splits(data, name)
    columns = find_mask_columns(found["train"].features, request, name)
    splits = masks_from_columns(found, columns, name, unit=unit)
    notes.append(f"Images are read from {columns.image!r}, masks from {columns.mask!r}.")
    return _assemble(splits, request, name, notes=notes)


@dataclass
class _Scan:
    """What one pass over the images and masks of a split finds.

    Attributes:
        counts: Pixels of each class by row.
        images: Digest of each image.
        rows: Digest of each image with its mask.
        conversions: Number of images by kind of conversion.
        peaks: Highest value of each image in 8-bit RGB.
        problems: Place and reason of each row that cannot be used.
    """

    counts: list[IntArray] = field(default_factory=list)
    images: list[bytes] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    conversions: Counter[str] = field(default_factory=Counter)
    peaks: list[int] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)


def _assemble(
    splits: DatasetDict,
    request: DataRequest,
    name: str,
    *,
    notes: Sequence[str] = (),
    has_files: bool = False,
) -> ClassificationData:
    """Check the rows, make the missing splits, and count the pixels of each class."""
    for split, part in splits.items():
        if not len(part):
            raise InputError(f"{name}: no images for the {split} split. Add at least one.")
    classes, class_note = _classes(splits["train"], request)
    scans = {split: _scan(part, classes) for split, part in splits.items()}
    _refuse(problem for scan in scans.values() for problem in scan.problems)
    refuse_nearly_black([peak for scan in scans.values() for peak in scan.peaks], name)
    images = {split: np.array(scan.images) for split, scan in scans.items()}
    digests = np.array([int.from_bytes(d[:8], "little") for d in scans["train"].images], np.uint64)
    new_splits, split_note = missing_splits(
        np.zeros(len(digests), dtype=np.int64),
        digests,
        frozenset(splits),
        validation_fraction=request.validation_fraction,
        test_fraction=request.test_fraction,
        seed=request.split_seed,
    )
    all_notes = [
        *notes,
        class_note,
        *_conversion_notes(scans),
        *_shared_images(images, refuse=request.fail_on_leak),
        *([split_note.replace("rows, stratified,", "images,")] if split_note else []),
    ]
    rows_of = {split: np.arange(len(part)) for split, part in splits.items()} | new_splits
    parts, masks, fingerprints = {}, {}, {}
    for split in ("train", "validation", "test"):
        if split not in rows_of:
            continue
        source = split if split in splits else "train"
        rows = rows_of[split]
        if split == "train":
            rows, empty_note = _with_labels(rows, scans[source].counts)
            all_notes += empty_note
        stratum = np.zeros(len(rows), dtype=np.int64)
        kept, note = subsample(stratum, split, request.limits, seed=request.split_seed)
        rows = rows if kept is None else rows[kept]
        all_notes += [note.replace("a stratified choice", "chosen")] if note else []
        parts[split] = splits[source].select(rows)
        counts = np.stack(scans[source].counts)[rows]
        masks[split] = Masks(parts[split].select_columns([MASK]), classes, counts)
        fingerprints[split] = _fingerprint([scans[source].rows[row] for row in rows], classes)
    _check_labelled(masks, request)
    return ClassificationData(
        splits=DatasetDict(parts),
        input_columns=(IMAGE,),
        kind=KIND,
        name=name,
        fingerprints=fingerprints,
        notes=tuple(all_notes),
        masks=masks,
    )


def _classes(train: Dataset, request: DataRequest) -> tuple[MaskClasses, str]:
    """Return the classes in the file, or otherwise the values of the training masks."""
    ignored = DEFAULT_IGNORE_INDEX if request.ignore_index is None else request.ignore_index
    if request.class_names_file is None:
        return _classes_of_values(train, ignored)
    entries = read_class_names(request.class_names_file)
    numbered = [(value, entry) for value, entry in enumerate(e for e in entries if not e.ignore)]
    kept = [(value, entry) for value, entry in numbered if value != ignored]
    if len(kept) < 2:
        raise InputError(
            f"--ignore_index {ignored}: without this value, {request.class_names_file} has "
            f"{counted(len(kept), 'class')}, but at least two are needed. Check the flag, or add "
            "classes."
        )
    colors = tuple(entry.color for _, entry in kept if entry.color is not None)
    ignored_entries = [entry for entry in entries if entry.ignore]
    ignored_entries += [entry for value, entry in numbered if value == ignored]
    classes = MaskClasses(
        names=tuple(entry.name for _, entry in kept),
        values=tuple(value for value, _ in kept),
        ignore_index=ignored,
        colors=colors or None,
        ignored_colors=tuple(entry.color for entry in ignored_entries if entry.color is not None),
    )
    names = listed([quoted(entry.name) for entry in ignored_entries])
    note = f"{len(kept)} classes from {request.class_names_file.name}. "
    note += f"Pixels of {names} do not count." if names else f"The value {ignored} is ignored."
    if colors:
        note += " Colour masks are converted by the colours of the classes."
    return classes, note


def _classes_of_values(train: Dataset, ignored: int) -> tuple[MaskClasses, str]:
    found: set[int] = set()
    problems = []
    for row in _undecoded(train):
        try:
            found |= set(np.unique(mask_values(open_image(row[MASK]))).tolist())
        except (MaskError, InputError) as error:
            problems.append((_place(row), str(error)))
    _refuse(problems)
    found -= {ignored}
    top = max(found, default=0)
    if min(found, default=0) < 0 or top >= MAX_CLASSES or len(found) < 2:
        shown = ", ".join(map(str, sorted(found)[:12])) + ", ..." * (len(found) > 12)
        raise InputError(
            f"--ignore_index {ignored}: the other values of the training masks are "
            f"{shown or 'none'}. They must be classes: at least two whole numbers from 0 "
            f"to {MAX_CLASSES - 1}. Convert the masks, or check the flag."
        )
    values = tuple(value for value in range(top + 1) if value != ignored)
    classes = MaskClasses(tuple(map(str, values)), values, ignored)
    unused = len(values) - len(found)
    gaps = f", {unused} of which do not occur" if unused else ""
    return classes, (
        f"Classes {values[0]} to {top} from the values of the training masks{gaps}; the value "
        f"{ignored} is ignored (--ignore_index). --class_names_file gives them names."
    )


def _scan(part: Dataset, classes: MaskClasses) -> _Scan:
    """Decode every image and mask of a split, and check that they belong together."""
    scan = _Scan()
    for row in _undecoded(part):
        try:
            image = open_image(row[IMAGE])
            peak = brightest(as_rgb(image))
            mask = classes.indices(open_image(row[MASK]))
        except (MaskError, InputError) as error:
            scan.problems.append((_place(row), str(error)))
            continue
        upright = ImageOps.exif_transpose(image)
        if mask.shape != upright.size[::-1]:
            height, width = mask.shape
            sizes = f"{width} x {height} pixels, and the image {upright.width} x {upright.height}"
            reason = f"the mask has {sizes}. Both must have the same size"
            scan.problems.append((_place(row), reason))
            continue
        scan.peaks.append(peak)
        scan.conversions.update(image_conversions(image))
        scan.counts.append(class_pixels(mask, len(classes.names)))
        digest = hashlib.blake2b(value_bytes(upright), digest_size=16)
        scan.images.append(digest.digest())
        digest.update(mask.tobytes())
        scan.rows.append(digest.digest())
    return scan


def _undecoded(part: Dataset) -> Any:
    return part.cast_column(IMAGE, Image(decode=False))


def _place(row: Mapping[str, Any]) -> str:
    """Return where a row is: the file of its mask, or its data set, split and row."""
    path = row[MASK].get("path") if row[MASK].get("bytes") is None else None
    return str(path or row[FILE])


def _refuse(problems: Any) -> None:
    """Raise InputError for the first problem, with the places of those like it."""
    found = list(problems)
    if not found:
        return
    place, reason = found[0]
    reason = reason.removeprefix(f"{place}: ").rstrip(".")
    others = [other for other, _ in found[1:]]
    named = listed(others, limit=3)
    more = f" Other masks or images that cannot be used: {named}." if others else ""
    raise InputError(f"{place}: {reason}. Fix or remove it.{more}")


def _conversion_notes(scans: Mapping[str, _Scan]) -> list[str]:
    counts: Counter[str] = sum((scan.conversions for scan in scans.values()), Counter())
    return [f"Images {words}: {count}." for words, count in sorted(counts.items())]


def _shared_images(images: Mapping[str, npt.NDArray[Any]], *, refuse: bool) -> list[str]:
    notes = []
    for first, second in combinations(images, 2):
        shared = int(np.isin(images[second], images[first]).sum())
        if shared:
            note = f"{shared} of {len(images[second])} {second} images are in {first} too"
            if refuse:
                raise InputError(f"--fail_on_leak: {note}. Remove them from one of the splits.")
            notes.append(f"{note}. With --fail_on_leak this is an error.")
    return notes


def _with_labels(rows: IntArray, counts: Sequence[IntArray]) -> tuple[IntArray, list[str]]:
    """Return the training images with a labelled pixel, because a batch of others has no loss."""
    kept = np.array([row for row in rows if counts[row].any()], dtype=np.int64)
    left_out = len(rows) - len(kept)
    if not left_out or not len(kept):
        return rows, []
    return kept, [f"{counted(left_out, 'training image')} without a labelled pixel left out."]


def _check_labelled(masks: Mapping[str, Masks], request: DataRequest) -> None:
    for split, part in masks.items():
        if not part.counts.any():
            raise InputError(
                f"{request.dataset_name}: all pixels of the {split} split have the ignored value "
                f"{part.classes.ignore_index}. Check --ignore_index."
            )


def _fingerprint(rows: Sequence[bytes], classes: MaskClasses) -> str:
    digest = hashlib.sha256(repr((classes.names, IGNORED)).encode())
    for row in rows:
        digest.update(row)
    return digest.hexdigest()
