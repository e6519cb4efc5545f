"""Terminal output: progress bars, lines above them, wrapped text, quiet libraries."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import groupby, pairwise, zip_longest
from typing import Any, TextIO

from ampft.errors import check_type
from ampft.signals import raise_if_heard
from ampft.text.escaping import display_width, printable

WIDTH, INDENT = 100, 11
PARAGRAPH_WIDTH = 96  # columns of a paragraph in a terminal; fits into a window of 100
GAP = "  "  # between columns of a table
_LABEL = re.compile(rf"\w+ +(?<=^.{{{INDENT}}})\S")  # a word, padded to the indentation


def quiet_optional_packages() -> None:
    """Silence what packages that peft and transformers import say about this machine."""
    for name in ("bitsandbytes", "torchao"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("torch.utils._pytree").addFilter(_is_no_enumeration)


def _is_no_enumeration(record: logging.LogRecord) -> bool:
    # torchao registers its enumerations in a way that torch calls deprecated.
    return "is an Enum subclass" not in str(record.msg)


def print_line(text: str, *, file: TextIO | None = None) -> None:
    """Print `text` above any progress bar, without secrets and with hostile characters escaped.

    Args:
        file: Where to; None for standard output.

    If the reader of a pipe has closed it, as `head` does, output stops and the program continues.
    """
    check_type("print_line", "text", text, str)
    from tqdm import tqdm

    try:
        out = sys.stdout if file is None else file
        tqdm.write(printable(text), file=out)
        out.flush()
    except BrokenPipeError:
        discard_output()


def print_once(lines: Iterable[str]) -> None:
    """Print lines on the first of several processes, before these know each other."""
    if os.environ.get("RANK", "0") == "0":
        for line in lines:
            print_line(line)


def print_phase(text: str) -> None:
    """Print what the main process does next, so that a long start is not silent.

    A signal that a library has swallowed is heard here.
    """
    raise_if_heard()
    print_once([labelled("start", f"{text} ...")])


def discard_output() -> None:
    """Discard all further standard output, including the flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def labelled(label: str, *texts: str) -> str:
    """Return a line such as `device     CPU, 2 threads`; each further text starts a new line.

    Long texts wrap and stay indented. Words such as paths are never broken, so that they can be
    copied.
    """
    wrapper = textwrap.TextWrapper(
        WIDTH,
        initial_indent=" " * INDENT,
        subsequent_indent=" " * INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return label.ljust(INDENT) + "\n".join(map(wrapper.fill, texts))[INDENT:]


def fit_terminal(text: str, width: int | None = None) -> str:
    """Return a text that fits into the terminal: lines of words wrap, tables continue below.

    Args:
        text: Lines, of which those after a label as `labelled` writes it may be continued.
        width: Columns; None for those of the terminal, or any number if output goes elsewhere.
    """
    if width is None:
        if not sys.stdout.isatty():
            return text
        width = shutil.get_terminal_size().columns
    lines: list[str] = []
    before = ""
    for line in text.splitlines():
        is_labelled = bool(lines and _LABEL.match(lines[-1]))
        if (is_labelled and _is_below_label(line)) or _continues(before, line):
            lines[-1] += f" {line.lstrip()}"
        else:
            lines.append(line)
        before = line
    fitted: list[str] = []
    for is_table, group in groupby(lines, lambda line: GAP in line[_text_start(line) :]):
        together = [*group]
        if is_table:
            fitted += _folded(together, width)
        else:
            fitted += [_wrapped(line, width) for line in together]
    return "\n".join(fitted)


def _is_below_label(line: str) -> bool:
    return line[:INDENT].isspace() and line[INDENT:] == line.lstrip()


def _continues(before: str, line: str) -> bool:
    """Return whether a line of words goes on where the one before was full."""
    if GAP in before or GAP in line or not before or not line or line.startswith(" "):
        return False
    return display_width(f"{before} {line.split()[0]}") > PARAGRAPH_WIDTH


def _text_start(line: str) -> int:
    return INDENT if _LABEL.match(line) else 0


def _wrapped(line: str, width: int) -> str:
    """Return a line in as many as it needs, indented below its label."""
    if len(line) <= width:
        return line
    return "\n".join(
        textwrap.wrap(
            line, width, subsequent_indent=" " * _text_start(line), break_long_words=False,
            break_on_hyphens=False,
        )
    )  # fmt: skip


def _folded(rows: list[str], width: int) -> list[str]:
    """Return the rows of a table in parts that fit, each with the first column.

    Columns are found by the gaps between them, which all rows share. A single row is no table.
    """
    if len(rows) == 1 or all(display_width(row) <= width for row in rows):
        return rows
    cells = [*zip_longest(*map(_terminal_cells, rows), fillvalue=" ")]  # by place on the terminal
    is_gap = [all(cell == " " for cell in place) for place in cells]
    starts = [
        i for i, gap in enumerate(is_gap) if not gap and all(is_gap[max(i - len(GAP), 0) : i])
    ]
    columns = []
    for start, end in pairwise([*starts, len(cells)]):
        stop = max(i for i in range(start, end) if not is_gap[i]) + 1
        columns.append(
            (stop - start, ["".join(row) for row in zip(*cells[start:stop], strict=True)])
        )
    (first_width, first), *others = columns
    parts, used = [[first]], first_width
    for column_width, column in others:
        if used + len(GAP) + column_width > width and len(parts[-1]) > 1:
            parts.append([first])
            used = first_width
        parts[-1].append(column)
        used += len(GAP) + column_width
    lines: list[str] = []
    for part in parts:
        if lines:
            lines.append("")
        lines += [GAP.join(row).rstrip() for row in zip(*part, strict=True)]
    return lines


def _terminal_cells(text: str) -> list[str]:
    """Return what stands at each place on a terminal: a wide character takes two."""
    cells: list[str] = []
    for character in text:
        taken = display_width(character)
        if taken == 0 and cells:
            cells[-1] += character
        else:
            cells += [character, *[""] * (taken - 1)]
    return cells


def quiet_libraries() -> None:
    """Silence third-party output that a user of a recipe cannot act on.

    Progress bars of `datasets` remain if stderr is a terminal. Errors are not affected.
    """
    import datasets
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.logging.set_verbosity_error()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    # These warnings are about how ampft uses a library, never about the user's settings.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    warnings.filterwarnings("ignore", category=FutureWarning, module="(transformers|datasets)")


def progress_bar(*, shown: bool = True, **options: Any) -> Any:
    """Return a progress bar of tqdm; its attribute `disable` says whether it is hidden.

    Args:
        shown: Whether to show it on a terminal or in a notebook with ipywidgets; elsewhere it is
            always hidden.
        options: Arguments of `tqdm.tqdm`.
    """
    if shown and in_notebook():
        # Without ipywidgets, a bar of characters would be a new line of errors at each update.
        shown = find_spec("ipywidgets") is not None
        if shown:
            from tqdm.notebook import tqdm

            return tqdm(**options)
    from tqdm import tqdm as bar_of_characters

    # With None, tqdm shows the bar only on a terminal.
    disable = None if shown else True
    return bar_of_characters(disable=disable, file=sys.stderr, dynamic_ncols=True, **options)


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and "IPKernelApp" in shell.config
