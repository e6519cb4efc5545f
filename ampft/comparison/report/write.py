"""A comparison's files: comparison.json, comparison.md and comparison.html."""

from __future__ import annotations

from pathlib import Path

from ampft.comparison.findings import COMPARISON_NAME, Comparison
from ampft.comparison.report.markdown import markdown_text
from ampft.errors import InputError
from ampft.files import write_text
from ampft.text.json_io import json_text

MARKDOWN_NAME = "comparison.md"
HTML_NAME = "comparison.html"


def write_comparison(comparison: Comparison, output_dir: Path) -> None:
    """Write the three files, each whole or not at all, replacing those that are there.

    The same comparison gives the same bytes, whatever the process, its locale and its time zone.

    Args:
        comparison: What was found.
        output_dir: The folder; made with its parents where it does not exist.

    Raises:
        InputError: The folder or a file cannot be written.
    """
    from ampft.comparison.report.html import html_text

    # All are rendered before one is written: no mixture of old and new files after a bug.
    texts = {
        COMPARISON_NAME: json_text(comparison),
        MARKDOWN_NAME: markdown_text(comparison),
        HTML_NAME: html_text(comparison),
    }
    path = output_dir
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            path = output_dir / name
            write_text(path, text)
    except OSError as error:
        raise InputError(
            f"--output_dir {output_dir}: {path.name} cannot be written ({error.strerror}); free "
            "space there or name another folder"
        ) from error
