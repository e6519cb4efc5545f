"""Data sets of the Hugging Face hub, and folders that `datasets` can read."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from datasets import Audio, ClassLabel, Dataset, DatasetDict, Features, Image, Value, load_from_disk
from datasets import load_dataset as read_dataset

from ampft.data.columns import (
    INPUT_FLAGS,
    DataColumns,
    Describe,
    column_renames,
    expected_names,
    label_columns,
    renaming_notes,
    require,
    text_columns,
)
from ampft.data.dataset import batches
from ampft.data.input_columns import InputColumns
from ampft.data.label_parser import LabelParser
from ampft.data.media import MEDIA
from ampft.data.request import DataRequest
from ampft.data.row_collector import POSITION, LabelledRows, RowCollector, location
from ampft.data.sources.memory import INDEX_COLUMN
from ampft.data.sources.table import as_text
from ampft.errors import InputError, listed, quoted, quoted_list
from ampft.hub import hub_problem

# Usual names of the splits; GLUE's MNLI has the matched ones.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "validation_matched"),
    "test": ("test", "test_matched"),
}
MEDIA_TYPES = {"image": Image, "sound": Audio}
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
    name = str(request.dataset_name)
    splits, notes = standard_splits(without_decoded_sounds(data), name)
    expected = expected_names(
        splits["train"].column_names,
        texts=request.text_column_names,
        labels=request.label_column_names,
    )
    for split, part in splits.items():
        names = column_renames(part.column_names, expected)
        splits[split] = with_joined(
            part.rename_columns(names), request.text_column_names or (), f"{name}, split {split}"
        )
        notes += renaming_notes(names, f"{name}, split {split}")
    columns = choose_columns(splits["train"].features, request)
    notes.append(
        f"{columns.kind.capitalize()}s are read from {' and '.join(map(repr, columns.inputs))},"
        f" labels from {quoted_list(columns.labels.columns)}."
    )
    rows = {}
    for split, part in splits.items():
        columns.require_in(part.column_names, origin=f"{name}, split {split}")
        if split != "train" and is_unlabelled(part, columns.labels.columns[0]):
            notes.append(f"The {split} split has no labels and is left out.")
            continue
        rows[split] = read_rows(part, split, columns, request)
    return rows, columns, notes


def without_decoded_sounds(data: DatasetDict) -> DatasetDict:
    """Return a data set whose columns of sounds hold files: `datasets` decodes with torchcodec."""
    for column, feature in next(iter(data.values())).features.items():
        if isinstance(feature, Audio):
            data = data.cast_column(column, Audio(decode=False))
    return data


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


def with_joined(part: Dataset, names: Sequence[str], origin: str) -> Dataset:
    """Return a split with the joined columns among `names`, if it has all their parts."""
    for name in names:
        columns = InputColumns.of((name,), part.column_names)
        if len(columns.sources) < 2 or not {*columns.sources} <= {*part.column_names}:
            continue
        cells = zip(*(part[source] for source in columns.sources), strict=True)
        index = frame_index(part)
        texts = [
            columns.texts(row, location(origin, POSITION, [number], index))[0]
            for number, row in enumerate(cells)
        ]
        part = part.add_column(name, texts, feature=Value("string"))
    return part


def choose_columns(features: Features, request: DataRequest) -> DataColumns:
    """Return the requested columns, or columns with a usual type and name."""
    origin = str(request.dataset_name)
    features = Features({n: feature for n, feature in features.items() if n != INDEX_COLUMN})

    def describe() -> str:
        return listed([f"{quoted(n)} ({kind_of(feature)})" for n, feature in features.items()])

    found = {
        kind: [name for name, feature in features.items() if isinstance(feature, media_type)]
        for kind, media_type in MEDIA_TYPES.items()
    }
    names = hub_label_columns(features, request.label_column_names, origin, describe)
    labels = LabelParser(
        names, request.several_labels, request.label_separator, label_names(features[names[0]])
    )
    extra = {"group": request.group_column, "id": request.id_column}
    kind = media_kind(found, request)
    if kind is None:
        texts = [n for n, f in features.items() if isinstance(f, Value) and "string" in f.dtype]
        inputs = text_columns(
            [
                *(n for n in texts if request.text_column_names or n not in request.not_texts),
                *(name for name in names if name not in texts),
            ],
            request.text_column_names,
            labels=names,
            origin=origin,
            describe=describe,
        )
        return DataColumns(inputs=inputs, labels=labels, kind="text", **extra)
    named, flag = request.named_media.get(kind), INPUT_FLAGS[kind]
    if named is not None:
        require((named,), found[kind], flag, origin=origin, describe=describe)
    elif len(found[kind]) > 1:
        raise InputError(
            f"{flag}: {origin} has several {kind} columns: {quoted_list(found[kind])}. Name one."
        )
    return DataColumns((named or found[kind][0],), labels, kind=kind, **extra)


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
            "--image_column_name and --audio_column_name: received both. Name one column."
        )
    if request.named_media:
        return next(iter(request.named_media))
    if request.text_column_names or request.data_kind == "text" or not present:
        return None
    if len(present) > 1 and request.data_kind not in present:
        raise InputError(
            f"{request.dataset_name} has columns of images and of sounds. Say which to classify"
            " with --task."
        )
    return request.data_kind if request.data_kind in present else present[0]


def hub_label_columns(
    features: Features, named: tuple[str, ...] | None, origin: str, describe: Describe
) -> tuple[str, ...]:
    """Return the label columns; without a name, also the only column that declares classes."""
    classes = [name for name, feature in features.items() if label_names(feature)]
    if named is None and "label" not in features and len(classes) == 1:
        return (classes[0],)
    return label_columns(list(features), named, origin=origin, describe=describe)


def kind_of(feature: object) -> str:
    """Return the name of a feature's type for a message."""
    return feature.dtype if isinstance(feature, Value) else type(feature).__name__


def label_names(feature: object) -> tuple[str, ...] | None:
    """Return the classes that a `ClassLabel`, or a list of them, declares; otherwise None."""
    feature = getattr(feature, "feature", feature)
    return tuple(feature.names) if isinstance(feature, ClassLabel) else None


def is_unlabelled(part: Dataset, column: str) -> bool:
    """Return whether no row has a label, as in the test splits of benchmarks."""
    missing = (None, UNLABELLED) if label_names(part.features[column]) else (None,)
    labels = part.select_columns([column])
    return len(part) > 0 and all(
        label in missing for batch in batches(labels) for label in batch[column]
    )


def read_rows(
    part: Dataset, split: str, columns: DataColumns, request: DataRequest
) -> LabelledRows:
    """Check the rows of one split, and select the usable ones."""
    origin = f"{request.dataset_name}, split {split}"
    index = frame_index(part)
    collector = RowCollector(
        origin=origin, unit=POSITION, columns=columns, request=request, index=index
    )
    # A split can declare its classes in another order than training does.
    labels = replace(columns.labels, declared=label_names(part.features[columns.labels.columns[0]]))
    usable = array("q")
    for number, inputs, cells in numbered_rows(part, columns, origin):
        place = location(origin, POSITION, [number], index)
        if collector.add(number, inputs, labels.parse(cells, place)):
            usable.append(number)
    selected = part.select_columns(list(columns.inputs))
    for name, column in columns.extra.items():
        selected = selected.add_column(name, [as_text(v, origin, column) for v in part[column]])
    if len(usable) < len(part):
        selected = selected.select(usable)
    return collector.finish(selected, declared=labels.classes)


def numbered_rows(
    part: Dataset, columns: DataColumns, origin: str
) -> Iterator[tuple[int, list[object], list[object]]]:
    """Yield (position from 0, inputs, label cells) without decoding images.

    A missing input is None.
    """
    count = len(columns.inputs)
    names = [*columns.inputs, *columns.labels.columns]
    selected = part.select_columns(names)
    if columns.kind != "text":
        selected = selected.cast_column(columns.inputs[0], MEDIA[columns.kind].undecoded)
    index = frame_index(part)
    numbers = itertools.count()
    for batch in batches(selected):
        for values in zip(*(batch[name] for name in names), strict=True):
            number = next(numbers)
            inputs = list(values[:count])
            if columns.kind == "text":
                place = location(origin, POSITION, [number], index)
                inputs = [
                    as_text(value, place, name)
                    for name, value in zip(columns.inputs, inputs, strict=True)
                ]
            yield number, inputs, list(values[count:])


def frame_index(part: Dataset) -> Sequence[str]:
    """Return the labels of the rows of a data frame; empty if it has none."""
    labels: list[str] = part[INDEX_COLUMN][:] if INDEX_COLUMN in part.column_names else []
    return labels
