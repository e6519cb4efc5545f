"""Load data: a request goes in; labelled, checked and split examples come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from datasets import Audio, ClassLabel, Dataset, DatasetDict, List

from ampft.data.checks import (
    class_names,
    few_rows_notes,
    ignored_notes,
    input_digests,
    label_notes,
    merged_digests,
    shared_rows,
)
from ampft.data.columns import DataColumns, hold_tokens
from ampft.data.dataset import ClassificationData, cells, fingerprint, row_labels
from ampft.data.masks import MaskClasses
from ampft.data.media import MEDIA, check_media
from ampft.data.pixels import (
    IMAGE,
    IMAGE_HASH,
    KIND,
    PAIR_HASH,
    PIXELS,
    check_masks,
    find_mask_folders,
    mask_fingerprint,
    masks_of,
    read_masks,
    with_labels,
)
from ampft.data.request import DataRequest, refuse_unused_options
from ampft.data.row_collector import LabelledRows
from ampft.data.sources.built_in import CONFIGURATIONS, load_digits, load_stdlib
from ampft.data.sources.data_sets import INDEX_COLUMN, fetch, split_table, standard_splits
from ampft.data.sources.files import FLAGS, open_tables
from ampft.data.sources.folders import folder_kind, load_folder
from ampft.data.sources.text_files import read_as_conll
from ampft.data.splits import (
    FILE_COLUMN,
    GROUP_COLUMN,
    numbered,
    subsample,
    with_missing_splits,
)
from ampft.data.table_rows import Loaded, read_tables
from ampft.data.token_rows import are_token_files, read_token_tables
from ampft.errors import InputError
from ampft.files import describe_file

IN_MEMORY = "data in memory"
COLUMN_OPTIONS = (
    *("text_column_names", "label_column_name", "image_column_name", "audio_column_name"),
    *("group_column", "id_column"),
)
DROPS = ("drop_missing_text", "drop_missing_labels")
MASK_OPTIONS = ("ignore_index", "class_names_file")
# Options without an effect on the built-in data sets, which have their own splits.
_OF_OWN_DATA = (
    *(*COLUMN_OPTIONS, *DROPS, "validation_fraction", "test_fraction"),
    *("folds", "fold", "ignore_label", "fail_on_leak", "sheet_name", "encoding"),
)
UNUSED_OPTIONS = {"stdlib": _OF_OWN_DATA, "digits": (*_OF_OWN_DATA, "dataset_config_name")}


def load_data(request: DataRequest, data: DatasetDict | None = None) -> ClassificationData:
    """Read, check and split the data that a request names.

    Args:
        request: The user's choices.
        data: Data in memory, by split; None reads those that the request names.

    Returns:
        The data; its notes report every decision made on the way.

    Raises:
        InputError: The data or the options must be corrected; each problem has one message.
    """
    if data is not None:
        request = replace(request, dataset_name=IN_MEMORY)
    masks = read_masks(request, data)
    if masks is not None:
        return assemble_masks(*masks, request)
    refuse_unused_options(request, MASK_OPTIONS, "data without masks (--task pixels)")
    if data is not None:
        if request.id_column is None and INDEX_COLUMN in next(iter(data.values())).column_names:
            request = replace(request, id_column=INDEX_COLUMN)
        return load_splits(data, request, IN_MEMORY)
    if request.files:
        return load_user_files(request)
    name = request.dataset_name or "stdlib"
    if name in UNUSED_OPTIONS:
        return load_built_in(name, request)
    refuse_unused_options(request, ("sheet_name",), name)
    if kind := folder_kind(name, request.data_kind):
        unused = (*COLUMN_OPTIONS, *DROPS, "dataset_config_name", "encoding")
        refuse_unused_options(request, unused, "a folder of class folders")
        rows, columns, notes = load_folder(request, kind)
        return assemble(rows, columns, request, name=name, notes=notes)
    if request.data_kind is not None and find_mask_folders(Path(name)):
        raise InputError(
            f"--dataset_name {name}: the folder contains images with masks, which need --task "
            "pixels. Pass this task, or remove the flag."
        )
    data = fetch(name, request.dataset_config_name)
    if request.dataset_config_name:
        name += f" ({request.dataset_config_name})"
    return load_splits(data, request, name)


def load_splits(data: DatasetDict, request: DataRequest, name: str) -> ClassificationData:
    """Read the splits of a data set of words with tags, or of any other."""
    first = next(iter(data.values()))
    for column, feature in first.features.items():
        if isinstance(feature, Audio):  # `datasets` would decode it with torchcodec
            data = data.cast_column(column, Audio(decode=False))
    origin = str(request.dataset_name)
    has_tokens = request.labels_tokens
    if has_tokens is None:
        has_tokens = hold_tokens(first.column_names)
    splits, notes = standard_splits(data, origin)
    tables = {s: [split_table(part, f"{origin}, split {s}")] for s, part in splits.items()}
    read = read_token_tables if has_tokens else read_tables
    rows, columns, notes = read(tables, request, notes)
    return assemble(rows, columns, request, name=name, notes=notes)


def load_files(request: DataRequest) -> Loaded:
    """Read the rows of the files of a request, of words with tags or of any other.

    Raises:
        InputError: The training file is missing, or a file or a row cannot be read; the message
            names it.
    """
    if request.train_file is None:
        flags = ", ".join(FLAGS[split] for split in request.files)
        raise InputError(
            f"--train_file is missing: received only {flags}. Pass a file to train on."
        )
    if are_token_files(request):
        return read_token_tables(open_tables(request, read_as_conll), request, ())
    return read_tables(open_tables(request), request, ())


def load_user_files(request: DataRequest) -> ClassificationData:
    """Read the user's own files."""
    name = ", ".join(map(str, request.files.values()))
    hashes = {
        str(path): describe_file(path).sha256
        for paths in request.paths().values()
        for path in paths
        if path.is_file()
    }
    refuse_unused_options(request, ("dataset_config_name",), "files")
    if request.dataset_name is not None:
        raise InputError(
            f"--dataset_name: received {request.dataset_name!r} together with {name}. Pass only one"
            " of them."
        )
    rows, columns, notes = load_files(request)
    data = assemble(rows, columns, request, name=name, notes=notes)
    return replace(data, files=hashes)


def load_built_in(name: str, request: DataRequest) -> ClassificationData:
    """Read a built-in data set, `stdlib` or `digits`."""
    refuse_unused_options(request, UNUSED_OPTIONS[name], f"the built-in {name}")
    if request.several_labels:
        raise InputError(
            f"--task: the built-in {name} has one label per example. Remove the flag, or pass a"
            " data set whose examples have several labels."
        )
    if name == "stdlib":
        configuration = request.dataset_config_name or CONFIGURATIONS[0]
        splits = load_stdlib(configuration)
        return finalize(splits, request, ("text",), "text", f"stdlib ({configuration})")
    splits = load_digits(split_seed=request.data_seed)
    return finalize(splits, request, ("image",), "image", name)


def assemble(
    rows: Mapping[str, LabelledRows],
    columns: DataColumns,
    request: DataRequest,
    *,
    name: str,
    notes: Sequence[str],
) -> ClassificationData:
    """Check the splits against each other, make the missing ones, and add the labels.

    Args:
        rows: Splits as the source has them, including `train`.
        columns: Columns that were read.
        request: The user's choices.
        name: Name of the data.
        notes: Notes of the source.

    Raises:
        InputError: `class_names`, `shared_rows` or `missing_splits` rejects the data.
    """
    ordered = columns.labels.per_unit
    several = request.several_labels or ordered
    names = class_names(rows, several=several)
    conversion_notes: list[str] = []
    if columns.kind in MEDIA:
        rows, conversion_notes = check_media(rows, columns.inputs[0], columns.kind)
    digests = exact = {split: input_digests(part, columns.inputs) for split, part in rows.items()}
    if columns.kind not in MEDIA:
        normal = {
            split: input_digests(part, columns.inputs, normalize=True)
            for split, part in rows.items()
        }
        digests = merged_digests(exact, normal)
    train, groups = rows["train"], digests["train"]
    if GROUP_COLUMN in columns.extra:
        values = (group for (group,) in cells(train.inputs, (GROUP_COLUMN,)))
        groups = numbered(values).ids.astype(np.uint64)
    parts = {
        split: add_labels(part, names, several=several, ordered=ordered)
        for split, part in rows.items()
    }
    splits, split_notes = with_missing_splits(parts, train.labels.strata(), groups, request)
    of_train = ["train", *(split for split in splits if split not in rows)]
    all_notes = [
        *notes,
        *conversion_notes,
        *(note for part in rows.values() for note in part.notes),
        *ignored_notes(rows, request.ignored_labels),
        *([] if ordered else label_notes(names, train.labels, several=several)),
        *shared_rows(rows, digests, exact, refuse=request.fail_on_leak),
        *split_notes,
        *([] if ordered else few_rows_notes(train, of_train)),
    ]
    return finalize(splits, request, columns.inputs, columns.kind, name, all_notes)


def assemble_masks(
    splits: DatasetDict, name: str, notes: Sequence[str], request: DataRequest
) -> ClassificationData:
    """Check images with masks, make the missing splits, and count the pixels of each class.

    Args:
        splits: Images and masks from `read_masks`.
        name: Name of the data.
        notes: Notes of the source.
        request: The user's choices.

    Raises:
        InputError: `check_masks` or `missing_splits` rejects the data.
    """
    parts, classes, check_notes = check_masks(splits, request, name)
    hashes = [int.from_bytes(value[:8], "little") for value in parts["train"][IMAGE_HASH][:]]
    images = np.array(hashes, dtype=np.uint64)
    all_splits, split_notes = with_missing_splits(parts, None, images, request)
    all_splits["train"], empty_notes = with_labels(all_splits["train"])
    all_notes = [*notes, *check_notes, *split_notes, *empty_notes]
    return finalize(all_splits, request, (IMAGE,), KIND, name, all_notes, classes)


def add_labels(
    part: LabelledRows, names: tuple[str, ...], *, several: bool, ordered: bool
) -> Dataset:
    """Return the inputs with a column `label` of indices into `names`, or of lists of indices.

    Args:
        part: Rows.
        names: Names of the classes.
        several: Whether rows have lists of labels.
        ordered: Whether the order of a list has a meaning.
    """
    index = {name: code for code, name in enumerate(names)}
    order = np.array([index[name] for name in part.names], dtype=np.int64)
    codes, feature = order[part.labels.codes], ClassLabel(names=list(names))
    inputs = part.inputs.add_column(f"ampft_{part.table.unit}", part.numbers)
    if part.files:
        names_of_files = [file.origin for file, count in part.files for _ in range(count)]
        inputs = inputs.add_column(FILE_COLUMN, names_of_files)
    if not several:
        return inputs.add_column("label", codes, feature=feature)
    sets = np.split(codes, np.cumsum(part.labels.counts)[:-1])
    lists = [s.tolist() if ordered else sorted(s.tolist()) for s in sets]
    return inputs.add_column("label", lists, feature=List(feature))


def finalize(
    splits: Mapping[str, Dataset],
    request: DataRequest,
    input_columns: tuple[str, ...],
    kind: str,
    name: str,
    notes: Sequence[str] = (),
    classes: MaskClasses | None = None,
) -> ClassificationData:
    """Reduce the splits to the requested sizes and compute their fingerprints.

    Args:
        splits: All splits, with labels or with checked masks.
        request: The user's choices.
        input_columns: Columns of the inputs.
        kind: Kind of the data.
        name: Name of the data.
        notes: Notes so far.
        classes: Classes of the masks, if the labels are masks.
    """
    reduced, masks, prints, all_notes = {}, {}, {}, list(notes)
    for split, whole in splits.items():
        strata = row_labels(whole).strata() if classes is None else None
        part, limit_notes = subsample(whole, strata, split, request)
        all_notes += limit_notes
        if classes is None:
            prints[split] = fingerprint(part, input_columns)
        else:
            prints[split] = mask_fingerprint(part, classes)
            masks[split] = masks_of(part, classes, name, split)
            part = part.remove_columns([IMAGE_HASH, PAIR_HASH, PIXELS])
        reduced[split] = part
    return ClassificationData(
        splits=DatasetDict(reduced),
        input_columns=input_columns,
        kind=kind,
        name=name,
        fingerprints=prints,
        notes=tuple(all_notes),
        group_column=request.group_column,
        masks=masks or None,
    )
