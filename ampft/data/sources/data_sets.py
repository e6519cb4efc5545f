"""Data sets of the hub, and of folders that `datasets` reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, load_from_disk
from datasets import load_dataset as read_dataset

from ampft.data.dataset import cells
from ampft.data.media import MEDIA
from ampft.data.request import DataRequest
from ampft.data.sources.file_names import BRAT
from ampft.data.sources.readers import open_table
from ampft.data.sources.source_table import POSITION, Row, SourceTable
from ampft.errors import InputError, did_you_mean, listed, quoted_list
from ampft.flag import split_names
from ampft.hub import go_offline_if_unreachable

# Usual names of the splits; GLUE's MNLI has the matched ones.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "validation_matched"),
    "test": ("test", "testing", "test_matched"),
}
MEDIA_TYPES = {kind: type(media.undecoded) for kind, media in MEDIA.items()}
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
INDEX_COLUMN = "ampft_index"  # labels of the rows of a data frame


def split_table(part: Dataset, origin: str, unit: str = POSITION) -> SourceTable:
    """Return a split as a table; images and sounds are not decoded.

    Args:
        origin: Its data set and name, for messages.
        unit: What numbers of rows count; from 1, except for `POSITION`.
    """

    def read(names: Sequence[str]) -> Iterator[Row]:
        selected = part.select_columns(list(dict.fromkeys(names)))
        for name, feature in selected.features.items():
            for kind, media_type in MEDIA_TYPES.items():
                if isinstance(feature, media_type):
                    selected = selected.cast_column(name, MEDIA[kind].undecoded)
        yield from enumerate(cells(selected, names), start=0 if unit == POSITION else 1)

    declared = {name: label_names(feature) for name, feature in part.features.items()}
    return SourceTable(
        columns=tuple(part.column_names),
        read=read,
        unit=unit,
        origin=origin,
        classes={name: names for name, names in declared.items() if names is not None},
        index=part[INDEX_COLUMN][:] if INDEX_COLUMN in part.column_names else (),
        dataset=part,
    )


def load_data_set(request: DataRequest) -> DatasetDict:
    """Return the data set of `--dataset_name`, with its splits for training and evaluation.

    Raises:
        InputError: It does not exist, needs a configuration, or cannot be downloaded.
    """
    data = _configuration(request, request.dataset_config_name)
    other = request.eval_dataset_config_name
    if other is None or other == request.dataset_config_name:
        return data
    train = used_splits(data, request)["train"]
    evaluation = _configuration(request, other)
    return DatasetDict({**evaluation, train: data[train]})


def _configuration(request: DataRequest, configuration: str | None) -> DatasetDict:
    """Return a data set, from a folder of `save_to_disk` or through `load_dataset`."""
    name, folder = str(request.dataset_name), Path(str(request.dataset_name))
    revision = request.dataset_revision
    if revision is not None and folder.exists():
        raise InputError(
            f"--dataset_revision {revision}: {name} is a folder, which has no revisions. Remove "
            "the flag."
        )
    is_saved = any((folder / file).is_file() for file in ("dataset_dict.json", "state.json"))
    problem = None if folder.exists() else go_offline_if_unreachable()
    if Path(name).is_dir() and any(Path(name).glob("*.ann")):  # only their texts would be read
        raise InputError(f"--dataset_name {name}: {BRAT}")
    if folder.is_file():
        raise InputError(
            f"--dataset_name {name}: is a file. Unpack an archive and pass its folder; pass a table"
            " with --train_file."
        )
    _refuse_tables_of_one_name(folder)
    # `datasets` makes a name of the last part of a path, and refuses . and ..
    path = str(folder.resolve()) if folder.name in ("", "..") else name
    try:
        loaded = (
            load_from_disk(name)
            if is_saved
            else read_dataset(path, configuration, revision=revision, cache_dir=request.cache_dir)
        )
    except Exception as error:  # downloads, caches and parsers raise many kinds
        reason = _reason(error, folder)
        raise InputError(
            f"--dataset_name: cannot load {name!r}"
            + (f" with the configuration {configuration!r}" if configuration else "")
            + (f" at the revision {revision!r}" if revision else "")
            + (f": {reason}" if problem is None else f": no such folder, and {problem}")
            + (
                _unread_files(folder)
                or " Without the hub, pass --train_file or --dataset_name stdlib."
            )
        ) from error
    return DatasetDict({"train": loaded}) if isinstance(loaded, Dataset) else loaded


def _reason(error: BaseException, folder: Path) -> str:
    """Return why `datasets` cannot load a data set, and what to do if that is known."""
    if different := _different_columns(folder):
        return different
    while error.__cause__ is not None:  # such as a missing package
        error = error.__cause__
    text, advice = " ".join(str(error).split()), ""
    if "label names are duplicated" in text:
        advice = " Give each class its own name, in README.md or dataset_info.json."
    return f"{type(error).__name__}: {text.rstrip('.')}.{advice}"


def _different_columns(folder: Path) -> str:
    """Return which tables of a folder have different columns; empty if none, or if unknown."""
    files = sorted(p for p in folder.iterdir() if p.suffix in TABLES) if folder.is_dir() else []
    try:
        columns = [
            open_table(file, flag="--dataset_name", encoding="utf-8").columns for file in files
        ]
    except InputError:
        return ""
    for file, names in zip(files, columns, strict=True):
        if {*names} != {*columns[0]}:
            return (
                f"{files[0]} has the columns {quoted_list(columns[0])}, and {file} has "
                f"{quoted_list(names)}. Give all files of a split the same columns."
            )
    return ""


def _refuse_tables_of_one_name(folder: Path) -> None:
    """Raise InputError if a folder has a table in two formats, of which `datasets` reads one."""
    tables = [p for p in folder.iterdir() if p.suffix in TABLES] if folder.is_dir() else []
    counts = Counter(path.stem for path in tables)
    twice = [str(path) for path in sorted(tables) if counts[path.stem] > 1]
    if twice:
        raise InputError(
            f"--dataset_name {folder}: has {listed(twice)}, of which `datasets` would read one"
            " format. Remove the others, or pass the right files with --train_file,"
            " --validation_file and --test_file."
        )


def _unread_files(folder: Path) -> str:
    """Return which files a folder has, and what to convert them to; empty if it does not exist."""
    if not folder.is_dir():
        return ""
    endings = Counter(path.suffix.lower() for path in folder.rglob("*") if path.is_file())
    found = [f"{ending or 'no ending'} ({n})" for ending, n in endings.most_common()]
    return (
        f" Its files: {listed(found) or 'none'}.{_conversions(endings)} Pass a table of texts, or"
        " of paths of files, and labels with --train_file."
    )


def _conversions(endings: Iterable[str]) -> str:
    """Return what files with these endings are converted to; empty if some can be read."""
    suffixes = {suffix for kind in MEDIA.values() for suffix in kind.suffixes}
    if {*endings} & {*suffixes, *TABLES}:
        return ""
    return (
        " Convert images to .png or .jpg, sounds to .wav (ffmpeg -i IN OUT.wav), tables to .csv or"
        " .parquet, and unpack archives."
    )


def standard_splits(
    data: DatasetDict, request: DataRequest
) -> tuple[dict[str, Dataset], list[str]]:
    """Return the splits under their standard names, and a note on those that are not used.

    Raises:
        InputError: The data have no training split, or lack a split that was named.
    """
    name, used = request.dataset_name, used_splits(data, request)
    unused = [split for split in data if split not in used.values()]
    notes = [f"Splits of {name} that are not used: {listed(unused)}."] if unused else []
    folder = Path(str(name))  # whose splits may be folders, with metadata.csv beside images
    if tables := sorted([*folder.glob("*.csv"), *folder.glob("*/*.csv")]):
        notes.append(f"{tables[0]}: `datasets` reads 007 as 7, NA as missing; --train_file not so.")
    notes += _class_notes(folder, data[used["train"]])
    return {split: data[source] for split, source in used.items()}, notes


def _class_notes(folder: Path, part: Dataset) -> list[str]:
    """Return notes on classes that a file declares in another way than the data set does."""
    notes = []
    for file in sorted(folder.rglob("*.parquet")) if folder.is_dir() else ():
        table = open_table(file, flag="--dataset_name", encoding="utf-8")
        for column, classes in table.classes.items():
            counting = label_names(part.features.get(column))
            if counting is not None and counting != classes:
                notes.append(
                    f"{file} declares the classes {quoted_list(classes)} for {column!r}, and the"
                    f" description of {folder} says {quoted_list(counting)}, which count."
                )
    return notes[:1]


def used_splits(data: Mapping[str, Any], request: DataRequest) -> dict[str, str]:
    """Return the splits that are used, by their use: the named ones, or those with usual names."""
    chosen, removed = request.split_names, split_names(request.remove_splits) or ()
    asked = {f"--{use}_split_name": name for use, name in chosen.items()}
    for flag, name in [*asked.items(), *(("--remove_splits", name) for name in removed)]:
        if name not in data:
            raise InputError(
                f"{flag}: {request.dataset_name} has no split {name!r}.{did_you_mean(name, data)} "
                f"Its splits: {quoted_list(data)}."
            )
    free = [name for name in data if name not in (*removed, *chosen.values())]
    used = dict(chosen)
    for use, names in SPLIT_NAMES.items():
        known = [name for name in names if name in free]
        if known and use not in used:
            used[use] = known[0]
    if len(free) == 1 and not used:
        used = {"train": free[0]}
    if request.evaluated and "train" not in used and used:  # rows by which chance is known
        used["train"] = next(used[s] for s in (*request.evaluated, *used) if s in used)
        return {use: used[use] for use in SPLIT_NAMES if use in used}
    if "train" not in used:
        raise InputError(
            f"--dataset_name: {request.dataset_name} has no split called train; its splits: "
            f"{quoted_list(data)}. Choose one with --train_split_name."
        )
    twice = [name for name in used.values() if [*used.values(), *removed].count(name) > 1]
    if twice:
        raise InputError(
            f"--dataset_name {request.dataset_name}: the split {twice[0]!r} would have two uses. "
            "Change --train_split_name, --validation_split_name, --test_split_name or "
            "--remove_splits."
        )
    return {use: used[use] for use in SPLIT_NAMES if use in used}


def label_names(feature: object) -> tuple[str, ...] | None:
    """Return the classes that a `ClassLabel`, or a list of them, declares; otherwise None."""
    feature = getattr(feature, "feature", feature)
    return tuple(feature.names) if isinstance(feature, ClassLabel) else None
