"""Datasets of the Hugging Face hub, and folders that `datasets` can read."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from datasets import ClassLabel, Dataset, DatasetDict, Features, Image, Value, load_from_disk
from datasets import load_dataset as read_dataset

from ampft.data.columns import Describe, label_columns, require, text_columns
from ampft.data.dataset import batches
from ampft.data.intake import Intake, LabelledRows
from ampft.data.label_cells import LabelCells
from ampft.data.request import DataRequest
from ampft.data.sources.table import as_text
from ampft.errors import InputError

# What other names stand for the splits; GLUE's MNLI has the matched ones
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "validation_matched"),
    "test": ("test", "test_matched"),
}
UNLABELLED = -1  # what `datasets` puts in a ClassLabel where the label is withheld


@dataclass(frozen=True)
class HubColumns:
    """The columns that were named or found, and what kind of inputs they hold."""

    inputs: tuple[str, ...]
    labels: LabelCells
    kind: str


def load_hub(request: DataRequest) -> tuple[dict[str, LabelledRows], HubColumns, list[str]]:
    """Read the dataset of a request.

    Args:
        request: Has a dataset's name.

    Returns:
        Rows by split, their columns, and notes.

    Raises:
        InputError: When the dataset cannot be had, or its columns or rows cannot be used.
    """
    found = fetch(str(request.dataset_name), request.dataset_config_name)
    splits, notes = usual_splits(found, str(request.dataset_name))
    columns = choose_columns(splits["train"].features, request)
    notes.append(
        f"{columns.kind.capitalize()}s are read from {' and '.join(map(repr, columns.inputs))},"
        f" labels from {', '.join(map(repr, columns.labels.columns))}."
    )
    rows = {}
    for split, part in splits.items():
        refuse_other_columns(part, split, columns, str(request.dataset_name))
        if split != "train" and labels_withheld(part, columns.labels.columns[0]):
            notes.append(f"The {split} split has no labels and is left out.")
            continue
        rows[split] = read_rows(part, split, columns, request)
    return rows, columns, notes


def fetch(name: str, configuration: str | None) -> DatasetDict:
    """Return the dataset, from the disk where it was saved there, else through `datasets`.

    Raises:
        InputError: When it does not exist, needs a configuration, or cannot be reached.
    """
    folder = Path(name)
    saved = any((folder / file).is_file() for file in ("dataset_dict.json", "state.json"))
    try:
        found = load_from_disk(name) if saved else read_dataset(name, configuration)
    except Exception as error:  # whatever a download, a cache or a parser raises
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(
            f"--dataset_name: cannot load {name!r}"
            + (f" with --dataset_config_name {configuration!r}" if configuration else "")
            + f": {reason}. Check the name and the connection to the hub (HF_HUB_OFFLINE=1 forbids"
            " one); without a connection, give a folder or --train_file, or --dataset_name stdlib,"
            " which needs none."
        ) from error
    return DatasetDict({"train": found}) if isinstance(found, Dataset) else found


def usual_splits(found: DatasetDict, name: str) -> tuple[dict[str, Dataset], list[str]]:
    """Return the splits under their usual names, and a note on those that are left out."""
    splits: dict[str, Dataset] = {}
    used: set[str] = set()
    for split, names in SPLIT_NAMES.items():
        there = next((candidate for candidate in names if candidate in found), None)
        if there is not None:
            splits[split] = found[there]
            used.add(there)
    if len(found) == 1 and not splits:
        used = set(found)
        splits = {"train": found[next(iter(used))]}
    if "train" not in splits:
        raise InputError(
            f"--dataset_name: {name} has no split called train; it has {', '.join(found)}."
        )
    left = [split for split in found if split not in used]
    return splits, [f"Splits of {name} that are not used: {', '.join(left)}."] if left else []


def choose_columns(features: Features, request: DataRequest) -> HubColumns:
    """Return the columns named by the request, or found by type and name."""
    origin = str(request.dataset_name)

    def describe() -> str:
        return ", ".join(f"{name!r} ({kind_of(feature)})" for name, feature in features.items())

    images = [name for name, feature in features.items() if isinstance(feature, Image)]
    named_image = request.image_column_name
    names = hub_label_columns(features, request.label_column_names, origin, describe)
    labels = LabelCells(
        names, request.several_labels, request.label_separator, label_names(features[names[0]])
    )
    if named_image is None and (request.text_column_names or not images):
        texts = [n for n, f in features.items() if isinstance(f, Value) and "string" in f.dtype]
        inputs = text_columns(
            [*texts, *(name for name in names if name not in texts)],
            request.text_column_names,
            labels=names,
            origin=origin,
            describe=describe,
        )
        return HubColumns(inputs=inputs, labels=labels, kind="text")
    if named_image is not None:
        require((named_image,), images, "--image_column_name", origin=origin, describe=describe)
    elif len(images) > 1:
        raise InputError(
            f"--image_column_name: {origin} has several: {', '.join(images)}. Say which."
        )
    return HubColumns(inputs=(named_image or images[0],), labels=labels, kind="image")


def hub_label_columns(
    features: Features, named: tuple[str, ...] | None, origin: str, describe: Describe
) -> tuple[str, ...]:
    """Return the columns of the labels; beyond the usual names, the only classes are taken."""
    classes = [name for name, feature in features.items() if label_names(feature)]
    if named is None and "label" not in features and len(classes) == 1:
        return (classes[0],)
    return label_columns(list(features), named, origin=origin, describe=describe)


def kind_of(feature: object) -> str:
    """Return a feature's type as a message shall call it."""
    return feature.dtype if isinstance(feature, Value) else type(feature).__name__


def refuse_other_columns(part: Dataset, split: str, columns: HubColumns, name: str) -> None:
    """Raise InputError when a split lacks a column that training has."""
    for names, flag in (
        (columns.inputs, f"--{columns.kind}_column_name{'s' * (columns.kind == 'text')}"),
        (columns.labels.columns, "--label_column_name"),
    ):
        require(
            names,
            part.column_names,
            flag,
            origin=f"{name}, split {split}",
            describe=lambda: ", ".join(map(repr, part.column_names)),
        )


def label_names(feature: object) -> tuple[str, ...] | None:
    """Return the classes that a `ClassLabel`, or a list of them, declares, or None."""
    feature = getattr(feature, "feature", feature)
    return tuple(feature.names) if isinstance(feature, ClassLabel) else None


def labels_withheld(part: Dataset, column: str) -> bool:
    """Return whether no row has a label, as in the test splits of benchmarks."""
    withheld = (None, UNLABELLED) if label_names(part.features[column]) else (None,)
    labels = part.select_columns([column])
    return len(part) > 0 and all(
        label in withheld for batch in batches(labels) for label in batch[column]
    )


def read_rows(part: Dataset, split: str, columns: HubColumns, request: DataRequest) -> LabelledRows:
    """Check the rows of one split and keep those that can be used."""
    origin = f"{request.dataset_name}, split {split}"
    intake = Intake(
        origin=origin,
        unit="row",
        inputs=columns.inputs,
        labels=columns.labels.columns,
        drop_missing_text=request.drop_missing_text,
        ignore_labels=request.ignore_labels,
    )
    # A split can declare its classes in another order than training does.
    labels = replace(columns.labels, declared=label_names(part.features[columns.labels.columns[0]]))
    kept = array("q")
    for number, inputs, cells in numbered_rows(part, columns, origin):
        if intake.take(number, inputs, labels.read(cells, f"{origin}, row {number}")):
            kept.append(number - 1)
    used = part.select_columns(list(columns.inputs))
    used = used if len(kept) == len(part) else used.select(kept)
    return intake.finish(used, declared=labels.classes)


def numbered_rows(
    part: Dataset, columns: HubColumns, origin: str
) -> Iterator[tuple[int, list[object], list[object]]]:
    """Yield (row from 1, inputs with None for a missing one, label cells), no image decoded."""
    count = len(columns.inputs)
    names = [*columns.inputs, *columns.labels.columns]
    plain = part.select_columns(names)
    if columns.kind == "image":
        plain = plain.cast_column(columns.inputs[0], Image(decode=False))
    number = 0
    for batch in batches(plain):
        for values in zip(*(batch[name] for name in names), strict=True):
            number += 1
            inputs = list(values[:count])
            if columns.kind == "text":
                inputs = [as_text(value, f"{origin}, row {number}") for value in inputs]
            yield number, inputs, list(values[count:])
