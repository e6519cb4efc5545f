"""Folders of images with masks: the layouts that programs write, and which mask an image has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath

from datasets import Dataset, DatasetDict, Features, Image, Value

from ampft.data.sources.data_sets import SPLIT_NAMES
from ampft.data.sources.file_names import files_in, is_visible
from ampft.errors import InputError, listed
from ampft.media.images import IMAGE_SUFFIXES

IMAGE, MASK, FILE = "image", "mask", "file"
FEATURES = Features({IMAGE: Image(), MASK: Image(decode=False), FILE: Value("string")})
IMAGE_FOLDER, MASK_FOLDERS = "images", ("masks", "labels", "annotations")
SUFFIX = "annot"
MORE_SUFFIXES = ("_masks", "_labels")  # of Carvana, and of CamVid as Kaggle has it
VOC_IMAGES, VOC_MASKS = "JPEGImages", ("SegmentationClassPNG", "SegmentationClass")
VOC_LISTS = "ImageSets/Segmentation"
CITY_IMAGES, CITY_MASKS = "leftImg8bit", "gtFine"
CITY_NAMES = ("_labelTrainIds", "_labelIds")  # of Cityscapes, beside colours and instances
LAYOUTS = (
    f"train/ with train{SUFFIX}/ (also val/, test/), images/ with masks/, each with or without "
    "train/, val/ and test/ inside, or N.jpg beside N_mask.png"
)
# What programs add to the name of a mask, and of its image.
_OF_MASKS = re.compile(
    r"(?:mask|label|seg|gt)s?[-_. ]+(?=.)|(?<=.)[-_. ]+(?:(?:gtFine_)?label(?:Train)?Ids|"
    r"mask|label|seg|segmentation|annotation|gt|L)s?",
    re.IGNORECASE,
)
_OF_IMAGES = re.compile(
    r"(?:image|img)s?[-_. ]+(?=.)|(?<=.)[-_. ]+(?:leftImg8bit|image|img|sat|rgb)s?", re.IGNORECASE
)
# Of labelme2voc, CVAT, CamVid and Roboflow.
NAMES_FILES = ("class_names.txt", "labelmap.txt", "class_dict.csv", "_classes.csv", "classes.txt")
_BESIDE = "_mask"  # of a mask in the folder of its image


@dataclass(frozen=True)
class MaskFolders:
    """Where the images and the masks of a split are."""

    images: Path
    masks: Path
    ending: str = ""  # Of the names of the masks, before the suffix, if the folder has others too.
    listed: Path | None = None  # File with a name per line, of the images that belong to the split.


def names_hint(folder: Path) -> str:
    """Return which file beside the masks of a folder seems to have their classes, or nothing."""
    files = (place / name for place in (folder, folder / "train") for name in NAMES_FILES)
    found = next((file for file in files if file.is_file()), None)
    if found is None:
        return ""
    return f"{found} seems to have the names of the classes: --class_names_file {found}."


def find_mask_folders(folder: Path) -> dict[str, MaskFolders]:
    """Return the folders of images and of masks by split; empty if the folder has no masks."""
    if not folder.is_dir():
        return {}
    found = {}
    for split, names in SPLIT_NAMES.items():
        pairs = chain.from_iterable(_possible_folders(folder, name) for name in names)
        pair = next((pair for pair in pairs if pair.masks.is_dir()), None)
        if pair is not None:
            found[split] = pair
    if found:
        return found
    if of_voc := _of_voc(folder):
        return of_voc
    flat = [folder / masks for masks in MASK_FOLDERS if (folder / masks).is_dir()]
    if flat:
        return {"train": MaskFolders(folder / IMAGE_FOLDER, flat[0])}
    return {"train": MaskFolders(folder, folder, _BESIDE)} if _has_masks_beside(folder) else {}


def _possible_folders(folder: Path, split: str) -> Iterator[MaskFolders]:
    yield MaskFolders(folder / split, folder / f"{split}{SUFFIX}")
    for masks in MASK_FOLDERS:
        yield MaskFolders(folder / IMAGE_FOLDER / split, folder / masks / split)
    for masks in MASK_FOLDERS:
        yield MaskFolders(folder / split / IMAGE_FOLDER, folder / split / masks)
    for suffix in MORE_SUFFIXES:
        if _holds_images(folder / f"{split}{suffix}"):
            yield MaskFolders(folder / split, folder / f"{split}{suffix}")
    masks_of_city = folder / CITY_MASKS / split
    endings = {path.stem.rpartition("_")[2] for path in masks_of_city.glob("*/*.png")}
    for ending in CITY_NAMES:
        if ending.removeprefix("_") in endings:
            yield MaskFolders(folder / CITY_IMAGES / split, masks_of_city, ending)
    if _has_masks_beside(folder / split):
        yield MaskFolders(folder / split, folder / split, _BESIDE)


def _of_voc(folder: Path) -> dict[str, MaskFolders]:
    """Return the folders of PASCAL VOC, which labelme and CVAT write too, by split."""
    masks = next((folder / name for name in VOC_MASKS if _holds_images(folder / name)), None)
    images = folder / VOC_IMAGES
    if masks is None or not images.is_dir():
        return {}
    lists = {
        split: path
        for split, names in SPLIT_NAMES.items()
        for name in names
        if (path := folder / VOC_LISTS / f"{name}.txt").is_file()
    }
    if "train" not in lists:
        return {"train": MaskFolders(images, masks)}
    return {split: MaskFolders(images, masks, listed=path) for split, path in lists.items()}


def _holds_images(folder: Path) -> bool:
    return folder.is_dir() and any(map(_is_image, folder.iterdir()))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in IMAGE_SUFFIXES and is_visible(path) and path.is_file()


def _has_masks_beside(folder: Path) -> bool:
    """Return whether a folder has an image with its mask beside it, as N.jpg and N_mask.png."""
    names = {path.stem for path in folder.iterdir() if _is_image(path)} if folder.is_dir() else ()
    return any(f"{name}{_BESIDE}" in names for name in names)


def read_folders(
    folder: Path, found: Mapping[str, MaskFolders]
) -> tuple[DatasetDict, tuple[str, ...]]:
    """Return the images with their masks by split, in the order of their names, and notes.

    Raises:
        InputError: There are none for training, or an image or a mask lacks the other.
    """
    if "train" not in found:
        raise InputError(
            f"--dataset_name {folder}: has masks for {' and '.join(found)}, but not for training. "
            f"Folders that are read: {LAYOUTS}."
        )
    splits, notes = {}, list[str]()
    for split, folders in found.items():
        splits[split], note = _split(folder, folders)
        notes += note
    return DatasetDict(splits), tuple(dict.fromkeys(notes))


def _split(folder: Path, found: MaskFolders) -> tuple[Dataset, list[str]]:
    """Return the images of a split with their masks, and a note if their names differ."""
    if not found.images.is_dir():
        raise InputError(
            f"--dataset_name {folder}: {found.masks} has masks, but the folder {found.images} of "
            "their images does not exist. Create it, or remove the masks."
        )
    if found.ending:
        image_of = _files(found.images, others=True)
        every = _files(found.masks, others=True)
        mask_of = {name: file for name, file in every.items() if name.endswith(found.ending)}
        masks = {*mask_of.values()}
        image_of = {name: file for name, file in image_of.items() if file not in masks}
    else:
        is_list = found.listed is not None
        image_of, mask_of = _files(found.images), _files(found.masks, others=is_list)
    if found.masks.name in VOC_MASKS:
        image_of, mask_of = _listed(found, image_of, mask_of)
    image_of, mask_of, notes = _paired(image_of, mask_of)
    if found.listed is not None:
        notes.append(f"The lists in {found.listed.parent} are the splits.")
    for files, others, other_folder, what in (
        (image_of, mask_of, found.masks, "mask"),
        (mask_of, image_of, found.images, "image"),
    ):
        single = [str(files[name]) for name in sorted(files.keys() - others.keys())]
        if single:
            raise InputError(
                f"{listed(single, limit=3)}: no {what} with this name in {other_folder}. Every "
                "image needs a mask with the same name or with _mask after it, and every mask an "
                "image; suffixes may differ."
            )
    names = sorted(image_of)
    return Dataset.from_dict(
        {
            IMAGE: [str(image_of[name]) for name in names],
            MASK: [str(mask_of[name]) for name in names],
            FILE: [image_of[name].relative_to(folder).as_posix() for name in names],
        },
        features=FEATURES,
    ), notes


def _listed(
    found: MaskFolders, image_of: dict[str, Path], mask_of: dict[str, Path]
) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return the images and masks of PASCAL VOC that belong to a split.

    Only some of its images have masks: those in the lists, or all that have one.
    """
    if found.listed is None:
        return {name: file for name, file in image_of.items() if name in mask_of}, mask_of
    names = found.listed.read_text(encoding="utf-8", errors="replace").split()
    missing = [name for name in names if name not in image_of or name not in mask_of]
    if missing:
        raise InputError(
            f"{found.listed}: {listed(missing, limit=3)}: no such image in {found.images}, or no "
            f"such mask in {found.masks}. Add it, or remove the line."
        )
    return {name: image_of[name] for name in names}, {name: mask_of[name] for name in names}


def _paired(
    image_of: dict[str, Path], mask_of: dict[str, Path]
) -> tuple[dict[str, Path], dict[str, Path], list[str]]:
    """Return images and masks under equal names, and a note on what programs added to them.

    The same is removed from all names of a side, and the names that remain must be the same.
    """
    if image_of.keys() == mask_of.keys():
        return image_of, mask_of, []
    (images, of_image), (masks, of_mask) = _plain(image_of, _OF_IMAGES), _plain(mask_of, _OF_MASKS)
    for first, added in ((image_of, ""), (images, of_image)):
        if first.keys() == masks.keys():
            parts = [f"masks without {of_mask!r}", f"images without {added!r}"]
            return (
                first,
                masks,
                [f"Names of {' and '.join(parts[: 1 + bool(added)])} are compared."],
            )
    return image_of, mask_of, []


def _plain(files: Mapping[str, Path], pattern: re.Pattern[str]) -> tuple[dict[str, Path], str]:
    """Return files under their names without what all have at the same end, and what it is."""
    first = PurePosixPath(next(iter(files))).name
    for match in pattern.finditer(first):
        at_start = match.start() == 0
        if not (at_start or match.end() == len(first)):
            continue
        added, plain = match[0], dict[str, Path]()
        for name, file in files.items():
            path = PurePosixPath(name)
            if not (path.name.startswith(added) if at_start else path.name.endswith(added)):
                break
            rest = path.name.removeprefix(added) if at_start else path.name.removesuffix(added)
            plain[path.with_name(rest).as_posix()] = file
        else:
            return plain, added
    return dict(files), ""


def _files(folder: Path, *, others: bool = False) -> dict[str, Path]:
    """Return the images of a folder by their relative path without suffix.

    Args:
        others: Whether the folder may have other files.
    """
    files: dict[str, Path] = {}
    strays = []
    for path in files_in(folder):
        if path.suffix.lower() not in IMAGE_SUFFIXES:
            strays.append(path)
            continue
        name = path.relative_to(folder).with_suffix("").as_posix()
        if name in files:
            raise InputError(
                f"{files[name]} and {path}: two files have the same name, so it is unclear which "
                "one is meant. Rename or remove one."
            )
        files[name] = path
    if strays and not files and all(path.suffix.lower() == ".txt" for path in strays):
        raise InputError(f"{folder}: {_BOXES.format('.txt files of YOLO')}")
    if strays and not others:
        raise InputError(
            f"{listed([*map(str, strays)], limit=3)}: not an image. The folder of a split must "
            f"contain only images ({', '.join(IMAGE_SUFFIXES)}). Move the file elsewhere."
        )
    if not files:
        raise InputError(f"{folder}: the folder has no images. Add some, or remove the folder.")
    return files


_BOXES = (
    "has boxes ({}), and boxes are not learned. To classify whole images, put each class into its "
    "own folder. To classify pixels, export masks: images of class numbers, one for each image."
)
_LABELME = (
    "has annotations of labelme ({}), which are read as masks: pip install labelme, then run "
    "labelme2voc.py of its examples/semantic_segmentation: python labelme2voc.py {} OUT --labels "
    "labels.txt. Pass OUT with --dataset_name and --task pixels."
)


def refuse_annotations(folder: Path) -> None:
    """Raise InputError for images beside annotations that are neither masks nor class folders."""
    places = [folder, *(folder / name for name in chain.from_iterable(SPLIT_NAMES.values()))]
    for place in places:
        if not _holds_images(place):
            continue
        first: dict[str, Path] = {}
        for path in sorted(path for path in place.iterdir() if is_visible(path)):
            suffix = ".coco.json" if path.name.endswith(".coco.json") else path.suffix.lower()
            first.setdefault(suffix, path)
        if ".coco.json" in first or (".xml" in first and _has_boxes(first[".xml"])):
            file = first.get(".coco.json") or first[".xml"]
            raise InputError(f"--dataset_name {folder}: {_BOXES.format(file)}")
        if ".json" in first and _is_of_labelme(first[".json"]):
            raise InputError(f"--dataset_name {folder}: {_LABELME.format(first['.json'], folder)}")


def _has_boxes(path: Path) -> bool:
    return "<annotation" in path.read_text(encoding="utf-8", errors="replace")


def _is_of_labelme(path: Path) -> bool:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"shapes", "imagePath"} <= content.keys()
