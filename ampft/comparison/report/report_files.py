"""A comparison as text for a terminal and as files: comparison.json, .md and .html."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path

from ampft.comparison.analysis.loading import RUNS_NAME
from ampft.comparison.answer import answer_text
from ampft.comparison.findings import COMPARISON_NAME, SCHEMA, Comparison
from ampft.comparison.remarks import remark_text, remark_texts
from ampft.comparison.report.sections import sections, tables_of_arms
from ampft.comparison.report.tables import (
    arm_columns,
    evaluation_scope,
    has_execution,
    modes,
    settings,
    without_incomplete_medians,
)
from ampft.comparison.verdict_text import verdict_texts
from ampft.errors import InputError, check_type
from ampft.files import (
    hashed_text,
    read_hashed,
    special_or_atomic_path,
    write_errors_explained,
    write_text,
    write_text_non_atomically,
)
from ampft.ownership import check_page_file, check_replaceable
from ampft.text.escaping import prose
from ampft.text.json_io import from_json
from ampft.text.page import Block, Items, Notices, Paragraph, Section, Table, markdown, terminal

MARKDOWN_NAME = "comparison.md"
HTML_NAME = "comparison.html"
SENTENCES = "sentences"  # entry of comparison.json with what the reports say; reading skips it
RESULT_NAMES = (COMPARISON_NAME, MARKDOWN_NAME, HTML_NAME)
MAX_CLASSES = 50  # keeps the Markdown below the 65,536 characters of a GitHub comment


def write_comparison(comparison: Comparison, output_dir: Path) -> None:
    """Write the three files, each atomically, replacing existing ones.

    The bytes depend only on the comparison, not on the process, its locale or its time zone.

    Args:
        comparison: Comparison to write.
        output_dir: Folder, created with its parents if it does not exist.

    Raises:
        InputError: The folder or a file cannot be written, or a file there is somebody else's.
    """
    check_type("write_comparison", "comparison", comparison, Comparison)
    check_type("write_comparison", "output_dir", output_dir, (str, Path))
    output_dir = Path(output_dir)
    from ampft.comparison.report.html import html_text

    sentences = {"verdicts": verdict_texts(comparison), "stamps": remark_texts(comparison.stamps)}
    # All files are rendered before any is written, so that a bug leaves no mix of old and new.
    texts = {
        COMPARISON_NAME: hashed_text({**asdict(comparison), SENTENCES: sentences}),
        MARKDOWN_NAME: markdown_text(comparison),
        HTML_NAME: html_text(comparison),
    }
    check_replaceable("--output_dir", output_dir, RESULT_NAMES)
    remedy = "Free disk space or choose another folder."
    for name, text in texts.items():
        with write_errors_explained(f"--output_dir {output_dir}: {name}", remedy):
            output_dir.mkdir(parents=True, exist_ok=True)
            write_text(output_dir / name, text)


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the page of a comparison, atomically.

    Raises:
        InputError: The file cannot be written, or is a result of a run or a comparison.
    """
    from ampft.comparison.report.html import html_text

    check_page_file("--output_file", path)
    with (
        write_errors_explained(f"--output_file {path}: the file", "Choose another path."),
        special_or_atomic_path(path) as temporary,
    ):
        write_text_non_atomically(temporary, html_text(comparison))


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

    def invalid(what: str) -> InputError:
        return InputError(f"COMPARISON {file}: {what} Repeat the comparison.")

    try:
        values, _ = read_hashed(file, SCHEMA, "Repeat the comparison.")
    except OSError as error:
        raise InputError(
            f"COMPARISON {file}: the file cannot be read ({error.strerror}). Give the --output_dir "
            f"of a comparison, which contains {COMPARISON_NAME}."
        ) from error
    except ValueError as error:
        raise invalid(f"the file is not as it was written ({error}).") from error
    values.pop(SENTENCES, None)
    try:
        comparison = from_json(Comparison, values, "comparison")
    except (ValueError, OverflowError) as error:
        raise invalid(f"the file is not a valid comparison ({error}).") from error
    if not comparison.arms:
        raise invalid("the comparison has no arms.")
    if not 0 < comparison.margin < 1:
        raise invalid(f"the margin is {comparison.margin:g}, but must be between 0 and 1.")
    try:
        for shown in (terminal_text, markdown_text, html_text):
            shown(comparison)
    except (ValueError, ArithmeticError, LookupError, TypeError, StopIteration) as error:
        contradiction = f"{type(error).__name__}: {error}"
        raise invalid(f"its values contradict each other ({contradiction}).") from error
    return comparison


def comparison_section(run: Path) -> str:
    """Return the section for a run in the folder of a finished comparison, otherwise "".

    It holds the verdicts and the table with intervals, in Markdown.

    Args:
        run: Output folder of the run.
    """
    runs = run.resolve().parent
    if runs.name != RUNS_NAME or not (runs.parent / COMPARISON_NAME).is_file():
        return ""
    comparison = read_comparison(runs.parent)
    blocks: list[Block | Section] = [
        Paragraph("This model is one run of a comparison."),
        Items(verdict_texts(comparison)),
        _notices(comparison),
        modes(without_incomplete_medians(comparison)),
    ]
    return f"## Comparison\n\n{markdown(blocks)}"


def _notices(comparison: Comparison, label: str = "note") -> Notices:
    return Notices("Before you rely on this", remark_texts(comparison.stamps), label)


def terminal_text(comparison: Comparison) -> str:
    """Return the table of modes, the stamps and the verdicts, with a trailing newline.

    Long text wraps. The table is wider only if the name of a mode is long. Control and direction
    characters are shown as escapes.
    """
    check_type("terminal_text", "comparison", comparison, Comparison)
    return f"{terminal(summary_blocks(comparison, '!'))}\n"


def summary_blocks(comparison: Comparison, label: str = "note") -> list[Block]:
    """Return the table of modes, the stamps and the verdicts.

    Args:
        label: Label of the stamps.
    """
    verdicts = verdict_texts(comparison)
    comparison = without_incomplete_medians(comparison)
    differing = settings(comparison)
    return [
        Paragraph(f"{comparison.title}: {evaluation_scope(comparison)}"),
        *([] if differing is None else [differing]),
        mode_table(comparison),
        _notices(comparison, label),
        *map(Paragraph, (answer_text(comparison), *verdicts)),
    ]


def mode_table(comparison: Comparison) -> Table:
    """Return one row per arm below two header rows, with what the columns mean."""
    columns = [column for column in arm_columns(comparison) if column.short is not None]
    upper, lower = zip(*(column.short for column in columns if column.short), strict=True)
    rows = [
        tuple((column.short_cell or column.cell)(arm) for column in columns)
        for arm in comparison.arms
    ]
    left = 2 if has_execution(comparison) else 1
    return Table(header=upper, rows=[lower, *rows], left=left, note=legend(comparison))


def legend(comparison: Comparison) -> str:
    """Return explanations of the columns, and reasons why modes are not faster."""
    reasons = [
        f"{arm.name}: {remark_text(arm.speed.reason)}."
        for arm in comparison.arms
        if arm.speed is not None and arm.speed.reason
    ]
    return " ".join([modes(comparison).note, *reasons])


def markdown_text(comparison: Comparison) -> str:
    """Return the comparison as Markdown with a trailing newline.

    The verdicts, the stamps and the table of modes come first. All other sections are in
    `<details>`, the only HTML elements. Names, labels and texts are inert.
    """
    answer, verdicts = answer_text(comparison), verdict_texts(comparison)
    comparison = without_incomplete_medians(comparison)
    blocks: list[Block | Section] = [
        Items(verdicts),
        _notices(comparison),
        *tables_of_arms(comparison).blocks,
        *sections(comparison, max_classes=MAX_CLASSES),
    ]
    heading = f"## {comparison.heading}: {prose(comparison.title)}\n\n"
    return f"{heading}{f'**{prose(answer)}**' if answer else ''}\n\n{markdown(blocks)}\n"
