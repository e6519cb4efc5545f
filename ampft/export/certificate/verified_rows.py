"""The rows that an artifact is verified on: a split of its run, or a file with labels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ampft.comparison.analysis.predictions import check_margin
from ampft.comparison.analysis.run_predictions import primary_metric
from ampft.data.dataset import ClassificationData
from ampft.data.request import IN_MEMORY
from ampft.data.row_labels import Targets
from ampft.data.sources.source_table import SourceTable, as_text
from ampft.data.splits import Groups, dependent_groups, group_equal_keys, normalized_value
from ampft.errors import InputError, quoted_list
from ampft.files import describe_file
from ampft.kinds.prediction import LabelReader, PredictRequest
from ampft.media.masks import Masks, pad_masks
from ampft.runs.predict import SavedClassifier
from ampft.runs.recorded_arguments import recorded_arguments
from ampft.runs.run_text import problem_of, task_row
from ampft.text.numbers import counted
from ampft.text.terminal import labelled, print_line

FLAG = "--verify"
SPLITS = ("test", "validation")


@dataclass(frozen=True, kw_only=True)
class VerifyRequest:
    """What an artifact is verified on, and how."""

    # "test", "validation" or a file with labels; None for the split that the run reports.
    verify: str | None = None
    metric: str | None = None  # Primary metric; None for the task's.
    margin: float = 0.01  # Equivalence margin as a fraction (0.01 is one point).
    # Flags of a training that replace recorded settings, such as paths of files.
    data_flags: Sequence[str] = ()
    measure: bool = True  # Whether times and memory are measured.
    max_samples: int | None = None  # Rows that are drawn at random to verify on; None for all.


@dataclass(frozen=True)
class VerifiedRows:
    """Labelled rows."""

    name: str  # Name of the split, or "file".
    rows: Sequence[tuple[Any, ...]]  # Inputs of each row, as the readers of its kind take them.
    targets: Targets  # Their labels, as indices into the labels of the run.
    groups: Groups | None  # Groups of rows that are not independent; None if all are.
    sha256: str  # Hash of their contents.
    was_chosen_on: bool = False  # Whether the run chose its best epoch on these rows.
    data: ClassificationData | None = None  # The data of the run, if they are one of its splits.
    available: int | None = None  # Number of rows that these were drawn from; None if all are here.

    @property
    def title(self) -> str:
        """What is verified, such as "100 of 1,821 examples of test, drawn at random"."""
        if self.available is None:
            return f"{len(self):,} examples of {self.name}"
        return f"{len(self):,} of {self.available:,} examples of {self.name}, drawn at random"

    def __len__(self) -> int:
        return len(self.rows)

    def with_masks(
        self, inputs: Mapping[str, Tensor], batch: Sequence[int] | npt.NDArray[np.int64]
    ) -> Mapping[str, Tensor]:
        """Return the inputs of a batch with the masks by which its predictions are counted."""
        if not isinstance(self.targets, Masks):
            return inputs
        labels, sizes = pad_masks(self.targets.decoded(np.asarray(batch)))
        return {
            **inputs,
            "labels": torch.from_numpy(labels),
            "label_sizes": torch.from_numpy(sizes),
        }

    def text(self, row: int) -> str:
        """Return the inputs of a row in words; empty if it has none."""
        parts = [getattr(cell, "text", cell) for cell in self.rows[row]]
        return " | ".join(part for part in parts if isinstance(part, str))


def check_verification(saved: SavedClassifier, request: VerifyRequest) -> VerifiedRows:
    """Return the rows to verify on, before anything is exported.

    Raises:
        InputError: The margin is out of range, or the task lacks the metric; the run has no such
            split, its data are missing or have changed, or the file cannot be read, has no labels,
            or has other labels; or there are fewer than two independent rows.
    """
    check_margin(request.margin)
    record = saved.record
    primary_metric(request.metric, problem_of(record))
    examples = record.data.examples
    verify = request.verify
    if verify is None:
        verify = next((name for name in SPLITS if examples.get(name)), "")
    if verify in SPLITS or not verify:
        if not examples.get(verify):
            raise InputError(
                f"{FLAG} {verify or SPLITS[0]}: the run has only the splits "
                f"{', '.join(name for name, count in examples.items() if count)}. Pass a file with "
                "labels."
            )
        rows = split_rows(saved, verify, request.data_flags, request.max_samples)
    else:
        rows = _file_rows(saved, Path(verify), request.max_samples)
    has_too_few = len(rows if rows.groups is None else rows.groups) < 2
    if has_too_few and rows.available is not None:
        raise InputError(
            f"--max_verify_samples {request.max_samples}: the drawn rows are copies of each other "
            "or of one group, and a verification needs at least 2 independent rows. Raise the "
            "number, or remove the flag."
        )
    if has_too_few:
        raise InputError(
            f"{FLAG} {verify}: a verification needs at least 2 independent rows. Pass a file with "
            "more labelled rows."
        )
    return rows


def _drawn(count: int, most: int | None) -> npt.NDArray[np.int64] | None:
    """Return which of `count` rows are verified, ascending and the same each time; None for all."""
    if most is None or most >= count:
        return None
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False)).astype(np.int64)


def _hash_of_drawn(sha256: str, drawn: npt.NDArray[np.int64] | None) -> str:
    """Return the hash of the rows that were drawn from rows with a hash."""
    if drawn is None:
        return sha256
    return hashlib.sha256(sha256.encode() + drawn.astype("<i8").tobytes()).hexdigest()


def split_rows(
    saved: SavedClassifier, split: str, flags: Sequence[str], most: int | None = None
) -> VerifiedRows:
    """Return the rows of a split of a run.

    Args:
        most: Number of rows that are drawn at random; None for all.

    Raises:
        InputError: Its data are missing or have changed.
    """
    record = saved.record
    if record.data.name == IN_MEMORY and not flags:
        raise InputError(
            f"{FLAG} {split}: the run was trained on data in memory, which cannot be read again. "
            f"Pass a file with labels: {FLAG} FILE."
        )
    row = task_row(record)
    data = row.kind.load(recorded_arguments(record, flags), None)
    recorded, found = record.data.fingerprints.get(split), data.fingerprints.get(split)
    if found != recorded:
        raise InputError(
            f"{FLAG} {split}: the data of this split have changed since the run (SHA-256 "
            f"{str(found)[:12]} instead of {str(recorded)[:12]}). Restore them, or pass a file "
            "with labels."
        )
    total = len(data.splits[split])
    drawn = _drawn(total, most)
    verified = data if drawn is None else data.with_rows(split, drawn)
    part = verified.splits[split].select_columns(list(data.input_columns))
    columns = [part[name][:] for name in data.input_columns]
    is_tuple = row.kind.has_texts or row.kind.has_files
    cells = list(zip(*columns, strict=True)) if is_tuple else list(columns[0])
    best = record.best is not None and split == "validation"
    return VerifiedRows(
        name=split,
        rows=row.kind.rows_in_memory(cells, saved.training),
        targets=verified.labels(split),
        groups=dependent_groups(verified, split),
        sha256=_hash_of_drawn(str(found), drawn),
        was_chosen_on=best,
        data=data,
        available=None if drawn is None else total,
    )


def _file_rows(saved: SavedClassifier, path: Path, most: int | None) -> VerifiedRows:
    """Return the rows of a file that have labels of the run, or `most` of them."""
    if not path.is_file():
        raise InputError(
            f"{FLAG} {path}: this is neither {' nor '.join(SPLITS)} nor a file. Choose one of them."
        )
    request = PredictRequest(files=[str(path)], flag=FLAG, encoding=None)
    record = saved.record
    found = task_row(record).kind.open_rows(request, saved.training)
    found.check()
    if found.labels is None:
        raise InputError(
            f"{FLAG} {path}: the file has no column of labels with the name used in "
            "training. Rename its column of labels."
        )
    column = record.arguments.get("group_column")
    named = str(column) if column in found.table.columns else None
    rows, labels, values = _labelled(found.table, found, found.labels, named)
    index = {name: number for number, name in enumerate(record.label_names)}
    unknown = sorted({name for row in labels for name in row} - index.keys())
    if unknown:
        raise InputError(
            f"{FLAG} {path}: it has labels that the model does not know: {quoted_list(unknown)}. "
            f"The model knows {quoted_list(record.label_names)}."
        )
    total = len(rows)
    drawn = _drawn(total, most)
    if drawn is not None:
        rows, labels, values = ([each[i] for i in drawn] for each in (rows, labels, values))
    codes = [tuple(index[name] for name in row) for row in labels]
    inputs = (tuple(normalized_value(getattr(cell, "text", cell)) for cell in row) for row in rows)
    groups = group_equal_keys(inputs, values, column=named)
    return VerifiedRows(
        name="file",
        rows=rows,
        targets=found.labels.targets(codes, len(index)),
        groups=groups if len(groups) < len(rows) else None,
        sha256=_hash_of_drawn(describe_file(path).sha256, drawn),
        available=None if drawn is None else total,
    )


def _labelled(
    table: SourceTable, found: Any, reader: LabelReader, group_column: str | None
) -> tuple[list[tuple[Any, ...]], Sequence[tuple[str, ...]], list[str | None]]:
    """Return the inputs, labels and groups of the rows that have inputs and labels.

    A row whose group is empty, or unknown because there is no such column, has the group None.
    """
    inputs = [table.columns.index(name) for name in found.sources]
    of_labels = [table.columns.index(name) for name in reader.columns]
    rows, labels, groups, count = [], [], [], 0
    for number, cells in table.read(table.columns):
        count += 1
        place = found.place(number)
        row, why = found.inputs_of([cells[i] for i in inputs], number)
        if row is None:
            raise InputError(f"{FLAG} {place}: {why} Fill the cell, or remove the row.")
        label = reader.parse([cells[i] for i in of_labels], place)
        if label is not None:
            rows.append(row)
            labels.append(label)
            group = None if group_column is None else cells[table.columns.index(group_column)]
            groups.append(as_text(group, place, str(group_column)))
    if not rows:
        raise InputError(f"{FLAG} {table.origin}: none of {counted(count, 'row')} has a label.")
    if without := count - len(rows):
        note = f"{table.origin}: {counted(without, 'row')} without a label left out."
        print_line(labelled("note", note))
    return rows, reader.as_trained(labels), groups
