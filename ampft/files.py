"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that replaces it when the block ends without an error.

    The data reach the disk before the name does: file, rename and folder are each synced.

    Args:
        path: Final path; its folder exists.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all, in UTF-8; lone surrogates become escapes."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))


def nearest_existing(path: Path) -> Path:
    """Return `path`, or the nearest of its parents that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


def is_writable_folder(folder: Path) -> bool:
    """Return whether this user can create files in `folder`."""
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def is_unwritable(error: BaseException) -> bool:
    """Return whether an error of Python or safetensors means that the disk is full or gone."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
    if isinstance(error, OSError):
        return error.errno in full
    by_safetensors = type(error).__name__ == "SafetensorError"
    return by_safetensors and any(os.strerror(number) in str(error) for number in full)


def _sync(path: Path) -> None:
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
