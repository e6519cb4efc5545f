"""Lines for a person: above a progress bar, and without harm when nobody reads any more."""

from __future__ import annotations

import os
import sys


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
