"""Progress bars: shown on a terminal and in a notebook with ipywidgets, hidden elsewhere."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any


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
