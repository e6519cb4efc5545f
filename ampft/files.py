"""Advisory locks of files, which end with the processes that hold them, however those end."""

from __future__ import annotations

import sys
from typing import BinaryIO


def try_lock(file: int | BinaryIO) -> bool:
    """Lock an open file, or its descriptor; tell whether nobody else holds it.

    On Windows, which has no `flock`, nothing is locked and nobody holds anything.
    """
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(file: int | BinaryIO) -> None:
    """Unlock a file; closing it is not enough where another process has inherited it."""
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)
