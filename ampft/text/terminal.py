"""Lines for a person: above a progress bar, and without harm when nobody reads any more."""

from __future__ import annotations

import os
import sys
import textwrap

WIDTH, INDENT = 100, 11


def tell(text: str) -> None:
    """Print `text` on standard output, above any progress bar.

    A reader that went away, such as `head`, ends the output and not the training.
    """
    from tqdm import tqdm

    try:
        tqdm.write(text, file=sys.stdout)
        sys.stdout.flush()
    except BrokenPipeError:
        output_to_nowhere()


def output_to_nowhere() -> None:
    """Let standard output lead nowhere from now on, the flush at exit included."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def said(name: str, *texts: str) -> str:
    """Return a line such as `device     CPU, 2 threads`; long and further texts hang below it."""
    # A path stays in one piece, so that it can be copied.
    wrapper = textwrap.TextWrapper(
        WIDTH,
        initial_indent=" " * INDENT,
        subsequent_indent=" " * INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return name.ljust(INDENT) + "\n".join(map(wrapper.fill, texts))[INDENT:]
