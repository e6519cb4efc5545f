"""Terminal output: lines above a progress bar, wrapped text, and libraries kept quiet."""

from __future__ import annotations

import os
import sys
import textwrap
import warnings

WIDTH, INDENT = 100, 11


def print_line(text: str) -> None:
    """Print `text` on standard output, above any progress bar.

    If the reader of a pipe has closed it, as `head` does, output stops and the program continues.
    """
    from tqdm import tqdm

    try:
        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


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
