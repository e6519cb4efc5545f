"""Data sets of the Hugging Face hub, and folders that `datasets` can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from datasets import ClassLabel, Dataset, DatasetDict, load_from_disk
from datasets import load_dataset as read_dataset

from ampft.data.dataset import cells
from ampft.data.media import MEDIA
from ampft.data.sources.memory import INDEX_COLUMN
from ampft.data.sources.table import POSITION, Row, SourceTable
from ampft.errors import InputError, listed, quoted_list
from ampft.hub import hub_problem

# Usual names of the splits; GLUE's MNLI has the matched ones.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "validation_matched"),
    "test": ("test", "test_matched"),
}
MEDIA_TYPES = {kind: type(media.undecoded) for kind, media in MEDIA.items()}


def split_table(part: Dataset, origin: str, unit: str = POSITION) -> SourceTable:
    """Return a split as a table; images and sounds are not decoded.

    Args:
        part: The split.
        origin: Its data set and name, for messages.
        unit: What numbers of rows count; from 1, except for `POSITION`.
    """

    def read(names: Sequence[str]) -> Iterator[Row]:
        selected = part.select_columns(list(dict.fromkeys(names)))
        for name in selected.column_names:
            for kind, media_type in MEDIA_TYPES.items():
                if isinstance(part.features[name], media_type):
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


def fetch(name: str, configuration: str | None) -> DatasetDict:
    """Return the data set, from a folder of `save_to_disk` or through `load_dataset`.

    Raises:
        InputError: It does not exist, needs a configuration, or cannot be downloaded.
    """
    folder = Path(name)
    is_saved = any((folder / file).is_file() for file in ("dataset_dict.json", "state.json"))
    problem = None if folder.exists() else hub_problem()
    try:
        loaded = load_from_disk(name) if is_saved else read_dataset(name, configuration)
    except Exception as error:  # downloads, caches and parsers raise many kinds
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(
            f"--dataset_name: cannot load {name!r}"
            + (f" with --dataset_config_name {configuration!r}" if configuration else "")
            + (f": {reason}." if problem is None else f": no such folder, and {problem}")
            + " Without the hub, pass --train_file or --dataset_name stdlib."
        ) from error
    return DatasetDict({"train": loaded}) if isinstance(loaded, Dataset) else loaded


def standard_splits(data: DatasetDict, name: str) -> tuple[dict[str, Dataset], list[str]]:
    """Return the splits under their standard names, and a note on those that are not used."""
    used = {
        split: next(candidate for candidate in names if candidate in data)
        for split, names in SPLIT_NAMES.items()
        if not data.keys().isdisjoint(names)
    }
    if len(data) == 1 and not used:
        used = {"train": next(iter(data))}
    if "train" not in used:
        raise InputError(
            f"--dataset_name: {name} has no split called train; its splits: {quoted_list(data)}."
        )
    unused = [split for split in data if split not in used.values()]
    notes = [f"Splits of {name} that are not used: {listed(unused)}."] if unused else []
    return {split: data[source] for split, source in used.items()}, notes


def label_names(feature: object) -> tuple[str, ...] | None:
    """Return the classes that a `ClassLabel`, or a list of them, declares; otherwise None."""
    feature = getattr(feature, "feature", feature)
    return tuple(feature.names) if isinstance(feature, ClassLabel) else None
