"""Data in memory: data frames, data sets of `datasets`, lists of pairs and of dictionaries."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from datasets import Dataset, DatasetDict

from ampft.data.sources.data_sets import INDEX_COLUMN
from ampft.errors import InputError

ALLOWED = (
    "Allowed are a path, a pandas.DataFrame, a datasets.Dataset or DatasetDict, and a list of"
    " (text, label) pairs or of dictionaries."
)


def is_path(data: object) -> bool:
    """Return whether data are a path, not in memory."""
    return isinstance(data, str | os.PathLike)


def splits_in_memory(splits: Mapping[str, Any]) -> DatasetDict:
    """Return data in memory as a data set.

    The index of data frames becomes the column `INDEX_COLUMN`, unless it is 0, 1, 2, ...

    Args:
        splits: Data by split. A `DatasetDict` as `train` holds all splits.

    Raises:
        InputError: Data have a type that is not supported, or cannot be converted.
    """
    import pandas as pd

    train = splits.get("train")
    if isinstance(train, DatasetDict):
        if len(splits) > 1:
            others = ", ".join(split for split in splits if split != "train")
            raise InputError(f"train is a DatasetDict with all its splits, so remove {others}.")
        return train
    if all(isinstance(data, pd.DataFrame) for data in splits.values()):
        splits = _with_index(_with_whole_numbers(splits))
    return DatasetDict({split: _as_dataset(split, data) for split, data in splits.items()})


def _with_whole_numbers(frames: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return data frames in which columns that lack values have whole numbers again.

    pandas turns a column of whole numbers into floats where a value is missing, and the label 9
    would be called 9.0. A file has 9.
    """
    import pandas as pd

    columns: dict[Any, list[pd.Series]] = {}
    if not all(frame.columns.is_unique for frame in frames.values()):
        return frames  # refused later
    for frame in frames.values():
        for name, column in frame.items():
            columns.setdefault(name, []).append(column)
    whole = [
        name
        for name, parts in columns.items()
        if any(part.isna().any() for part in parts)
        and all(part.dtype.kind in "iuf" and (part.dropna() % 1 == 0).all() for part in parts)
        and all(part.dropna().abs().le(2**53).all() for part in parts)
    ]
    return {
        split: frame.astype({n: "Int64" for n in whole if n in frame.columns})
        for split, frame in frames.items()
    }


def _with_index(frames: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return data frames with their index as `INDEX_COLUMN`, unless it is 0, 1, 2, ..."""
    import pandas as pd

    if all(list(frame.index) == list(range(len(frame))) for frame in frames.values()):
        return frames
    result = {}
    for split, frame in frames.items():
        if INDEX_COLUMN in frame.columns:
            raise InputError(
                f"{split}: the column {INDEX_COLUMN!r} has the name under which the index is kept. "
                "Rename the column."
            )
        # As objects: what Arrow cannot hold is refused with the other columns.
        labels = pd.Series(list(map(str, frame.index)), index=frame.index, dtype=object)
        result[split] = frame.assign(**{INDEX_COLUMN: labels})
    return result


def _as_dataset(name: str, data: Any) -> Dataset:
    """Return data in memory, an argument called `name`, as a data set."""
    import pandas as pd

    if isinstance(data, Dataset | pd.DataFrame) and not len(data):
        raise InputError(f"{name}: the table has no rows. Pass at least one.")
    if isinstance(data, Dataset):
        return data
    if isinstance(data, pd.DataFrame) and not data.columns.is_unique:
        twice = data.columns[data.columns.duplicated()][0]
        raise InputError(f"{name}: two columns are called {twice!r}. Rename one of them.")
    try:
        if isinstance(data, pd.DataFrame):
            categorical = data.select_dtypes("category").columns
            plain = data.astype(dict.fromkeys(categorical, object))
            return Dataset.from_pandas(plain, preserve_index=False)
        if isinstance(data, list | tuple):
            return _from_rows(name, data)
    except UnicodeEncodeError as error:  # half a surrogate pair
        raise InputError(
            f"{name}: a text contains {error.object[error.start]!r}, which is half a character and "
            "cannot be written as UTF-8. Remove it."
        ) from error
    # An integer beyond 64 bits is an OverflowError.
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{name}: the data cannot be read as columns ({reason}). Every column needs values of"
            " one type: convert mixed ones, for example to strings."
        ) from error
    raise InputError(f"{name}: received {type(data).__name__}. {ALLOWED}")


def _from_rows(name: str, rows: Any) -> Dataset:
    """Return the data set of a list of (text, label) pairs or of dictionaries."""
    if rows and all(isinstance(row, Mapping) for row in rows):
        columns = dict.fromkeys(key for row in rows for key in row)
        return Dataset.from_dict({key: [row.get(key) for row in rows] for key in columns})
    for number, row in enumerate(rows):
        if not isinstance(row, list | tuple) or len(row) != 2:
            raise InputError(
                f"{name}: position {number} (from 0) is not a (text, label) pair:"
                f" {type(row).__name__}. {ALLOWED}"
            )
    if not rows:
        raise InputError(f"{name}: the list is empty. {ALLOWED}")
    texts, labels = zip(*rows, strict=True)
    return Dataset.from_dict({"text": list(texts), "label": list(labels)})
