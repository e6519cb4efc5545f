"""How the training data were understood: a few cells read back, shown before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ampft.data.dataset import (
    TOKEN,
    ClassificationData,
    has_several_labels,
    number_labels,
    row_labels,
)
from ampft.data.splits import FILE_COLUMN, NUMBER_COLUMNS
from ampft.errors import listed
from ampft.kinds import Kind
from ampft.text.escaping import inert

SHOWN_CLASSES = 6
SHOWN_TEXT, SHOWN_NAME = 56, 24  # characters of a text and of a label
ReceiptRow = tuple[str, str, str]  # where a row was read, its label, and its input


def receipt_lines(data: ClassificationData, kind: Kind) -> list[str]:
    """Return the classes with their shares, and the first and the last training row.

    Built-in data, which a user does not write, have no lines.

    Args:
        kind: Kind of the data, which shows its rows.
    """
    if data.shared_with_train is None:
        return []
    rows = len(data.splits["train"])
    ends = dict.fromkeys([("first", 0), ("last", rows - 1)] if rows > 1 else [("only", 0)])
    cells = [(name, *kind.receipt_row(data, row)) for name, row in ends]
    width = [max(len(cell[column]) for cell in cells) for column in range(3)]
    return [_shares(data), *("  ".join(_padded(cell, width)) for cell in cells)]


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the cells of a row without empty columns, all but the last padded."""
    padded = [cell.ljust(size) for cell, size in zip(cells, widths, strict=False) if size]
    return [*padded, cells[-1]]


def _shares(data: ClassificationData) -> str:
    """Return the most frequent classes with the share of rows, words or pixels that have them."""
    names = list(data.label_names)
    train = data.splits["train"]
    if data.number_name is not None:
        numbers = number_labels(train)
        return (
            f"{short(data.number_name, SHOWN_NAME)} from {numbers.min():g} to {numbers.max():g}, "
            f"mean {numbers.mean():z.4g}, of {len(train):,} training rows"
        )
    if data.masks is not None:
        masks = data.masks["train"]
        counts, what = masks.counts.sum(axis=0), "pixels"
        marks = masks.classes.colors or masks.classes.values
        shown = zip(names, marks, strict=True)
        names = [name if name == str(mark) else f"{name} {mark}" for name, mark in shown]
    else:
        counts = np.bincount(row_labels(train).codes, minlength=len(names))
        what = "words" if data.kind == TOKEN else "rows"
    total = len(train) if what == "rows" else counts.sum()
    order = np.argsort(-counts, kind="stable")
    shares = [f"{short(names[i], SHOWN_NAME)} {100 * counts[i] / total:.1f} %" for i in order]
    rest = ""
    if len(shares) > SHOWN_CLASSES:
        rest = f"; least: {shares[-1]}"
    if what == "rows" and has_several_labels(train):
        what = "rows, which can have several"
    return f"{listed(shares, limit=SHOWN_CLASSES)}{rest} of {int(total):,} training {what}"


def cells_of(data: ClassificationData, row: int) -> tuple[dict[str, Any], str]:
    """Return the cells of a training row besides its inputs, and where it was read."""
    train = data.splits["train"]
    columns = [name for name in train.column_names if name not in data.input_columns]
    cells = train.select_columns(columns)[row]
    unit = next((name for name in NUMBER_COLUMNS if name in cells), None)
    place = "" if unit is None else f"{unit.removeprefix('ampft_')} {cells[unit]}"
    if FILE_COLUMN in cells:
        place = f"{cells[FILE_COLUMN]} {place}"
    return cells, place


def shown_labels(data: ClassificationData, codes: Any) -> str:
    """Return the labels of a row."""
    if data.number_name is not None:
        return f"{codes:g}"
    several = codes if isinstance(codes, list) else [codes]
    names = listed([short(data.label_names[code], SHOWN_NAME) for code in several])
    return names or "(no label)"


def text_row(data: ClassificationData, row: int) -> ReceiptRow:
    """Return a row of texts."""
    cells, place = cells_of(data, row)
    inputs = data.splits["train"].select_columns(list(data.input_columns))[row].values()
    texts = [short(str(text), SHOWN_TEXT // len(data.input_columns)) for text in inputs]
    return place, shown_labels(data, cells["label"]), " | ".join(texts)


def short(text: str, limit: int) -> str:
    """Return the beginning of a text on one line, without characters that change a terminal."""
    line = " ".join(text[: 4 * limit].split())
    return inert(line if len(line) <= limit else f"{line[: limit - 3]}...")
