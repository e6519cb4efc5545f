"""Folders of images, sounds or texts: a folder per class, or `train`, `val` and `test` with these.

A file belongs to the class of the folder in which it lies, at any depth. Hidden files are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from datasets import Dataset, Features, Value

from ampft.data.columns import DataColumns
from ampft.data.labelled_rows import LabelledRows
from ampft.data.media import MEDIA, kind_of_file
from ampft.data.request import DataRequest
from ampft.data.row_labels import LabelParser
from ampft.data.sources.arrow_rows import read_rows
from ampft.data.sources.data_sets import SPLIT_NAMES, split_table
from ampft.data.sources.file_names import files_in, is_visible
from ampft.data.sources.readers import stated_encoding
from ampft.data.sources.text_files import opened_text
from ampft.errors import InputError, listed

TABLE_SUFFIXES = (".parquet", ".csv", ".tsv", ".json", ".jsonl", ".arrow", ".py")
CLASS_COLUMN = "folder"
FILE = {"bytes": Value("binary"), "path": Value("string")}
TEXT = "text"
TEXT_SUFFIXES = (".txt", "")
METADATA = ("metadata.csv", "metadata.jsonl", "metadata.parquet")  # labels of files, for `datasets`
_FILLERS = re.compile(r"[\W\d_]+|set\b|\b(?:seg|data|images|split)\b")  # of `training_set`
_ALL_SPLITS = frozenset(chain.from_iterable(SPLIT_NAMES.values()))
UNLABELLED = ("unsup", "unlabeled", "unlabelled")  # folders of IMDb and others


def folder_kind(name: str, wanted: str | None = None) -> str | None:
    """Return whether a folder has class folders of images, of sounds or of texts.

    Args:
        wanted: Kind of the data that `--task` needs, or None.

    Returns:
        A key of `MEDIA` or `TEXT`; None if the folder does not exist, has tables that `datasets`
        reads, has masks of images, or has no class folders.

    Raises:
        InputError: It has both images and sounds, and the task does not determine the kind.
    """
    folder = Path(name)
    if not folder.is_dir() or wanted not in (None, TEXT, *MEDIA):
        return None
    names = {path.name.casefold() for path in folder.iterdir()}
    has_tables_or_masks = any(file.endswith((*TABLE_SUFFIXES, "annot")) for file in names)
    if has_tables_or_masks or {"images", "masks"} <= names:
        return None
    found: dict[str, Path] = {}
    others = False
    for classes in split_folders(folder).values():
        if any(
            (f / table).is_file() for f in (classes, *subfolders(classes)) for table in METADATA
        ):
            return None
        for class_folder in subfolders(classes):
            for file in files_in(class_folder):
                kind = _kind_of(file)
                others |= kind is None
                if kind is not None:
                    found.setdefault(kind, file)
    if wanted != TEXT and (others or len(found) > 1):  # such as labels of boxes beside images
        found.pop(TEXT, None)
    if len(found) > 1 and wanted not in found:
        both = " and ".join(f"{kind}s ({file})" for kind, file in found.items())
        raise InputError(
            f"--dataset_name {name}: the folder has {both}. Say which to classify: "
            "--task images or --task sounds."
        )
    if wanted == TEXT:
        return TEXT if TEXT in found else None
    return wanted if wanted in found else next(iter(found), None)


def _kind_of(file: Path) -> str | None:
    is_text = file.suffix.lower() in TEXT_SUFFIXES or file.name.isdecimal()
    return kind_of_file(file.name) or (TEXT if is_text else None)


def split_folders(folder: Path) -> dict[str, Path]:
    """Return the folder of the class folders of each split.

    A folder called `train`, `training_set` or the like holds a split if it has folders itself;
    otherwise it is a class. The only folder in a folder is opened, as in `seg_train/seg_train`.
    """
    folder = _unwrapped(folder)
    names = {_plain_name(path): path for path in subfolders(folder)}
    names |= {path.name.casefold(): path for path in subfolders(folder)}
    found = {
        split: next(names[name] for name in usual if name in names)
        for split, usual in SPLIT_NAMES.items()
        if not names.keys().isdisjoint(usual)
    }
    if "train" not in found or not subfolders(found["train"]):
        return {"train": folder}
    return {split: _unwrapped(classes) for split, classes in found.items()}


def _plain_name(folder: Path) -> str:
    """Return the name of a folder without `set` and the like: `training` for `Training_set1`."""
    return _FILLERS.sub("", folder.name.casefold().replace("_", " "))


def _unwrapped(folder: Path) -> Path:
    """Return the folder itself, or the only one that it has, if that one has folders."""
    inner = subfolders(folder)
    has_files = any(file.is_file() and kind_of_file(file.name) for file in folder.iterdir())
    is_wrapper = len(inner) == 1 and not has_files and subfolders(inner[0])
    return _unwrapped(inner[0]) if is_wrapper else folder


def load_folder(
    request: DataRequest, kind: str
) -> tuple[dict[str, LabelledRows], DataColumns, list[str]]:
    """Read a folder of class folders.

    Args:
        request: The user's choices, with the folder as the name of the data set.
        kind: Key of `MEDIA`, or `TEXT`.

    Returns:
        Rows by split, their columns, and notes.

    Raises:
        InputError: A class of the training split has no files, there is only one class, or a file
            lies beside the class folders.
    """
    folder = Path(str(request.dataset_name))
    columns = DataColumns((kind,), LabelParser((CLASS_COLUMN,)), kind=kind)
    splits = split_folders(folder)
    notes = [f"The names of the folders in {', '.join(map(str, splits.values()))} are the labels."]
    inner = [f for part in splits.values() for name in subfolders(part) for f in subfolders(name)]
    if inner and {_plain_name(f) for f in inner} <= _ALL_SPLITS:
        notes.append(f"Folders in classes, such as {inner[0]}, are not read as splits.")
    folder = _unwrapped(folder)
    if folder not in splits.values():
        unused = [
            f for f in subfolders(folder) if not any(f in (s, *s.parents) for s in splits.values())
        ]
        notes += _left_out(unused, f"{folder}: folders that are not a split are not used")
    rows = {}
    for split, classes in splits.items():
        rows[split], others = _read_split(split, classes, columns, request)
        notes += _left_out(others, f"{classes}: files that are not {kind}s are left out")
    return rows, columns, notes


def _read_split(
    split: str, folder: Path, columns: DataColumns, request: DataRequest
) -> tuple[LabelledRows, list[Path]]:
    """Return the rows of a split, and its files of another kind."""
    kind = columns.kind
    others = [file for file in sorted(folder.iterdir()) if file.is_file() and is_visible(file)]
    beside = [str(file) for file in others if _kind_of(file) == kind]
    if beside and kind != TEXT:  # texts beside folders are notes on them
        raise InputError(
            f"{folder}: {listed(beside, limit=3)} lies beside the folders of the "
            f"classes, so its label is not known. Move each {kind} into the folder of its class."
        )
    names = {_plain_name(path): path.name for path in subfolders(folder)}
    if not names.keys() - _ALL_SPLITS and names.keys() & {*SPLIT_NAMES["train"]}:
        raise InputError(
            f"{folder}: the folders {listed(sorted(names.values()))} are named as splits, and "
            f"have no folders of classes. Put the {kind}s of each class into its own folder, such "
            "as train/CLASS/FILE, or pass a table of paths and labels with --train_file."
        )
    found: dict[str, list[Path]] = {}
    for class_folder in subfolders(folder):
        files = list(files_in(class_folder))
        found[class_folder.name] = [file for file in files if _kind_of(file) == kind]
        others += [file for file in files if _kind_of(file) != kind]
        if (
            class_folder.name.casefold() in UNLABELLED
            and class_folder.name not in request.ignored_labels
        ):
            raise InputError(
                f"{class_folder}: the name of this folder says that its files have no labels. To "
                f"leave them out, pass --ignore_label {class_folder.name}."
            )
    empty = [f"{name}/" for name, files in found.items() if not files]
    if split == "train" and empty:
        raise InputError(
            f"{folder}: no {kind}s in {listed(empty)}. A class needs at least one {kind} to train"
            " on: add some, or remove the folder."
        )
    if split == "train" and len(found) < 2:
        raise InputError(
            f"{folder}: the only class folder is {next(iter(found))}/. A classifier needs at least "
            f"two classes, each in a folder with its {kind}s."
        )
    pairs = [(file, name) for name, files in found.items() for file in files]
    if kind == TEXT:
        texts = [_content(file, request.encoding) for file, _ in pairs]
        part = Dataset.from_dict({TEXT: texts, CLASS_COLUMN: [name for _, name in pairs]})
        return read_rows(split_table(part, str(folder), unit="row"), columns, request), others
    part = Dataset.from_dict(
        {
            kind: [{"bytes": None, "path": str(file)} for file, _ in pairs],
            CLASS_COLUMN: [name for _, name in pairs],
        },
        features=Features({kind: FILE, CLASS_COLUMN: Value("string")}),
    ).cast_column(kind, MEDIA[kind].column_type)
    return read_rows(split_table(part, str(folder), unit=kind), columns, request), others


def _content(file: Path, encoding: str) -> str:
    encoding, _ = stated_encoding(file, encoding)
    with opened_text(file, encoding) as opened:
        return opened.read()


def _left_out(paths: Iterable[Path], what: str) -> list[str]:
    names = [str(path) for path in paths]
    return [f"{what}: {listed(names, limit=3)}."] if names else []


def subfolders(folder: Path) -> list[Path]:
    """Return the visible folders in a folder, by name."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and is_visible(path))
