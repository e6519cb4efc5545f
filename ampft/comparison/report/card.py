"""The section of a model card on the comparison that the run is part of."""

from __future__ import annotations

from pathlib import Path

from ampft.comparison.analysis.loading import RUNS_NAME
from ampft.comparison.findings import COMPARISON_NAME, Comparison
from ampft.comparison.remarks import remark_texts
from ampft.comparison.report.files import read_comparison
from ampft.comparison.report.tables import modes, without_incomplete_medians
from ampft.comparison.verdict_text import verdict_texts
from ampft.text.markdown import prose
from ampft.text.tables import markdown_table


def comparison_section(run: Path) -> str:
    """Return the section for a run in the folder of a finished comparison, otherwise "".

    Args:
        run: Output folder of the run.
    """
    runs = run.resolve().parent
    if runs.name != RUNS_NAME or not (runs.parent / COMPARISON_NAME).is_file():
        return ""
    return section_text(read_comparison(runs.parent))


def section_text(comparison: Comparison) -> str:
    """Return the verdicts and the table with intervals, in Markdown."""
    parts = [
        "## Comparison\n\nThis model is one run of a comparison.",
        "\n".join(f"- {prose(verdict)}" for verdict in verdict_texts(comparison)),
        *(f"> **Note:** {prose(stamp)}" for stamp in remark_texts(comparison.stamps)),
        markdown_table(modes(without_incomplete_medians(comparison))),
    ]
    return "\n\n".join(parts)
