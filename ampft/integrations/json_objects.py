"""Files of JSON that are not lists of rows: tables as columns, and what other programs write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ampft.errors import InputError, quoted, quoted_list
from ampft.text.numbers import counted

Rows = list[Any]
EXPECTED = "The file must hold one object per line, or one array of objects."
# Keys of an object that holds its rows deeper, as Rasa writes it.
_WRAPPERS = ("rasa_nlu_data",)


def is_row(item: Any) -> bool:
    """Return whether an item of a list is a row: an object, or spaCy's pair of text and object."""
    is_pair = isinstance(item, list) and len(item) == 2 and isinstance(item[1], dict)
    return is_pair or isinstance(item, dict)


def rows_of_object(item: Mapping[str, Any], path: Path) -> tuple[Rows, str] | None:
    """Return the rows of a file that is one object, and a note; None if the object is a row.

    Raises:
        InputError: The file has annotations that are not read, or several lists of rows, or rows
            that lack cells or parts of them.
    """
    _refuse_annotations(item, path)
    if len(item) == 1 and (key := next(iter(item))) in _WRAPPERS and isinstance(item[key], dict):
        item = item[key]
    lists = [key for key, value in item.items() if _are_rows(value)]
    if {"rows", "features"} <= item.keys() and lists == ["rows"]:
        cut = sum(bool(row.get("truncated_cells")) for row in item["rows"])
        if cut:
            raise InputError(
                f"{path}: the hub's viewer has cut off cells of {counted(cut, 'row')} "
                "(truncated_cells). Download the files of the data set instead."
            )
        rows = [row.get("row", row) for row in item["rows"]]
    elif {"schema", "data"} == item.keys() or {"classes", "annotations"} == item.keys():
        (key,) = lists or ("data",)
        rows = [row for row in item[key] if row is not None]
        return rows, f"{path}: the rows are read from the key {quoted(key)}."
    elif {"columns", "data"} <= item.keys() and not lists:
        names = item["columns"]
        for place, row in enumerate(item["data"]):
            if not isinstance(row, list) or len(row) != len(names):
                raise InputError(
                    f"{path}: row {place} (from 0) of the key data does not have one cell for each "
                    f"of {counted(len(names), 'name')} in the key columns. Correct the file."
                )
        if len({*names}) < len(names):
            raise InputError(f"{path}: a name occurs twice in {quoted_list(names)}. Rename one.")
        rows = [dict(zip(names, row, strict=True)) for row in item["data"]]
    elif lists and len(item) > 1:
        raise InputError(
            f"{path}: the file is one object with the keys {quoted_list(item)}."
            f" {EXPECTED} Save the list in {quoted_list(lists, separator=' or ')} as a file."
        )
    elif lists:
        return item[lists[0]], f"{path}: the rows are read from the key {quoted(lists[0])}."
    else:
        found = _rows_of_columns(item)
        if found is None:
            return None
        rows = found
    return rows, f"{path}: one object, which holds {counted(len(rows), 'row')}."


def _are_rows(value: Any) -> bool:
    """Return whether a value is a list of rows; Tecoholic's annotator also writes nulls."""
    if not isinstance(value, list):
        return False
    rows = [item for item in value if item is not None]
    return bool(rows) and all(map(is_row, rows))


def _rows_of_columns(item: Mapping[str, Any]) -> Rows | None:
    """Return the rows of columns or of an index, as pandas writes them; None for another object.

    `to_json` writes `{"text": {"0": ...}}` by default, and `{"0": {"text": ...}}` with an index.
    """
    values = [*item.values()]
    if len(values) < 2:
        return None
    if all(isinstance(value, dict) for value in values):
        keys = [*values[0]]
        if not keys or any([*value] != keys for value in values):
            return None
        if all(key.isdecimal() for key in item) and not all(key.isdecimal() for key in keys):
            return values
        return [{name: column[key] for name, column in item.items()} for key in keys]
    if all(isinstance(value, list) for value in values):
        counts = {len(value) for value in values}
        if len(counts) == 1 and counts.pop() > 1 and not _are_words(item):
            names = [*item]
            return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
    return None


def _are_words(item: Mapping[str, Any]) -> bool:
    """Return whether an object of lists is one sentence: words and their tags."""
    names = {name.casefold() for name in item}
    cells = [cell for value in item.values() for cell in value]
    return bool(names & {"tokens", "words"}) and not any(isinstance(c, list) for c in cells)


def _refuse_annotations(item: Mapping[str, Any], path: Path) -> None:
    """Raise InputError for annotations of pictures, of COCO or labelme."""
    if {"images", "annotations"} <= item.keys():
        raise InputError(
            f"{path}: annotations of COCO are not read. Draw them as masks, one image of class "
            "numbers for each picture (annToMask of pycocotools), and pass the folder with "
            "--dataset_name and --task pixels. For classes of whole pictures, write a table with "
            "the columns image and label."
        )
    if {"shapes", "imagePath"} <= item.keys():
        raise InputError(
            f"{path}: annotations of labelme are read as masks. Convert them: --dataset_name "
            f"{path.parent or '.'} says how."
        )


def consecutive_objects(text: str, decoder: json.JSONDecoder) -> list[Any] | None:
    """Return the objects of a text that has them one after another; None for another text."""
    found, place = [], 0
    while rest := text[place:].lstrip(" \t\r\n,"):
        place = len(text) - len(rest)
        try:
            item, place = decoder.raw_decode(text, place)
        except (ValueError, KeyError, RecursionError):
            return None
        if not isinstance(item, dict):
            return None
        found.append(item)
    return found
