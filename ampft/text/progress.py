"""Progress bars: shown on a terminal and in a notebook, hidden in logs."""

from __future__ import annotations

import sys
import warnings
from typing import Any


def progress_bar(*, shown: bool = True, **options: Any) -> Any:
    """Return a progress bar of tqdm; its attribute `disable` says whether it is hidden.

    Args:
        shown: Whether to show it on a terminal or in a notebook; elsewhere it is always hidden.
        options: Arguments of `tqdm.tqdm`.
    """
    if shown and in_notebook():
        with warnings.catch_warnings():
            # Without ipywidgets, tqdm says so, and shows a bar of characters.
            warnings.simplefilter("ignore")
            from tqdm.auto import tqdm
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
