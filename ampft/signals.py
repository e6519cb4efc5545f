"""Signals that stop this process: heard at once, and never lost in a library."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

STOPPING = ("SIGINT", "SIGTERM", "SIGHUP")
# Files in which whatever is raised is swallowed, so that nothing is raised there.
_SWALLOWING = (
    "datasets/fingerprint.py", "dill/_dill.py", "multiprocess/__init__.py", "/weakref.py",
    "/_weakrefset.py",
)  # fmt: skip
_IMPORTING = "<frozen importlib._bootstrap>"
_SECONDS_BETWEEN_TRIES = 0.02


class StopRequested(Exception):
    """A process received a signal that asks it to stop; raised in all processes together."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = signal.Signals(number)

    def __str__(self) -> str:
        return self.signal.name


@dataclass
class _Heard:
    """What has been heard in this process."""

    number: int = 0  # Signal since the outermost `hearing` began; 0 for none.
    owns_files: bool = False  # Whether this process has files that it must remove at its end.


_heard = _Heard()


def note_own_files() -> None:
    """Note that this process has files that it must remove at its end."""
    _heard.owns_files = True


@contextlib.contextmanager
def handling(
    names: tuple[str, ...], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Handle signals inside this context; one that was ignored stays ignored, except SIGTERM.

    Only the main thread can receive signals; in any other, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = [getattr(signal, name) for name in names if hasattr(signal, name)]  # Windows lacks some
    previous = {number: signal.getsignal(number) for number in known}
    mine = [
        number
        for number, before in previous.items()
        if before is not None and (number == signal.SIGTERM or before != signal.SIG_IGN)
    ]
    for number in mine:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, previous[number])


@contextlib.contextmanager
def hearing(names: tuple[str, ...] = STOPPING, *, ends_imports: bool = False) -> Iterator[None]:
    """Raise as soon as a signal arrives, but not where a library would swallow it or abort.

    Args:
        ends_imports: Whether the process ends at once in an import, if it has no files yet that it
            must remove. Otherwise the signal is heard after the import.

    Raises:
        KeyboardInterrupt: SIGINT.
        SystemExit: Another signal; the exit code is 128 and its number, as shells count.
    """

    def hear(number: int, frame: FrameType | None) -> None:
        _heard.number = number
        inner = list(_frames(frame, outermost))
        is_importing = any(map(_imports_package, inner))
        if is_importing and ends_imports and not _heard.owns_files:
            if number == signal.SIGINT:
                os.write(2, b"\ninterrupted\n")
            os._exit(128 + number)
        if is_importing or any(map(_swallows, inner)):
            again = threading.Timer(_SECONDS_BETWEEN_TRIES, _thread.interrupt_main, (number,))
            again.daemon = True
            again.start()
        else:
            raise_if_heard()

    # Called by `with`, through contextlib. A program may call this while it is imported itself.
    outermost = sys._getframe(2)
    before, _heard.number = _heard.number, 0
    try:
        with handling(names, hear):
            yield
    finally:
        _heard.number = before


def _frames(frame: FrameType | None, outermost: FrameType) -> Iterator[FrameType]:
    while frame is not None and frame is not outermost:
        yield frame
        frame = frame.f_back


def _imports_package(frame: FrameType) -> bool:
    """Return whether a frame imports another package, which may be cut off only at its end.

    A library in C++ that is being loaded aborts if something is raised in it, and torch and numpy
    cannot be imported again.
    """
    code = frame.f_code
    if (code.co_filename, code.co_name) != (_IMPORTING, "_find_and_load"):
        return False
    return str(frame.f_locals["name"]).partition(".")[0] != "ampft"


def _swallows(frame: FrameType) -> bool:
    code = frame.f_code
    return code.co_name == "__del__" or code.co_filename.replace("\\", "/").endswith(_SWALLOWING)


def heard() -> int:
    """Return the number of the signal that was heard, 0 for none."""
    return _heard.number


def raise_if_heard() -> None:
    """Raise what `hearing` raises if a signal was heard and what it raised was swallowed."""
    if _heard.number == signal.SIGINT:
        raise KeyboardInterrupt
    if _heard.number:
        raise SystemExit(128 + _heard.number)


@contextlib.contextmanager
def deferred() -> Iterator[None]:
    """Hear signals that stop this process after the block."""
    received: list[int] = []
    try:
        with handling(STOPPING, lambda number, frame: received.append(number)):
            yield
    finally:
        for number in received:
            signal.raise_signal(number)
