"""Writes files atomically, and checks folders and errors of the file system."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path` that replaces it if the block ends without an error.

    The data are written to the disk before the file is renamed: file and folder are both synced.

    Args:
        path: Final path, in an existing folder. A symbolic link is replaced, not followed.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        yield temporary
        durably_rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def special_or_atomic_path(path: Path) -> Iterator[Path]:
    """Yield a path for an output that the user named.

    A device or a pipe is written directly. A file is written as by `atomic_path`; if `path` is a
    symbolic link, the link is kept and its target replaced.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    with atomic_path(path.resolve()) as temporary:
        yield temporary


def durably_rename(source: Path, target: Path) -> None:
    """Rename a file of the same file system, replacing `target`, and sync file and folder."""
    _sync(source)
    source.replace(target)
    _sync(target.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8, with lone surrogates escaped."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))


def set_default_permissions(path: Path) -> None:
    """Give a file the permissions that the user's umask gives to new files.

    safetensors makes its files readable only by their owner.
    """
    mask = os.umask(0o077)  # it can only be read by setting it
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def is_inside(name: str) -> bool:
    """Return whether a path that was read from a file stays in the folder of that file."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)


def nearest_existing(path: Path) -> Path:
    """Return `path`, or the nearest of its parents that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


def is_writable_folder(folder: Path) -> bool:
    """Return whether this user can create files in `folder`."""
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def is_disk_error(error: BaseException) -> bool:
    """Return whether an error of Python, pyarrow or safetensors means a full or failing disk."""
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
    if isinstance(error, OSError) and error.errno in codes:
        return True
    # Other libraries put the system's message into errors of their own.
    is_wrapped = isinstance(error, OSError) or type(error).__name__ == "SafetensorError"
    return is_wrapped and any(os.strerror(code) in str(error) for code in codes)


def is_path_error(error: BaseException) -> bool:
    """Return whether an error means that a path cannot be used, such as a name that is too long."""
    codes = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM)
    if isinstance(error, ValueError):
        return "embedded null" in str(error)
    return isinstance(error, OSError) and error.errno in codes


def _sync(path: Path) -> None:
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
