"""Write and read comparison.json, comparison.md and comparison.html."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

from ampft.comparison.analysis.loading import RUNS_NAME
from ampft.comparison.findings import COMPARISON_NAME, SCHEMA, Comparison
from ampft.comparison.remarks import remark_texts
from ampft.comparison.report.tables import modes, without_incomplete_medians
from ampft.comparison.report.texts import markdown_text, terminal_text
from ampft.comparison.verdict_text import verdict_texts
from ampft.errors import InputError
from ampft.files import special_or_atomic_path, write_new_text, write_text
from ampft.ownership import check_page_file, check_replaceable
from ampft.text.escaping import prose
from ampft.text.json_io import check_schema, from_json, json_text, read_json_object
from ampft.text.tables import markdown_table

MARKDOWN_NAME = "comparison.md"
HTML_NAME = "comparison.html"
SENTENCES = "sentences"  # the entry of comparison.json in words
RESULT_NAMES = (COMPARISON_NAME, MARKDOWN_NAME, HTML_NAME)


def write_comparison(comparison: Comparison, output_dir: Path) -> None:
    """Write the three files, each atomically, replacing existing ones.

    The bytes depend only on the comparison, not on the process, its locale or its time zone.

    Args:
        comparison: Comparison to write.
        output_dir: Folder, created with its parents if it does not exist.

    Raises:
        InputError: The folder or a file cannot be written, or a file there is somebody else's.
    """
    from ampft.comparison.report.html import html_text

    # All files are rendered before any is written, so that a bug leaves no mix of old and new.
    texts = {
        COMPARISON_NAME: json_text({**asdict(comparison), SENTENCES: _sentences(comparison)}),
        MARKDOWN_NAME: markdown_text(comparison),
        HTML_NAME: html_text(comparison),
    }
    check_replaceable("--output_dir", output_dir, RESULT_NAMES)
    path = output_dir
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            path = output_dir / name
            write_text(path, text)
    except OSError as error:
        raise InputError(
            f"--output_dir {output_dir}: {path.name} cannot be written ({error.strerror}). Free "
            "disk space or choose another folder."
        ) from error


def _sentences(comparison: Comparison) -> dict[str, tuple[str, ...]]:
    """Return what the reports say in words, for readers of the file; `read_comparison` skips it."""
    return {"verdicts": verdict_texts(comparison), "stamps": remark_texts(comparison.stamps)}


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the page of a comparison, atomically. A symbolic link is kept, and its target replaced.

    Raises:
        InputError: The file cannot be written, or is a result of a run or a comparison.
    """
    from ampft.comparison.report.html import html_text

    check_page_file("--output_file", path)
    try:
        with special_or_atomic_path(path) as temporary:
            write_new_text(temporary, html_text(comparison))
    except OSError as error:
        raise InputError(
            f"--output_file {path}: it cannot be written ({error.strerror})."
        ) from error


def next_step_line(folder: Path) -> str:
    """Return the line that says what to do with a finished comparison."""
    page = shlex.quote(str(folder / HTML_NAME))
    return f"next       open {page}, or ampft report {shlex.quote(str(folder))}"


def read_comparison(path: Path) -> Comparison:
    """Read a comparison. It equals the written one, except that non-finite numbers become NaN.

    Args:
        path: File, or folder that contains it.

    Raises:
        InputError: The file is missing, is not a comparison, or has the layout of another version.
    """
    from ampft.comparison.report.html import html_text

    file = path / COMPARISON_NAME if path.is_dir() else path
    try:
        values = read_json_object(file)
    except OSError as error:
        raise InputError(
            f"COMPARISON {file}: the file cannot be read ({error.strerror}). Give the --output_dir "
            f"of a comparison, which contains {COMPARISON_NAME}."
        ) from error
    except ValueError as error:
        raise InputError(
            f"COMPARISON {file}: the file is not JSON ({error}). Repeat the comparison."
        ) from error
    check_schema(file, values, SCHEMA, "Repeat the comparison.")
    values.pop(SENTENCES, None)
    try:
        comparison = from_json(Comparison, values, "comparison")
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"COMPARISON {file}: the file is not a valid comparison ({error}). Repeat the "
            "comparison."
        ) from error
    if not comparison.arms:
        raise InputError(f"COMPARISON {file}: the comparison has no arms. Repeat the comparison.")
    if not 0 < comparison.margin < 1:
        raise InputError(
            f"COMPARISON {file}: the margin is {comparison.margin:g}, but must be between 0 and 1. "
            "Repeat the comparison."
        )
    try:
        for shown in (terminal_text, markdown_text, html_text):
            shown(comparison)
    except (ValueError, ArithmeticError, LookupError, TypeError, StopIteration) as error:
        raise InputError(
            f"COMPARISON {file}: its values contradict each other ({type(error).__name__}: "
            f"{error}). Repeat the comparison."
        ) from error
    return comparison


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
