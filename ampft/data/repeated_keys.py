"""Columns that seem to name whom rows come from, which a random split tears apart."""

from __future__ import annotations

import re
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
    if request.group_column is not None:
        return []
    notes = []
    for name in table.columns:
        words = {word.lower() for word in _WORD.findall(name)}
        if name in used or SOURCES.isdisjoint(words):
            continue
        cells = [str(cell or "").strip() for _, (cell,) in islice(table.read((name,)), SAMPLE_ROWS)]
        filled = [cell for cell in cells if cell]
        if 1 < len(set(filled)) <= MOST_DISTINCT * len(filled):
            notes.append(
                f"The first {len(cells):,} rows have {len(set(filled)):,} different values of "
                f"{quoted(name)}, and rows of one can be in train and in test. If these resemble "
                f"each other, pass --group_column {name}."
            )
    return notes
