"""What this add-on adds to the core."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ampft.data.extension_points import OTHER_FORMATS, OtherFormats
from ampft.precision.extension_points import UNUSED_PRECISION_CHECK
from ampft.runs.extension_points import (
    EXPECTED_TIME,
    GRADIENT_CHANGE,
    LABEL_INSPECTION,
    METHODS_TO_COMPARE,
    RANGE_MONITOR,
    GradientChange,
    LabelInspection,
    RangeMonitor,
    SimpleMethods,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ampft.precision.extension_points import UnusedPrecisionCheck
    from ampft.runs.prepared import Prepared
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


@OTHER_FORMATS.add
def other_formats() -> OtherFormats:
    """Return what recognizes files of other formats."""
    from ampft.checks import other_formats

    return other_formats


@UNUSED_PRECISION_CHECK.add
def unused_precision_check() -> UnusedPrecisionCheck:
    """Return the check that a precision computes something."""
    from ampft.checks.unused_precision import refuse_all_float32

    return refuse_all_float32


@GRADIENT_CHANGE.add
def gradient_change() -> Callable[[Iterable[Tensor], Iterable[Tensor]], GradientChange]:
    """Return the function that compares a gradient with the one in float32."""
    from ampft.checks.harm import GradientChange

    return GradientChange.of


@LABEL_INSPECTION.add
def label_inspection() -> LabelInspection:
    """Return the inspection of labels."""
    from ampft.checks.label_errors import LabelErrorInspection

    return LabelErrorInspection


@RANGE_MONITOR.add
def range_monitor() -> RangeMonitor:
    """Return the watch of ranges."""
    from ampft.checks.value_ranges import ValueRangeMonitor

    return ValueRangeMonitor


@METHODS_TO_COMPARE.add
def simple_methods() -> SimpleMethods:
    """Return the simple methods."""
    from ampft.checks.baseline import LEAST_SECONDS, SHARE, baselines

    return SimpleMethods(baselines, SHARE, LEAST_SECONDS)


@EXPECTED_TIME.add
def expected_time() -> Callable[[Prepared], None]:
    """Return the function that prints the expected time."""
    from ampft.checks.expected_time import print_expected_time

    return print_expected_time
