"""Labels that a user corrected in the table that `--inspect_data` wrote: `--label_corrections`."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ampft.data.dataset import cells
from ampft.data.labelled_rows import LabelledRows
from ampft.data.row_labels import RowLabels
from ampft.errors import InputError, listed, quoted, quoted_list
from ampft.text.numbers import counted

FLAG = "--label_corrections"
CORRECTED = "corrected"
COLUMNS = ("label", CORRECTED, "text")


@dataclass(frozen=True)
class Correction:
    """A label that was corrected."""

    line: int  # Line of the table.
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
    changed, missing, code_of = 0, [], {name: code for code, name in enumerate(names)}
    for each in corrections:
        found = rows.get(each.text, ())
        former, new = code_of.get(each.label, -1), code_of[each.corrected]
        wrong = [row for row in found if codes[row] == former]
        codes[wrong] = new
        changed += len(wrong)
        if not wrong and not any(codes[row] == new for row in found):
            missing.append(each.line)
    if missing:
        lines = listed(list(map(str, missing)), limit=10)
        raise InputError(
            f"{FLAG} {path}, {'line' if len(missing) == 1 else 'lines'} {lines}: no training row "
            "has this text and this label. Pass the table of the same training data, and change "
            f"only its column {CORRECTED}."
        )
    return changed


def _read(path: Path) -> list[Correction]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            table = [(reader.line_num, row) for row in reader]
            header = reader.fieldnames or ()
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"{FLAG} {path}: the table cannot be read ({error}).") from None
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise InputError(
            f"{FLAG} {path}: the columns {quoted_list(missing)} are missing. Pass the "
            "label_errors.csv of a run with --inspect_data."
        )
    return [
        Correction(line, row["text"] or "", row["label"] or "", row[CORRECTED].strip())
        for line, row in table
        if (row[CORRECTED] or "").strip() and row[CORRECTED].strip() != row["label"]
    ]
