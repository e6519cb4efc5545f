"""Data sets of the Hugging Face hub, and folders that `datasets` can read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from datasets import Audio, ClassLabel, Dataset, DatasetDict, Features, Value, load_from_disk
from datasets import load_dataset as read_dataset

from ampft.data.columns import (
    INPUT_FLAGS,
    DataColumns,
    column_renames,
    expected_names,
    extra_columns,
    label_columns,
    renaming_notes,
    require,
    text_columns,
)
from ampft.data.dataset import cells
from ampft.data.input_columns import InputColumns
from ampft.data.media import MEDIA
from ampft.data.request import DataRequest
from ampft.data.row_collector import LabelledRows
from ampft.data.row_labels import LabelParser
from ampft.data.sources.memory import INDEX_COLUMN
from ampft.data.sources.rows import read_rows
from ampft.data.sources.table import POSITION, Row, SourceTable
from ampft.errors import InputError, listed, quoted, quoted_list
from ampft.hub import hub_problem

# Usual names of the splits; GLUE's MNLI has the matched ones.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "validation_matched"),
    "test": ("test", "test_matched"),
}
MEDIA_TYPES = {kind: type(media.undecoded) for kind, media in MEDIA.items()}
UNLABELLED = -1  # value of a ClassLabel whose label is not published


def read_splits(
    data: DatasetDict, request: DataRequest
) -> tuple[dict[str, LabelledRows], DataColumns, list[str]]:
    """Read the splits of a data set.

    Args:
        data: The data set.
        request: The user's choices, with the name of the data set for messages.

    Returns:
        Rows by split, their columns, and notes.

    Raises:
        InputError: Its columns or rows cannot be used.
    """
    for column, feature in next(iter(data.values())).features.items():
        if isinstance(feature, Audio):  # `datasets` would decode it with torchcodec
            data = data.cast_column(column, Audio(decode=False))
    name = str(request.dataset_name)
    splits, notes = standard_splits(data, name)
    expected = expected_names(
        splits["train"].column_names,
        texts=request.text_columns,
        labels=request.label_columns,
    )
    for split, part in splits.items():
        names = column_renames(part.column_names, expected)
        splits[split] = part.rename_columns(names)
        notes += renaming_notes(names, f"{name}, split {split}")
    columns = choose_columns(splits["train"].features, request)
    notes.append(
        f"{columns.kind.capitalize()}s are read from {' and '.join(map(repr, columns.inputs))},"
        f" labels from {quoted_list(columns.labels.columns)}."
    )
    rows = {}
    for split, part in splits.items():
        table = split_table(part, f"{name}, split {split}")
        columns.require_in(table.columns, origin=table.origin)
        if split != "train" and is_unlabelled(table, columns.labels.columns[0]):
            notes.append(f"The {split} split has no labels and is left out.")
            continue
        rows[split] = read_rows(table, columns, request)
    return rows, columns, notes


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


def choose_columns(features: Features, request: DataRequest) -> DataColumns:
    """Return the requested columns, or columns with a usual type and name.

    Raises:
        InputError: A named column is missing, or the choice is not clear.
    """
    origin, named = str(request.dataset_name), request.label_columns
    features = Features({n: feature for n, feature in features.items() if n != INDEX_COLUMN})

    def describe() -> str:
        types = (f.dtype if isinstance(f, Value) else type(f).__name__ for f in features.values())
        pairs = zip(features, types, strict=True)
        return listed([f"{quoted(name)} ({type_name})" for name, type_name in pairs])

    found = {
        kind: [name for name, feature in features.items() if isinstance(feature, media_type)]
        for kind, media_type in MEDIA_TYPES.items()
    }
    classes = [name for name, feature in features.items() if label_names(feature)]
    if named is None and "label" not in features and len(classes) == 1:
        named = (classes[0],)
    names = label_columns(list(features), named, origin=origin, describe=describe)
    labels = LabelParser(
        names, request.several_labels, request.label_separator, label_names(features[names[0]])
    )
    extra = extra_columns(request)
    kind = media_kind(found, request)
    if kind is None:
        texts = [n for n, f in features.items() if isinstance(f, Value) and "string" in f.dtype]
        parts = InputColumns.of(request.text_columns or (), list(features)).parts
        texts += [name for part in parts if len(part) > 1 for name in part if name in features]
        texts += [name for name in names if name not in texts]
        inputs = text_columns(texts, request, labels=names, origin=origin, describe=describe)
        return DataColumns(inputs, labels, extra=extra)
    column, flag = request.named_media.get(kind), INPUT_FLAGS[kind]
    if column is not None:
        require((column,), found[kind], flag, origin=origin, describe=describe)
    elif len(found[kind]) > 1:
        raise InputError(
            f"{flag}: {origin} has several {kind} columns: {quoted_list(found[kind])}. Pass one."
        )
    return DataColumns((column or found[kind][0],), labels, kind, extra)


def media_kind(found: Mapping[str, Sequence[str]], request: DataRequest) -> str | None:
    """Return whether images or sounds are the inputs; None for texts.

    Args:
        found: Columns of images and of sounds, by kind.
        request: The user's choices.

    Raises:
        InputError: The data set has both and the task names neither, or both columns are named.
    """
    present = [kind for kind, columns in found.items() if columns]
    if len(request.named_media) > 1:
        raise InputError(
            "--image_column_name and --audio_column_name: received both. Pass one column."
        )
    if request.named_media:
        return next(iter(request.named_media))
    if request.text_columns or request.data_kind == "text" or not present:
        return None
    if len(present) > 1 and request.data_kind not in present:
        raise InputError(
            f"{request.dataset_name} has columns of images and of sounds. Say which to classify"
            " with --task."
        )
    return request.data_kind if request.data_kind in present else present[0]


def label_names(feature: object) -> tuple[str, ...] | None:
    """Return the classes that a `ClassLabel`, or a list of them, declares; otherwise None."""
    feature = getattr(feature, "feature", feature)
    return tuple(feature.names) if isinstance(feature, ClassLabel) else None


def is_unlabelled(table: SourceTable, column: str) -> bool:
    """Return whether no row has a label, as in the test splits of benchmarks."""
    missing = (None, UNLABELLED) if column in table.classes else (None,)
    labels = [label for _, (label,) in table.read((column,))]
    return bool(labels) and all(label in missing for label in labels)
