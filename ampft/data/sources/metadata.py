"""Folders of images or sounds whose labels are in a file `metadata.csv` beside them.

`datasets` calls them ImageFolder and AudioFolder. Their tables are read here, because `datasets`
needs torchcodec for sounds, and reads 007 as 7.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePath

from ampft.data.media import MEDIA, kind_of_file
from ampft.data.request import DataRequest
from ampft.data.sources.data_sets import SPLIT_NAMES, used_splits
from ampft.data.sources.file_names import files_in
from ampft.data.sources.folders import METADATA, subfolders
from ampft.data.sources.readers import open_table
from ampft.data.sources.source_table import SourceTable
from ampft.errors import InputError, listed, quoted_list

COLUMNS = {"image": "image", "sound": "audio"}  # as `datasets` calls the files of each kind
FILE_NAME = "file_name"


def metadata_tables(
    request: DataRequest,
) -> tuple[dict[str, list[SourceTable]], DataRequest, list[str]] | None:
    """Open the tables of a folder whose files are listed in a table of each split.

    Returns:
        A table of each split, the request with the column of files, and notes; None if the folder
        is of another kind.

    Raises:
        InputError: A folder has two such tables, or the folder lacks a split.
    """
    folder = Path(str(request.dataset_name))
    if not folder.is_dir() or request.dataset_config_name or request.dataset_revision:
        return None
    files = {each.name: file for each in subfolders(folder) if (file := _metadata_of(each))}
    if not files and (file := _metadata_of(folder)):
        files = {"train": file}
    tables = {
        split: open_table(file, flag="--dataset_name", encoding=request.encoding)
        for split, file in files.items()
    }
    kinds = {_kind_of_files(table) for table in tables.values()}
    if len(kinds) != 1 or (kind := kinds.pop()) is None:
        return None
    if len(tables) == 1:
        _refuse_several_splits(*tables.values())
    used, column = used_splits(tables, request), COLUMNS[kind]
    unused = [name for name in tables if name not in used.values()]
    notes = [f"Splits of {folder} that are not used: {listed(unused)}."] if unused else []
    for name in used.values():
        notes += _unlisted_notes(files[name], tables[name], kind)
        notes += _contradiction_notes(files[name], tables[name])
        if column not in tables[name].columns:
            note = f"{files[name]}: the column {FILE_NAME!r} is read as {column!r}."
            tables[name] = tables[name].renamed({FILE_NAME: column}, note)
    if not request.named_media and not request.text_columns and request.data_kind in (None, kind):
        is_image = kind == "image"
        images, sounds = (column, None) if is_image else (None, column)
        request = replace(request, image_column_name=images, audio_column_name=sounds)
    return {split: [tables[name]] for split, name in used.items()}, request, notes


def _metadata_of(folder: Path) -> Path | None:
    """Return the table of the files in a folder; None if it has none."""
    found = [folder / name for name in METADATA if (folder / name).is_file()]
    if len(found) > 1:
        raise InputError(
            f"--dataset_name: {folder} has {listed([file.name for file in found])}, and each says"
            " which labels its files have. Remove all but one, or pass the right one with"
            " --train_file."
        )
    return found[0] if found else None


def _kind_of_files(table: SourceTable) -> str | None:
    """Return the kind of the files that a table lists in its column of file names."""
    if FILE_NAME not in table.columns or any(c.endswith(f"_{FILE_NAME}") for c in table.columns):
        return None
    first = next(islice(table.read((FILE_NAME,)), 1), None)
    return None if first is None else kind_of_file(str(first[1][0]))


def _refuse_several_splits(table: SourceTable) -> None:
    """Raise InputError for one table of the files of several splits, as in train/1.png."""
    rows = table.read((FILE_NAME,))
    folders = {parts[0] for _, (name,) in rows if len(parts := PurePath(str(name)).parts) > 1}
    usual = {name for names in SPLIT_NAMES.values() for name in names}
    if len(folders) > 1 and folders <= usual:
        raise InputError(
            f"{table.origin}: lists the files of {quoted_list(sorted(folders))}, which seem to be"
            " splits. Put a table into the folder of each split, or pass a table of each with"
            " --train_file, --validation_file and --test_file."
        )


def _contradiction_notes(file: Path, table: SourceTable) -> list[str]:
    """Return a note on a column of labels that contradicts the folders of the files."""
    names = [str(name) for _, (name,) in table.read((FILE_NAME,))]
    folders = [PurePath(name).parent.name for name in names]
    for column in table.columns:
        labels = [str(cell) for _, (cell,) in table.read((column,))]
        if len({*folders}) < 2 or {*labels} != {*folders} or labels == folders:
            continue
        others = [n for n, one, other in zip(names, folders, labels, strict=True) if one != other]
        return [
            f"{file}: the column {column!r} contradicts the folders of {len(others)} of "
            f"{len(names)} files, such as {others[0]}. The column counts, not the folder."
        ]
    return []


def _unlisted_notes(file: Path, table: SourceTable, kind: str) -> list[str]:
    """Return a note on files of a folder that its table does not list."""
    known = {file.parent / str(name) for _, (name,) in table.read((FILE_NAME,))}
    others = [
        str(path)
        for path in files_in(file.parent)
        if path.suffix.lower() in MEDIA[kind].suffixes and path not in known
    ]
    if not others:
        return []
    return [f"{file}: {kind}s without a row are not used: {listed(others, limit=3)}."]
