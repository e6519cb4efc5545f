"""What this add-on adds to the core."""

from __future__ import annotations

from ampft.data.extension_points import (
    CONTRADICTION_NOTES,
    HIDDEN_CELL_NOTES,
    TEXT_NOTES,
    ContradictionNotes,
    HiddenCellNotes,
    TextNotes,
)


@TEXT_NOTES.add
def text_notes() -> TextNotes:
    """Return the search for garbled texts."""
    from ampft.checks import garbled_texts

    return garbled_texts.text_notes


@CONTRADICTION_NOTES.add
def contradiction_notes() -> ContradictionNotes:
    """Return the search for rows with equal inputs and different labels."""
    from ampft.checks import contradicting_labels

    return contradicting_labels.contradiction_notes


@HIDDEN_CELL_NOTES.add
def hidden_cell_notes() -> HiddenCellNotes:
    """Return the search for hidden cells of a workbook."""
    from ampft.checks.hidden_cells import hidden_notes

    return hidden_notes
