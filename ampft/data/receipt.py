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
from ampft.data.media import MEDIA, media_reference, undecoded_column
from ampft.data.media_kind import FRAMES_COLUMN, RATE_COLUMN
from ampft.data.splits import FILE_COLUMN, NUMBER_COLUMNS
from ampft.decision import OUTSIDE, is_bio
from ampft.errors import listed
from ampft.text.escaping import inert

FILE = "file"  # column of a split of masks
SHOWN_CLASSES = 6
SHOWN_TEXT, SHOWN_NAME = 56, 24  # characters of a text and of a label


def receipt_lines(data: ClassificationData) -> list[str]:
    """Return the classes with their shares, and the first and the last training row.

    Built-in data, which a user does not write, have no lines.
    """
    if data.shared_with_train is None:
        return []
    rows = len(data.splits["train"])
    ends = dict.fromkeys([("first", 0), ("last", rows - 1)] if rows > 1 else [("only", 0)])
    cells = [(name, *_row(data, row)) for name, row in ends]
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
            f"{_short(data.number_name, SHOWN_NAME)} from {numbers.min():g} to {numbers.max():g}, "
            f"mean {numbers.mean():.4g}, of {len(train):,} training rows"
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
    shares = [f"{_short(names[i], SHOWN_NAME)} {100 * counts[i] / total:.1f} %" for i in order]
    several = what == "rows" and has_several_labels(train)
    rest = ""
    if len(shares) > SHOWN_CLASSES:
        rest = f"; least: {shares[-1]}"
    return (
        f"{listed(shares, limit=SHOWN_CLASSES)}{rest} of {int(total):,} training {what}"
        f"{', which can have several' * several}"
    )


def _row(data: ClassificationData, row: int) -> tuple[str, str, str]:
    """Return where a training row is, its label, and its input."""
    train = data.splits["train"]
    if data.masks is not None:
        return "", "", _short(str(train[row].get(FILE)), SHOWN_TEXT)
    columns = [name for name in train.column_names if name not in data.input_columns]
    cells = train.select_columns(columns)[row]
    unit = next((name for name in NUMBER_COLUMNS if name in cells), None)
    place = "" if unit is None else f"{unit.removeprefix('ampft_')} {cells[unit]}"
    if FILE_COLUMN in cells:
        place = f"{cells[FILE_COLUMN]} {place}"
    codes, names = cells["label"], data.label_names
    if data.kind == TOKEN:
        (words,) = train.select_columns(list(data.input_columns))[row].values()
        return place, "", _tagged(words, [names[code] for code in codes], names)
    several = codes if isinstance(codes, list) else [codes]
    if data.number_name is not None:
        label = f"{codes:g}"
    else:
        label = listed([_short(names[code], SHOWN_NAME) for code in several])
    if data.kind in MEDIA:
        return "", label or "(no label)", _file(data, row, cells)
    inputs = train.select_columns(list(data.input_columns))[row].values()
    texts = [_short(str(text), SHOWN_TEXT // len(data.input_columns)) for text in inputs]
    return place, label or "(no label)", " | ".join(texts)


def _file(data: ClassificationData, row: int, cells: dict[str, Any]) -> str:
    (column,) = data.input_columns
    files = undecoded_column(data.splits["train"], column, data.kind)
    name = str(media_reference(files, "train", row))
    name = name if len(name) <= SHOWN_TEXT else f"...{name[3 - SHOWN_TEXT :]}"
    if FRAMES_COLUMN in cells:
        name += f" ({cells[FRAMES_COLUMN] / cells[RATE_COLUMN]:.2f} s, {cells[RATE_COLUMN]:,} Hz)"
    return inert(name)


def _tagged(words: Sequence[str], tags: Sequence[str], names: Sequence[str]) -> str:
    """Return words with their tags, without O where tags form entities."""
    plain = OUTSIDE if is_bio(names) else None
    shown: list[str] = []
    for word, tag in zip(words, tags, strict=True):
        shown.append(_short(word if tag == plain else f"{word}/{tag}", SHOWN_NAME))
        if len(" ".join(shown)) > SHOWN_TEXT:
            break
    return " ".join(shown) + (" ..." if len(shown) < len(words) else "")


def _short(text: str, limit: int) -> str:
    """Return the beginning of a text on one line, without characters that change a terminal."""
    line = " ".join(text[: 4 * limit].split())
    return inert(line if len(line) <= limit else f"{line[: limit - 3]}...")
