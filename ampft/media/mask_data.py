"""Images with masks: read from folders or columns, and checked and counted before training."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict, Features, Image
from datasets import load_dataset as read_dataset
from PIL import ImageOps

from ampft.data.assembly import finalize
from ampft.data.columns import INPUT_FLAGS, LABEL_FLAG, require_columns
from ampft.data.dataset import ClassificationData, value_bytes
from ampft.data.request import DATA_SET_OPTIONS, DataRequest, refuse_unused_options
from ampft.data.sources.data_sets import load_data_set, standard_splits
from ampft.data.sources.source_table import POSITION, location
from ampft.data.splits import with_missing_splits
from ampft.errors import InputError, listed, quoted, quoted_list
from ampft.media.images import as_rgb, image_conversions, open_image, refuse_nearly_black
from ampft.media.mask_colors import BINARY, MaskSurvey, refuse_spread_greys, with_reading
from ampft.media.mask_folders import (
    FILE,
    IMAGE,
    LAYOUTS,
    MASK,
    find_mask_folders,
    names_hint,
    read_folders,
    refuse_annotations,
)
from ampft.media.masks import (
    IGNORED,
    MaskClasses,
    MaskError,
    Masks,
    class_pixels,
    classes_of_file,
    classes_of_values,
)
from ampft.text.numbers import counted

KIND = "pixels"
# Value of pixels that do not count, in the segmentation tasks of transformers and torchvision.
DEFAULT_IGNORE_INDEX = 255
UNUSED_OPTIONS = (
    *("text_column_names", "text_units", "label_separator", "group_column", "id_column"),
    *("drop_missing_text", "drop_missing_labels", "ignore_label", "sheet_name"),
    *("audio_column_name", "weight_column", "feature_columns"),
)
COLUMN_OPTIONS = ("image_column_name", "label_column_name", *DATA_SET_OPTIONS)
# Columns of a checked split: hashes of the image and of image and mask, and pixels per class.
IMAGE_HASH, PAIR_HASH, PIXELS = "ampft_image_hash", "ampft_pair_hash", "ampft_pixels"

# Names of columns of masks in data sets of the hub, in lower case.
MASK_NAMES = (
    *("mask", "masks", "label", "labels", "annotation", "annotations", "segmentation"),
    *("segmentation_mask", "semantic_mask", "seg_map", "semantic_segmentation"),
)


def read_masks(
    request: DataRequest, data: DatasetDict | None
) -> tuple[DatasetDict, str, list[str]] | None:
    """Read images with masks; return None if a request names other data.

    Args:
        request: The user's choices.
        data: Data in memory, by split; None reads those that the request names.

    Returns:
        Splits with `IMAGE`, `MASK` and `FILE`, the name of the data, and notes.

    Raises:
        InputError: The data or the options must be corrected; each problem has one message.
    """
    is_requested = request.data_kind == KIND
    name = str(request.dataset_name)
    folders = {} if request.dataset_name is None else find_mask_folders(Path(name))
    if folders and (is_requested or request.data_kind is None):
        refuse_unused_options(request, (*UNUSED_OPTIONS, *COLUMN_OPTIONS), "folders of masks")
        data, found_notes = read_folders(Path(name), folders)
        hint = "" if request.class_names_file is not None else names_hint(Path(name))
        return data, name, [*found_notes, *([hint] if hint else [])]
    if request.dataset_name is not None and (is_requested or request.data_kind is None):
        refuse_annotations(Path(name))
    if not is_requested:
        return None
    refuse_unused_options(request, UNUSED_OPTIONS, "images with masks")
    unit = POSITION if data is not None or not request.files else "row"
    if data is None and request.files:
        name = ", ".join(map(str, request.files.values()))
        data = _read_parquet_files(request.paths())
    elif data is None and request.dataset_name is not None:
        data = load_data_set(request)
    if data is None:
        raise InputError(
            f"--task pixels: no data. Pass a folder with --dataset_name, which contains {LAYOUTS}; "
            "a data set with a column of images and one of masks; or --train_file x.parquet."
        )
    found, notes = standard_splits(data, request)
    image, mask = _find_columns(found["train"].features, request, name)
    notes.append(f"Images are read from {image!r}, masks from {mask!r}.")
    return _read_columns(found, image, mask, name, unit=unit), name, notes


def _read_parquet_files(paths: Mapping[str, Sequence[Path]]) -> DatasetDict:
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
        cause = error.__cause__ or error  # `datasets` says only that an error occurred
        reason = f"{type(cause).__name__}: {' '.join(str(cause).split())}"
        raise InputError(f"--train_file: cannot read the Parquet files ({reason}).") from error


def _find_columns(features: Features, request: DataRequest, name: str) -> tuple[str, str]:
    """Return the requested columns of images and masks, or columns with a usual type and name."""
    images = [
        column
        for column, feature in features.items()
        # Without their type, images are dictionaries of bytes and path.
        if isinstance(feature, Image) or (isinstance(feature, dict) and "bytes" in feature)
    ]
    listing = partial(quoted_list, features)
    named, image = request.label_columns, request.image_column_name
    if named is not None:
        require_columns(named, images, LABEL_FLAG, origin=name, describe=listing)
    usual = named or [column for column in images if column.lower() in MASK_NAMES]
    if named is None and len(images) == 1 and Path(name).is_dir():
        raise InputError(
            f"--task pixels: {name} has images and no masks. Folders that are read: {LAYOUTS}. To "
            "classify whole images, remove the flag."
        )
    if named is None and len(usual) != 1:
        raise InputError(
            f"{LABEL_FLAG}: {name} has {'several columns' if usual else 'no column'} of masks "
            f"with a usual name. Its columns: {listing()}. Pass the column of the masks."
        )
    mask = usual[0]
    others = [column for column in images if column != mask]
    if image is not None:
        require_columns((image,), images, INPUT_FLAGS["image"], origin=name, describe=listing)
    elif len(others) != 1:
        raise InputError(
            f"{INPUT_FLAGS['image']}: besides the masks, {name} has {len(others)} columns of"
            f" images. Its columns: {listing()}. Pass one."
        )
    return image or others[0], mask


def _read_columns(
    splits: Mapping[str, Dataset], image: str, mask: str, name: str, *, unit: str
) -> DatasetDict:
    """Return only the images and masks, under the names that folders of masks have."""
    parts = {}
    for split, part in splits.items():
        origin = f"{name}, split {split}"
        require_columns((image,), part.column_names, INPUT_FLAGS["image"], origin=origin)
        require_columns((mask,), part.column_names, LABEL_FLAG, origin=origin)
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


def check_masks(
    splits: DatasetDict, request: DataRequest, name: str
) -> tuple[dict[str, Dataset], MaskClasses, list[str]]:
    """Decode every image and mask, and check that they belong together.

    Args:
        splits: The splits, from `read_masks`.
        request: The user's choices.

    Returns:
        The splits with `IMAGE_HASH`, `PAIR_HASH` and `PIXELS`; the classes; notes.

    Raises:
        InputError: A split is empty, an image or a mask cannot be used, or two splits share images
            and the request forbids it.
    """
    for split, part in splits.items():
        if not len(part):
            raise InputError(f"{name}: no images for the {split} split. Add at least one.")
    classes, class_note = _classes(splits["train"], request)
    problems: list[tuple[str, str]] = []
    pairs: dict[str, list[_Pair]] = {split: [] for split in splits}
    for split, part in splits.items():
        for row in _undecoded(part):
            try:
                pairs[split].append(_Pair.of(row, classes))
            except (MaskError, InputError) as error:
                problems.append((_place(row), str(error)))
    _refuse(problems)
    _refuse_one_class(pairs["train"], classes, name)
    every = [pair for found in pairs.values() for pair in found]
    refuse_nearly_black([pair.peak for pair in every], name)
    conversions = Counter(words for pair in every for words in pair.conversions)
    checked = {}
    for split, part in splits.items():
        found = pairs[split]
        hashed = part.add_column(IMAGE_HASH, [pair.image_hash for pair in found])
        hashed = hashed.add_column(PAIR_HASH, [pair.pair_hash for pair in found])
        checked[split] = hashed.add_column(PIXELS, [pair.pixels for pair in found])
    converted = [f"Images {words}: {count}." for words, count in sorted(conversions.items())]
    notes = _shared_images(checked, refuse=request.fail_on_leak)
    return checked, classes, [class_note, *converted, *notes]


def _refuse_one_class(train: Sequence[_Pair], classes: MaskClasses, name: str) -> None:
    """Raise InputError when all pixels of the training masks that count are of one class."""
    totals = np.sum([pair.pixels for pair in train], axis=0)
    if np.count_nonzero(totals) == 1:
        ignored = classes.ignore_index
        more = "" if ignored is None else f" (the value {ignored} does not count, --ignore_index)"
        raise InputError(
            f"{name}: all pixels of the training masks are {quoted(classes.names[totals.argmax()])}"
            f"{more}. At least two classes are needed: check the masks, --class_names_file and"
            " --ignore_index."
        )


@dataclass(frozen=True)
class _Pair:
    """A decoded image with its mask."""

    pixels: list[int]  # Number of pixels of each class.
    image_hash: bytes  # Hash of the image.
    pair_hash: bytes  # Hash of the image with its mask.
    conversions: tuple[str, ...]  # Words for the user about how the image is converted.
    peak: int  # Highest value of the image in 8-bit RGB.

    @classmethod
    def of(cls, row: Mapping[str, Any], classes: MaskClasses) -> _Pair:
        """Return the image and mask of a row.

        Raises:
            InputError: The image cannot be used.
            MaskError: The mask cannot be used, or has another size.
        """
        image = open_image(row[IMAGE])
        peak = int(np.asarray(as_rgb(image)).max())
        mask = classes.indices(open_image(row[MASK]))
        upright = ImageOps.exif_transpose(image)
        if mask.shape != upright.size[::-1]:
            height, width = mask.shape
            raise MaskError(
                f"the mask has {width} x {height} pixels, and the image {upright.width} x"
                f" {upright.height}. Both must have the same size"
            )
        digest = hashlib.blake2b(value_bytes(upright), digest_size=16)
        image_hash = digest.digest()
        digest.update(mask.tobytes())
        pixels = class_pixels(mask, len(classes.names)).tolist()
        return cls(pixels, image_hash, digest.digest(), image_conversions(image), peak)


def _classes(train: Dataset, request: DataRequest) -> tuple[MaskClasses, str]:
    """Return the classes in the file, or otherwise the values of the training masks."""
    ignored = DEFAULT_IGNORE_INDEX if request.ignore_index is None else request.ignore_index
    named = request.class_names_file
    of_file = None if named is None else classes_of_file(Path(named), ignored)
    survey, problems = MaskSurvey(), list[tuple[str, str]]()
    for row in _undecoded(train):
        try:
            has_colors = of_file is not None and of_file[0].colors is not None
            survey.add(open_image(row[MASK]), _place(row), has_colors=has_colors)
        except (MaskError, InputError) as error:
            problems.append((_place(row), str(error)))
    hint = "" if named is not None else names_hint(Path(str(request.dataset_name)))
    _refuse(problems, hint)
    if of_file is not None:
        classes, notes = with_reading(of_file[0], survey, ignored=request.ignore_index)
        return classes, " ".join([of_file[1].strip(), *notes])
    survey.refuse_several_palettes()
    if request.ignore_index is None:
        if survey.numbers == BINARY:
            return classes_of_values(survey.numbers, None)
        refuse_spread_greys(survey.greys)
    return classes_of_values(survey.numbers, ignored)


def _undecoded(part: Dataset) -> Iterable[Mapping[str, Any]]:
    return part.cast_column(IMAGE, Image(decode=False))


def _place(row: Mapping[str, Any]) -> str:
    """Return where a row is: the file of its mask, or its data set, split and row."""
    path = row[MASK].get("path") if row[MASK].get("bytes") is None else None
    return str(path or row[FILE])


def _refuse(problems: Sequence[tuple[str, str]], hint: str = "") -> None:
    """Raise InputError for the first (place, reason), with the places of the others and a hint."""
    if not problems:
        return
    place, reason = problems[0]
    reason = reason.removeprefix(f"{place}: ").rstrip(".")
    named = listed([other for other, _ in problems[1:]], limit=3)
    more = f" Other masks or images that cannot be used: {named}." if named else ""
    raise InputError(f"{place}: {reason}. {hint or 'Fix or remove it.'}{more}")


def _shared_images(splits: Mapping[str, Dataset], *, refuse: bool) -> list[str]:
    notes = []
    images = {split: part[IMAGE_HASH][:] for split, part in splits.items()}
    for first, second in combinations(sorted(images, key=lambda split: split != "train"), 2):
        known = frozenset(images[first])
        shared = sum(image in known for image in images[second])
        if shared:
            note = f"{shared} of {len(images[second])} {second} images are in {first} too"
            if refuse:
                raise InputError(
                    f"--fail_on_leak: {note}. Remove these images from one of the splits."
                )
            notes.append(f"{note}. With --fail_on_leak this is an error.")
    return notes


def with_labelled_pixels(train: Dataset) -> tuple[Dataset, list[str]]:
    """Return the training images with a labelled pixel, because a batch of others has no loss."""
    kept = [row for row, counts in enumerate(train[PIXELS][:]) if any(counts)]
    left_out = len(train) - len(kept)
    if not left_out or not kept:
        return train, []
    note = f"{counted(left_out, 'training image')} without a labelled pixel left out."
    return train.select(kept), [note]


def mask_fingerprint(part: Dataset, classes: MaskClasses) -> str:
    """Return the SHA-256 (hexadecimal) of a split's images, masks and label names, in order."""
    digest = hashlib.sha256(repr((classes.names, IGNORED)).encode())
    for pair in part[PAIR_HASH][:]:
        digest.update(pair)
    return digest.hexdigest()


def masks_of(part: Dataset, classes: MaskClasses, name: str, split: str) -> Masks:
    """Return the masks of a checked split.

    Args:
        part: The split, from `check_masks`.

    Raises:
        InputError: No pixel counts.
    """
    counts = np.array(part[PIXELS][:], dtype=np.int64)
    if not counts.any():
        raise InputError(
            f"{name}: all pixels of the {split} split have the ignored value "
            f"{classes.ignore_index}. Check --ignore_index."
        )
    return Masks(part.select_columns([MASK]), classes, counts)


@dataclass(frozen=True)
class _LabelsOfSplits:
    """Checked masks as the labels of splits, see `assembly.PartLabels`."""

    classes: MaskClasses
    images: dict[str, list[bytes]] = field(default_factory=dict)  # hash of each image, by split

    def fingerprint(self, part: Dataset) -> str:
        return mask_fingerprint(part, self.classes)

    def of_part(self, part: Dataset, name: str, split: str) -> tuple[Masks, Dataset]:
        masks = masks_of(part, self.classes, name, split)
        self.images[split] = part[IMAGE_HASH][:]
        return masks, part.remove_columns([IMAGE_HASH, PAIR_HASH, PIXELS])


def load_masks(request: DataRequest, data: DatasetDict | None) -> ClassificationData | None:
    """Read, check and split images with masks; return None if a request names other data.

    Args:
        request: The user's choices.
        data: Data in memory, by split; None reads those that the request names.

    Raises:
        InputError: The data or the options must be corrected; each problem has one message.
    """
    masks = read_masks(request, data)
    return None if masks is None else assemble_masks(*masks, request)


def assemble_masks(
    splits: DatasetDict, name: str, notes: Sequence[str], request: DataRequest
) -> ClassificationData:
    """Check images with masks, make the missing splits, and count the pixels of each class.

    Args:
        splits: Images and masks from `read_masks`.
        request: The user's choices.

    Raises:
        InputError: `check_masks` or `missing_splits` rejects the data.
    """
    parts, classes, check_notes = check_masks(splits, request, name)
    hashes = [int.from_bytes(value[:8], "little") for value in parts["train"][IMAGE_HASH][:]]
    images = np.array(hashes, dtype=np.uint64)
    all_splits, split_notes = with_missing_splits(parts, None, images, request)
    all_splits["train"], empty_notes = with_labelled_pixels(all_splits["train"])
    all_notes = [*notes, *check_notes, *split_notes, *empty_notes]
    labels = _LabelsOfSplits(classes)
    data = finalize(all_splits, request, (IMAGE,), KIND, name, all_notes, labels)
    trained = frozenset(labels.images.pop("train"))
    shared = {
        split: sum(each in trained for each in found) for split, found in labels.images.items()
    }
    return replace(data, shared_with_train=shared)
