"""Labels that a user corrected in the table that `--inspect_data` wrote: `--label_corrections`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ampft.data.dataset import cells
from ampft.data.labelled_rows import LabelledRows
from ampft.data.row_labels import RowLabels
from ampft.data.sources.readers import open_table
from ampft.data.sources.source_table import as_text
from ampft.errors import InputError, listed, quoted, quoted_list
from ampft.text.numbers import counted

FLAG = "--label_corrections"
CORRECTED = "corrected"
COLUMNS = ("label", CORRECTED, "text")


@dataclass(frozen=True)
class Correction:
    """A label that was corrected."""

    line: int  # Line or row of the table.
    text: str  # The text, or the texts of a pair on two lines.
    label: str  # The former label.
    corrected: str  # The right one.


def corrected(
    part: LabelledRows, columns: Sequence[str], path: str, *, has_texts: bool
) -> LabelledRows:
    """Return training rows with the corrected labels of a table, and a note on them.

    A row is found by its text and its former label, so that the table stays right if rows move.

    Args:
        columns: Input columns.
        path: The table.
        has_texts: Whether rows are texts with one label each.

    Raises:
        InputError: The table cannot be read, has a label that no row has, or a row that is not in
            the data.
    """
    if not has_texts:
        raise InputError(f"{FLAG} is for texts or pairs with one label each. Remove the flag.")
    corrections = _read(Path(path))
    unknown = {each.corrected for each in corrections} - set(part.names)
    if unknown:
        first = next(each for each in corrections if each.corrected in unknown)
        raise InputError(
            f"{FLAG} {path}, line {first.line}: no training row has the label "
            f"{quoted(first.corrected)}; the labels are {quoted_list(sorted(part.names))}. Correct "
            f"the column {CORRECTED}."
        )
    codes = part.labels.codes.copy()
    rows: dict[str, list[int]] = {}
    for row, texts in enumerate(cells(part.inputs, columns)):
        rows.setdefault("\n".join(map(str, texts)), []).append(row)
    changed = _changed(corrections, rows, codes, part.names, path)
    kept = np.unique(codes)  # a class can lose all of its rows
    names = tuple(part.names[code] for code in kept)
    labels = RowLabels(np.searchsorted(kept, codes), part.labels.rows, part.labels.count)
    note = f"{FLAG} {path}: the labels of {counted(changed, 'training row')} were corrected"
    return replace(part, labels=labels, names=names, notes=(*part.notes, note))


def _changed(
    corrections: Sequence[Correction],
    rows: Mapping[str, Sequence[int]],
    codes: np.ndarray[tuple[int], np.dtype[np.int64]],
    names: Sequence[str],
    path: str,
) -> int:
    """Correct codes in place; return how many rows have another label."""
    missing, code_of = [], {name: code for code, name in enumerate(names)}
    former = codes.copy()  # a text can have several labels that are all corrected
    made: dict[tuple[str, str], Correction] = {}
    for each in corrections:
        first = made.setdefault((each.text, each.label), each)
        if first.corrected != each.corrected:
            raise InputError(
                f"{FLAG} {path}, lines {first.line} and {each.line}: the same text with the same "
                f"label is corrected to {quoted(first.corrected)} and to {quoted(each.corrected)}. "
                "Give both one label."
            )
        found, new = rows.get(each.text, ()), code_of[each.corrected]
        wrong = [row for row in found if former[row] == code_of.get(each.label, -1)]
        codes[wrong] = new
        if not wrong and not any(former[row] == new for row in found):
            missing.append(each.line)
    if missing:
        lines = listed(list(map(str, missing)), limit=10)
        raise InputError(
            f"{FLAG} {path}, {'line' if len(missing) == 1 else 'lines'} {lines}: no training row "
            "has this text and this label. Pass the table of the same training data, and change "
            f"only its column {CORRECTED}."
        )
    return int((codes != former).sum())


def _read(path: Path) -> list[Correction]:
    table = open_table(path, flag=FLAG, encoding=None)
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise InputError(
            f"{FLAG} {path}: the columns {quoted_list(missing)} are missing. Pass the "
            "label_errors.csv of a run with --inspect_data."
        )
    corrections = []
    for number, row in table.read(COLUMNS):
        label, right, text = (
            as_text(cell, table.place(number), name) or ""
            for name, cell in zip(COLUMNS, row, strict=True)
        )
        if right.strip() not in ("", label):
            corrections.append(Correction(number, text, label, right.strip()))
    return corrections
