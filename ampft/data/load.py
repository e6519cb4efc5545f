"""Load data: a request goes in; labelled, checked and split examples come out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import NoneType

from datasets import Audio, DatasetDict

from ampft.data.assembly import assemble, finalize
from ampft.data.dataset import ClassificationData
from ampft.data.extension_points import DECLARED_TASK, MASKS, TAGGED_WORDS
from ampft.data.request import (
    COLUMN_OPTIONS,
    CONFIGURATIONS,
    DATA_SET_OPTIONS,
    DROPS,
    IN_MEMORY,
    OF_OWN_DATA,
    DataRequest,
    refuse_unused_options,
)
from ampft.data.sources.built_in import load_digits, load_stdlib
from ampft.data.sources.data_sets import INDEX_COLUMN, load_data_set, split_table, standard_splits
from ampft.data.sources.folders import TEXT, folder_kind, load_folder
from ampft.data.sources.metadata import metadata_tables
from ampft.data.sources.readers import FLAGS, open_tables
from ampft.data.table_rows import Loaded, read_tables
from ampft.errors import InputError, check_type
from ampft.files import describe_file

WITHOUT_MASKS = "data without masks (--task pixels)"
UNUSED_OPTIONS = {"stdlib": OF_OWN_DATA, "digits": (*OF_OWN_DATA, "dataset_config_name")}


class OtherTaskDeclared(Exception):
    """The types of the columns of a data set show its task, and the user named none."""

    def __init__(self, task: str) -> None:
        super().__init__(task)
        self.task = task


def load_data(request: DataRequest, data: DatasetDict | None = None) -> ClassificationData:
    """Read, check and split the data that a request names.

    Args:
        request: The user's choices.
        data: Data in memory, by split; None reads those that the request names.

    Returns:
        The data; its notes report every decision made on the way.

    Raises:
        InputError: The data or the options must be corrected; each problem has one message.
        OtherTaskDeclared: The data are for another task than the default.
    """
    check_type("load_data", "request", request, DataRequest)
    check_type("load_data", "data", data, (DatasetDict, NoneType))
    if data is not None:
        request = replace(request, dataset_name=IN_MEMORY)
    masks = MASKS.get()
    of_masks = None if masks is None else masks.load(request, data)
    if of_masks is not None:
        return of_masks
    may_declare_masks = data is not None or not (
        request.files or request.data_kind or request.dataset_name in (None, *UNUSED_OPTIONS)
    )
    if not may_declare_masks:
        refuse_unused_options(request, ("ignore_index",), WITHOUT_MASKS)
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
    has_one_class = not (request.several_labels or request.number_labels)
    if has_one_class and (kind := folder_kind(name, request.data_kind)):
        files = ("ignore_index", "text_units", *(() if kind == TEXT else ("encoding",)))
        # As `datasets` calls the columns of such a folder, so that scripts name them.
        columns_of_folders = {"label_column_name": "label", "image_column_name": "image"}
        named = {n for n, name in columns_of_folders.items() if getattr(request, n) == name}
        unused = (
            *(name for name in COLUMN_OPTIONS if name not in named),
            *DROPS,
            *DATA_SET_OPTIONS,
            *files,
        )
        refuse_unused_options(request, unused, "a folder of class folders")
        rows, columns, notes = load_folder(request, kind)
        return assemble(rows, columns, request, name=name, notes=notes)
    if masks is not None and request.data_kind is not None and masks.find_folders(Path(name)):
        raise InputError(
            f"--dataset_name {name}: the folder contains images with masks, which need --task "
            "pixels. Pass this task, or remove the flag."
        )
    if of_metadata := metadata_tables(request):
        rows, columns, notes = read_tables(*of_metadata)
        return assemble(rows, columns, of_metadata[1], name=name, notes=notes)
    data = load_data_set(request)
    if request.dataset_config_name:
        configurations = [request.dataset_config_name, request.eval_dataset_config_name]
        name += f" ({', '.join(dict.fromkeys(filter(None, configurations)))})"
    return load_splits(data, request, name)


def load_splits(data: DatasetDict, request: DataRequest, name: str) -> ClassificationData:
    """Read the splits of a data set of words with tags, or of any other."""
    first = next(iter(data.values()))
    for column, feature in first.features.items():
        if isinstance(feature, Audio):  # `datasets` would decode it with torchcodec
            data = data.cast_column(column, Audio(decode=False))
    origin = str(request.dataset_name)
    has_tokens, words = request.labels_tokens, TAGGED_WORDS.get()
    splits, notes = standard_splits(data, request)
    tables = {s: [split_table(part, f"{origin}, split {s}")] for s, part in splits.items()}
    if has_tokens is None:
        has_tokens = words is not None and words.are_columns(tables["train"][0])
        declared_task = None if has_tokens else DECLARED_TASK.get()
        task = None if declared_task is None else declared_task(first.features, request)
        if task is not None:
            raise OtherTaskDeclared(task)
    refuse_unused_options(request, ("ignore_index",), WITHOUT_MASKS)
    read = words.read_tables if words is not None and has_tokens else read_tables
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
    words = TAGGED_WORDS.get()
    if words is not None and words.are_files(request):
        return words.read_files(request)
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
    if request.several_labels or request.number_labels:
        raise InputError(
            f"--task: the built-in {name} has one class per example. Remove the flag, or pass a"
            " data set whose examples have such labels."
        )
    if name == "stdlib":
        configuration = request.dataset_config_name or CONFIGURATIONS[0]
        splits = load_stdlib(configuration)
        return finalize(splits, request, ("text",), "text", f"stdlib ({configuration})")
    splits = load_digits(split_seed=request.data_seed)
    return finalize(splits, request, ("image",), "image", name)
