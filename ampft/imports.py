"""Faster imports: without a search for garbage, which modules do not leave."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_search_for_garbage(*, keeps_all: bool = False) -> Iterator[None]:
    """Do not look for unused cycles of objects while modules are imported: an eighth faster.

    Args:
        keeps_all: Whether nothing that exists at the end will be looked through later; for a
            command alone in its process.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if keeps_all:
            gc.freeze()
        if was_enabled:
            gc.enable()
