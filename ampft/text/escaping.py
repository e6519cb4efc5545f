"""The report on a terminal, with whatever a label may contain shown inertly."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import numpy as np

DIGITS = 3
WIDEST_NAME = 60  # columns; longer class names are cut in the table, and in the table alone

# Control, format (right-to-left marks among them), surrogate, line and paragraph separator.
HOSTILE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Persian and the Indic scripts spell words with these two.
SPELLING_JOINERS = frozenset("\u200c\u200d")


def is_hostile(character: str) -> bool:
    """Return whether a character moves, hides or reverses the text around it."""
    return (
        character not in SPELLING_JOINERS and unicodedata.category(character) in HOSTILE_CATEGORIES
    )


def inert(text: str) -> str:
    """Return `text` on one line, with its control and direction characters written as escapes."""
    return "".join(_escaped(c) if is_hostile(c) else c for c in text)


def display_width(text: str) -> int:
    """Return the columns that `text` takes on a terminal: 2 for wide, 0 for combining ones."""
    wide = {"W": 2, "F": 2}
    return sum(
        0
        if unicodedata.combining(c) or c in SPELLING_JOINERS
        else wide.get(unicodedata.east_asian_width(c), 1)
        for c in text
    )


def report_table(
    confusion_matrix: Sequence[Sequence[int]], label_names: Sequence[str], *, digits: int = DIGITS
) -> str:
    """Return scikit-learn's classification report, computed by scikit-learn.

    Args:
        confusion_matrix: (C, C) counts, row = true class, column = predicted class. It holds all
            that the table needs, so that a report that was read back prints the same.
        label_names: The C class names.
        digits: Decimal places.

    Returns:
        The table, with a newline at its end.
    """
    from sklearn.metrics import classification_report

    counts = np.asarray(confusion_matrix, dtype=np.int64).ravel()
    classes = np.arange(len(label_names))
    names = [_cut(inert(name)) for name in label_names]
    table: str = classification_report(
        np.repeat(classes.repeat(len(classes)), counts),
        np.repeat(np.tile(classes, len(classes)), counts),
        labels=classes,
        # scikit-learn aligns by number of characters: stand-ins have the width of the names.
        target_names=["x" * display_width(name) for name in names],
        digits=digits,
        zero_division=0,
    )
    # Without one correct prediction scikit-learn's supports are floats: 5.0.
    table = re.sub(r"(\d+)\.0$", r"  \1", table, flags=re.MULTILINE)
    header, blank, *rows = table.split("\n")
    for index, name in enumerate(names):
        width = display_width(name)
        start = len(rows[index]) - len(rows[index].lstrip())
        rows[index] = " " * start + name + rows[index][start + width :] if width else rows[index]
    return "\n".join([header, blank, *rows])


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def _cut(name: str) -> str:
    if display_width(name) <= WIDEST_NAME:
        return name
    kept = ""
    for character in name:
        if display_width(kept + character) > WIDEST_NAME - 1:
            break
        kept += character
    return f"{kept}…"
