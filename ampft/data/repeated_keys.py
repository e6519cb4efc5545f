"""Columns that seem to name the person or document a row comes from.

A random split puts rows of one person into training and test, so that the test is too easy.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from itertools import islice

from ampft.data.request import DataRequest
from ampft.data.sources.source_table import SAMPLE_ROWS, SourceTable
from ampft.errors import quoted

# Words in the names of such columns.
SOURCES = frozenset(
    {
        *("user", "author", "writer", "customer", "client", "account", "patient", "person"),
        *("speaker", "subject", "reviewer", "sender", "session", "thread", "conversation"),
        *("document", "doc"),
    }
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
MOST_DISTINCT = 0.9  # of the filled cells; nearly all different values repeat too little to matter


def repeated_key_notes(
    table: SourceTable, used: Collection[str], request: DataRequest
) -> list[str]:
    """Return what to do about columns whose values repeat in rows that are split at random.

    Args:
        table: Table that validation or test rows are split off from.
        used: Columns that are read.
        request: The user's choices.
    """
    splits_rows = request.folds is not None or request.validation_fraction + request.test_fraction
    if request.group_column is not None or not splits_rows:
        return []
    notes = []
    for name in table.columns:
        words = {word.lower() for word in _WORD.findall(name)}
        if name in used or SOURCES.isdisjoint(words):
            continue
        cells = [cell for _, (cell,) in islice(table.read((name,)), SAMPLE_ROWS)]
        filled = [str(cell) for cell in cells if cell is not None and str(cell).strip()]
        if 1 < len(set(filled)) <= MOST_DISTINCT * len(filled):
            notes.append(
                f"The first {len(cells):,} rows have {len(set(filled)):,} different values of "
                f"{quoted(name)}, and rows with the same value can be in train and in test. If "
                f"they resemble each other, pass --group_column {shlex.quote(name)}."
            )
    return notes
