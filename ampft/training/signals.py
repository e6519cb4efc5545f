"""Signals that end a training from outside."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def raise_on_sigterm() -> Iterator[None]:
    """Make SIGTERM raise `SystemExit`, so that the end of the run is recorded."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)  # as shells count

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
