"""The one form that every source of data takes, and the fingerprint of its contents."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, List

from ampft.data.row_labels import IntArray, RowLabels

ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class ClassificationData:
    """Labelled examples in splits.

    Attributes:
        splits: `train` and, where there are any, `validation` and `test`. Each has the input
            columns (strings, or PIL images) and `label`, a `datasets.ClassLabel` (int64) or a
            `datasets.List` of one.
        input_columns: `("text",)`, a pair such as `("sentence1", "sentence2")`, or `("image",)`.
        kind: `text` or `image`.
        name: What the data is called in print and in the run record.
        fingerprints: Split to SHA-256 of its contents in their order; stable across runs.
        notes: Sentences to print: splits made, rows dropped, rows shared, suspicious labels.
    """

    splits: DatasetDict
    input_columns: tuple[str, ...]
    kind: str
    name: str
    fingerprints: Mapping[str, str]
    notes: tuple[str, ...]

    @property
    def label_names(self) -> tuple[str, ...]:
        """The classes' names in the order of their indices."""
        return class_names(self.splits["train"])

    def labels(self, split: str) -> IntArray | npt.NDArray[np.bool_]:
        """Return (n,) class indices, int64; or (n, K) booleans where rows have several labels."""
        part = self.splits[split]
        labels = row_labels(part)
        if has_several_labels(part):
            return labels.matrix(len(self.label_names))
        return labels.codes


def batches(split: Dataset) -> Iterator[dict[str, list[Any]]]:
    """Yield a split's rows in dictionaries of columns, at most `ROWS_AT_A_TIME` rows each."""
    yield from split.iter(batch_size=ROWS_AT_A_TIME)


def has_several_labels(split: Dataset) -> bool:
    """Return whether a row of a split has any number of labels, not exactly one."""
    return isinstance(split.features["label"], List)


def class_names(split: Dataset) -> tuple[str, ...]:
    """Return the names of the classes of a split, in the order of their indices."""
    feature = split.features["label"]
    return tuple(feature.feature.names if has_several_labels(split) else feature.names)


def row_labels(split: Dataset) -> RowLabels:
    """Return the labels of a split.

    `split["label"]` as a whole costs 400 MB of resident memory for 700,000 chosen rows.
    """
    arrow = split.select_columns(["label"]).with_format("arrow")
    columns = [batch["label"] for batch in arrow.iter(batch_size=ROWS_AT_A_TIME)]
    if not has_several_labels(split):
        codes = np.concatenate([np.zeros(0, np.int64), *(c.to_numpy() for c in columns)])
        return RowLabels(codes, np.arange(len(split)), len(split))
    codes = np.concatenate([np.zeros(0, np.int64), *(pc.list_flatten(c) for c in columns)])
    counts = np.concatenate([np.zeros(0, np.int64), *(pc.list_value_length(c) for c in columns)])
    return RowLabels.from_counts(codes, counts)


def value_bytes(value: Any) -> bytes:
    """Return the bytes that stand for a text or for an image's mode, size and pixels."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    header = f"{value.mode} {value.size[0]} {value.size[1]} ".encode()
    return header + value.tobytes()


def fingerprint(split: Dataset, input_columns: tuple[str, ...]) -> str:
    """Return the SHA-256 (hexadecimal) of a split's inputs and label names, in their order.

    Every value goes in with its length before it, so that no two different splits spell the same
    bytes. Images count by their pixels: the same picture in another file format is the same.
    """
    names, several = class_names(split), has_several_labels(split)
    digest = hashlib.sha256()
    for columns in batches(split):
        for *inputs, label in zip(*(columns[c] for c in (*input_columns, "label")), strict=True):
            labels = [str(len(label)), *(names[i] for i in label)] if several else [names[label]]
            for value in (*inputs, *labels):
                encoded = value_bytes(value)
                digest.update(len(encoded).to_bytes(8, "little"))
                digest.update(encoded)
    return digest.hexdigest()
