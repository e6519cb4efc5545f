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
from typing import Any, TextIO

from ampft.signals import raise_if_heard
from ampft.text.escaping import printable

WIDTH, INDENT = 100, 11
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
    """Return a text whose lines of words fit into the terminal; tables stay as they are.

    Args:
        text: Lines, of which those after a label as `labelled` writes it may be continued.
        width: Columns; None for those of the terminal, or any number if output goes elsewhere.
    """
    if width is None:
        if not sys.stdout.isatty():
            return text
        width = shutil.get_terminal_size().columns
    lines: list[str] = []
    for line in text.splitlines():
        is_continued = line[:INDENT].isspace() and line[INDENT:] == line.lstrip()
        if is_continued and lines and _LABEL.match(lines[-1]):
            lines[-1] += f" {line.lstrip()}"
        else:
            lines.append(line)
    return "\n".join(_wrapped(line, width) for line in lines)


def _wrapped(line: str, width: int) -> str:
    """Return a line in as many as it needs, indented below its label; a row of a table whole."""
    start = INDENT if _LABEL.match(line) else 0
    if len(line) <= width or "  " in line[start:]:
        return line
    return "\n".join(
        textwrap.wrap(
            line, width, subsequent_indent=" " * start, break_long_words=False,
            break_on_hyphens=False,
        )
    )  # fmt: skip


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
