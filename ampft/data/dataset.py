"""Labelled examples in splits, as every source provides them, and their fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, List, Value

from ampft.data.row_labels import WEIGHT_COLUMN, Masks, RowLabels, Targets, UnitLabels
from ampft.text.units import TextUnits

FloatArray = npt.NDArray[np.float64]

ROWS_AT_A_TIME = 4096
TOKEN = "token"  # kind of data whose rows are lists of words with a label each
RAW_TEXT_COLUMN = "ampft_text"  # of a split of words: the text in which they were found
CONTENT_COLUMN = "ampft_content"  # of a split of files: SHA-256 of the decoded image or sound


@dataclass(frozen=True)
class ClassificationData:
    """Labelled examples in splits."""

    # `train`, and `validation` and `test` where they exist. Each has the input columns (strings,
    # PIL images, or files of sounds) and `label`, a `datasets.ClassLabel` (int64) or a
    # `datasets.List` of one; with a group column also `splits.GROUP_COLUMN`, strings or None; with
    # a weight column `row_labels.WEIGHT_COLUMN`, float64, in `train` and where metrics need it; of
    # images and sounds that a user names also `CONTENT_COLUMN`.
    splits: DatasetDict
    # `("text",)`, a pair such as `("sentence1", "sentence2")`, `("image",)`, `("sound",)` or
    # `("tokens",)`.
    input_columns: tuple[str, ...]
    # `text`, `image`, `sound`, `token` for words with labels, or `pixels` for images with masks.
    kind: str
    name: str  # Name of the data in the output and in the run record.
    # SHA-256 of the contents in their order, by split; stable across runs.
    fingerprints: Mapping[str, str]
    # Sentences to print: splits made, rows dropped, rows shared, suspicious labels.
    notes: tuple[str, ...]
    # How texts are divided into words, in prediction too; None for other kinds.
    text_units: TextUnits | None = None
    group_column: str | None = None  # Column of the groups that the user named, or None.
    # SHA-256 of the files that were read, by path.
    files: Mapping[str, str] = field(default_factory=dict)
    # Number of rows of each other split whose inputs are those of a training row, before a split is
    # reduced; None if the data are built in.
    shared_with_train: Mapping[str, int] | None = None
    # Masks by split, if the labels are masks; `splits` then has no column `label`.
    masks: Mapping[str, Masks] | None = None
    number_name: str | None = None  # Name of what labels measure, if they are numbers.
    feature_columns: tuple[str, ...] = ()  # In each text, by `decision.with_features`.
    text_column_delimiter: str = " "  # Text between joined columns.

    @property
    def label_names(self) -> tuple[str, ...]:
        """Class names in the order of their indices, or what the only output measures."""
        if self.masks is not None:
            return self.masks["train"].classes.names
        if self.number_name is not None:
            return (self.number_name,)
        return class_names(self.splits["train"])

    def with_rows(self, split: str, ids: npt.NDArray[np.int64]) -> ClassificationData:
        """Return the data with some rows of a split, in this order."""
        splits = DatasetDict({**self.splits, split: self.splits[split].select(ids)})
        masks = self.masks and {**self.masks, split: self.masks[split].subset(ids)}
        return replace(self, splits=splits, masks=masks)

    def weights(self, split: str) -> FloatArray | None:
        """Return the (n,) weights of the rows of a split; None if they have none."""
        part = self.splits[split]
        if WEIGHT_COLUMN not in part.column_names:
            return None
        return _arrow_column(part, WEIGHT_COLUMN).to_numpy().astype(np.float64)

    def labels(self, split: str) -> Targets | Masks:
        """Return the labels of a split.

        They are (n,) int64 class indices, (n,) float64 numbers, (n, K) booleans if rows can have
        several labels, or the labels of the words of n rows. Labels that are masks are decoded on
        request.
        """
        if self.masks is not None:
            return self.masks[split]
        part = self.splits[split]
        if self.number_name is not None:
            return number_labels(part)
        labels = row_labels(part)
        if self.kind == TOKEN:
            return UnitLabels(labels.codes, labels.counts)
        if has_several_labels(part):
            return labels.matrix(len(self.label_names))
        return labels.codes


def batches(split: Dataset) -> Iterator[dict[str, list[Any]]]:
    """Yield a split's rows as dictionaries of columns, at most `ROWS_AT_A_TIME` rows each."""
    yield from split.iter(batch_size=ROWS_AT_A_TIME)


def cells(split: Dataset, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the cells of some columns of each row."""
    for batch in batches(split.select_columns(list(dict.fromkeys(columns)))):
        yield from zip(*(batch[column] for column in columns), strict=True)


def has_several_labels(split: Dataset) -> bool:
    """Return whether rows of a split can have any number of labels, not exactly one."""
    return isinstance(split.features["label"], List)


def has_numbers(split: Dataset) -> bool:
    """Return whether the labels of a split are numbers."""
    return isinstance(split.features["label"], Value)


def number_labels(split: Dataset) -> FloatArray:
    """Return the (n,) labels of a split that are numbers, float64."""
    return _arrow_column(split, "label").to_numpy().astype(np.float64)


def strata_of(split: Dataset) -> npt.NDArray[np.int64]:
    """Return the (n,) stratum of each row: its rarest label, or the fifth that a number is in."""
    return number_strata(number_labels(split)) if has_numbers(split) else row_labels(split).strata()


def number_strata(numbers: FloatArray) -> npt.NDArray[np.int64]:
    """Return the (n,) fifth of the numbers that each is in; equal numbers are in the same one."""
    limits = np.quantile(numbers, [0.2, 0.4, 0.6, 0.8])
    return np.searchsorted(np.unique(limits), numbers, side="left").astype(np.int64)


def class_names(split: Dataset) -> tuple[str, ...]:
    """Return the names of the classes of a split, in the order of their indices."""
    feature = split.features["label"]
    return tuple(feature.feature.names if has_several_labels(split) else feature.names)


def row_labels(split: Dataset) -> RowLabels:
    """Return the labels of a split."""
    column = _arrow_column(split, "label")
    if not has_several_labels(split):
        return RowLabels(column.to_numpy().astype(np.int64), np.arange(len(split)), len(split))
    counts = pc.list_value_length(column).to_numpy().astype(np.int64)
    return RowLabels.from_counts(pc.list_flatten(column).to_numpy().astype(np.int64), counts)


def _arrow_column(split: Dataset, name: str) -> pa.ChunkedArray:
    """Return a column in the order of the rows.

    Reading a column of selected rows through `datasets` takes 300 bytes and 6 microseconds a row
    more than its values, even in batches.
    """
    column = split.data.column(name)
    chosen = split._indices  # no public function tells which rows of the file were selected
    return column if chosen is None else column.take(chosen.column(0))


def value_bytes(value: Any) -> bytes:
    """Return the bytes to hash for a text, a number, a list of these, a hash or an image.

    An image is its mode, size and pixels. The number of bytes comes first, so that two different
    sequences of values never have the same bytes.
    """
    if isinstance(value, list):
        content = b"".join(map(value_bytes, value))
    elif isinstance(value, str):
        content = value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        content = value
    elif isinstance(value, int | float):
        content = repr(value).encode()
    else:
        content = f"{value.mode} {value.size[0]} {value.size[1]} ".encode() + value.tobytes()
    return len(content).to_bytes(8, "little") + content


def content_columns(split: Dataset, input_columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns that tell whether inputs are equal: hashes of files, or the inputs."""
    return (CONTENT_COLUMN,) if CONTENT_COLUMN in split.column_names else input_columns


def fingerprint(split: Dataset, input_columns: tuple[str, ...]) -> str:
    """Return the SHA-256 (hexadecimal) of a split's inputs and label names, in their order.

    Images and sounds are hashed by pixels and samples: in another lossless file format they have
    the same hash.
    """
    numeric, several = has_numbers(split), has_several_labels(split)
    names = () if numeric else class_names(split)
    digest = hashlib.sha256()
    columns = [*content_columns(split, input_columns), "label"]
    if WEIGHT_COLUMN in split.column_names:
        columns.insert(0, WEIGHT_COLUMN)
    for *inputs, label in cells(split, columns):
        if several:
            labels = [str(len(label)), *(names[i] for i in label)]
        else:
            labels = [repr(label) if numeric else names[label]]
        for value in (*inputs, *labels):
            digest.update(value_bytes(value))
    return digest.hexdigest()
