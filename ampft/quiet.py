"""Silence of the libraries around a run."""

from __future__ import annotations

import os
import sys
import warnings


def quiet_libraries() -> None:
    """Silence what third parties print that a user of a recipe can do nothing about.

    Progress bars of `datasets` stay where stderr is a terminal. Errors are not touched.
    """
    import datasets
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.logging.set_verbosity_error()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    # Each is about this library's own use of another, never about the user's settings.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    warnings.filterwarnings("ignore", category=FutureWarning, module="(transformers|datasets)")
