"""A comparison's files: comparison.json, comparison.md and comparison.html, written and read."""

from __future__ import annotations

from pathlib import Path

from ampft.comparison.findings import COMPARISON_NAME, SCHEMA, Comparison
from ampft.comparison.report.markdown import markdown_text
from ampft.errors import InputError
from ampft.files import write_text
from ampft.text.json_io import check_schema, from_json, json_text, read_json_object

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


def read_comparison(path: Path) -> Comparison:
    """Read a comparison; it equals what was written, except that non-finite numbers become NaN.

    Args:
        path: The file, or the folder that holds it.

    Raises:
        InputError: The file is missing, is not a comparison, or has another version's layout.
    """
    file = path / COMPARISON_NAME if path.is_dir() else path
    try:
        values = read_json_object(file)
    except OSError as error:
        raise InputError(
            f"COMPARISON {file}: cannot be read ({error.strerror}). Name the --output_dir of a "
            f"comparison, which holds {COMPARISON_NAME}."
        ) from error
    except ValueError as error:
        raise InputError(f"COMPARISON {file}: is not JSON ({error}). Compare again.") from error
    check_schema(file, values, SCHEMA, "Compare again.")
    try:
        found = from_json(Comparison, values, "comparison")
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"COMPARISON {file}: is not a comparison as ampft writes it ({error}). Compare again."
        ) from error
    if not found.arms:
        raise InputError(f"COMPARISON {file}: has no arms. Compare again.")
    if not 0 < found.margin < 1:
        raise InputError(
            f"COMPARISON {file}: its margin is {found.margin:g}, not between 0 and 1. "
            "Compare again."
        )
    return found
