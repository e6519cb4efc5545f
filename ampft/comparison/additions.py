"""What this add-on adds to the core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ampft.commands.extension_points import (
    AROUND_A_TRAINING,
    CARD_SECTION,
    COMMANDS,
    FOLDER_REPORTS,
    START,
    CardSection,
    CommandEntry,
    FolderReport,
)

if TYPE_CHECKING:
    from ampft.arguments.commands import Command


def _compare(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.comparison.compare_command import COMPARE

    return COMPARE


def _estimate(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.comparison.estimate_command import ESTIMATE

    return ESTIMATE


@COMMANDS.add
def commands() -> tuple[CommandEntry, ...]:
    """Return the commands."""
    return (
        CommandEntry(
            "compare",
            START,
            "train in several precisions or with several settings and compare, or compare runs",
            _compare,
        ),
        CommandEntry(
            "estimate",
            AROUND_A_TRAINING,
            "say how long a training will take, and what it needs, from a few steps",
            _estimate,
        ),
    )


@FOLDER_REPORTS.add
def folder_reports() -> tuple[FolderReport, ...]:
    """Return how a comparison is reported, finished or not."""
    from ampft.comparison.folder_report import FINISHED, UNFINISHED

    return FINISHED, UNFINISHED


@CARD_SECTION.add
def card_section() -> CardSection:
    """Return the function that describes a comparison in the card of one of its runs."""
    from ampft.comparison.report.report_files import comparison_section

    return comparison_section
