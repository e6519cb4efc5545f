"""Signals that end a training from outside."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def raise_on_termination() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise `SystemExit`, so that the end of the run is recorded.

    SIGHUP, which a closed terminal sends, stays ignored under `nohup`. Only the main thread can
    receive signals; in any other, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)  # as shells count

    numbers = [signal.SIGTERM, *filter(None, [getattr(signal, "SIGHUP", None)])]
    previous = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if number == signal.SIGTERM or previous[number] != signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, previous[number])
