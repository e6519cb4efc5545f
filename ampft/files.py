"""Atomic and temporary files, and checks of folders, disk space and errors of the file system."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from ampft.errors import InputError
from ampft.text.json_io import (
    JSONValue,
    check_schema,
    json_text,
    json_values,
    parse_json_object,
    values_hash,
)
from ampft.text.numbers import byte_sizes

# Checkpoints, records and results change the disk only through `write`, `sync`, `rename`, `link`
# and `remove`, so that a test can count these calls and make any of them fail.


def write(file: IO[bytes], data: bytes | memoryview) -> None:
    """Write `data` to an open file."""
    file.write(data)


def sync(path: Path) -> None:
    """Wait until the contents of a file, or the entries of a folder, are on the disk."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename a file or a folder.

    A file replaces `target` if it exists; for a folder, `target` must not exist.
    """
    source.replace(target)


def link(source: Path, target: Path) -> None:
    """Make `target` another name of the file `source`, or a copy where that is not possible."""
    try:
        target.hardlink_to(source)
    except OSError:  # the file system has no links, or `source` is on another one
        shutil.copyfile(source, target)
        sync(target)


def remove(path: Path) -> None:
    """Remove a file, or an empty folder."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


@dataclass(frozen=True, kw_only=True)
class FileDigest:
    """The SHA-256 of the contents of a file, and their number of `bytes`."""

    sha256: str
    bytes: int


def describe_file(path: Path) -> FileDigest:
    """Return the SHA-256 and the size of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return FileDigest(sha256=digest, bytes=file.tell())


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileDigest:
    """Write a new file, wait until it is on the disk, and return hash and size of its contents.

    Args:
        path: Path of the file, which no reader looks at yet.
    """
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        for chunk in chunks:
            write(file, chunk)
            digest.update(chunk)
            size += len(chunk)
    sync(path)
    return FileDigest(sha256=digest.hexdigest(), bytes=size)


def is_begun_file(path: Path) -> bool:
    """Return whether a path has a name that `atomic_path` gives to a file before it is whole."""
    return re.fullmatch(r"\.[0-9a-f]{16}\.tmp", path.name) is not None


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path` that replaces it if the block ends without an error.

    The data are written to the disk before the file is renamed: file and folder are both synced.
    The temporary file has a random name and is created by this call. If the process is killed, it
    remains.

    Args:
        path: Final path, in an existing folder. A symbolic link is replaced, not followed.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")  # short: names have a limit
    temporary.open("xb").close()
    try:
        yield temporary
        durably_rename(temporary, path)
    except OSError as error:
        if error.filename == str(temporary):  # a message shows the user's name
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def special_or_atomic_path(path: Path) -> Iterator[Path]:
    """Yield a path for an output that the user named.

    A device or a pipe is written directly. A file is written as by `atomic_path`.

    Raises:
        InputError: The disk is full or fails, or the path is a symbolic link.
    """
    remedy = "Free disk space, or choose a path on another disk."
    refuse_link(path)
    with write_errors_explained(f"{path}: the file", remedy, disk_only=True):
        if path.exists() and not path.is_file():
            yield path
            return
        with atomic_path(path.absolute()) as temporary:
            yield temporary


@contextlib.contextmanager
def write_errors_explained(what: str, remedy: str, *, disk_only: bool = False) -> Iterator[None]:
    """Turn an error of writing into one message: "WHAT cannot be written (REASON). REMEDY".

    Args:
        what: What is written, such as "--output_dir runs/a: the folder".
        remedy: What the user can do, in a sentence.
        disk_only: Whether only a full or failing disk is meant, because reading may fail, too.

    Raises:
        InputError: It could not be written.
    """
    try:
        yield
    except Exception as error:
        if not (is_disk_error(error) if disk_only else isinstance(error, OSError)):
            raise
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{what} cannot be written ({reason}). {remedy}") from error


def durably_rename(source: Path, target: Path) -> None:
    """Rename a file of the same file system, replacing `target`, and sync file and folder."""
    sync(source)
    rename(source, target)
    sync(target.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8, with lone surrogates escaped."""
    with atomic_path(path) as temporary:
        write_text_non_atomically(temporary, text)


def write_text_non_atomically(path: Path, text: str) -> None:
    """Write a text file in place, encoded as by `write_text`; for files that nobody reads yet."""
    with path.open("wb") as file:
        write(file, text.encode("utf-8", "backslashreplace"))


def set_default_permissions(path: Path) -> None:
    """Give a file the permissions that the user's umask gives to new files.

    safetensors makes its files readable only by their owner.
    """
    mask = os.umask(0o077)  # it can only be read by setting it
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def is_safe_relative_path(name: str) -> bool:
    """Return whether a path that a file names is relative and stays in the folder of the file."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and bool(path.parts)


def nearest_existing(path: Path) -> Path:
    """Return `path`, or the nearest of its parents that exists."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.exists())


def check_disk_space(folder: Path, needed: int, purpose: str, *, reclaimable: int = 0) -> None:
    """Check that files fit on the disk of the output folder, before they are written.

    Args:
        folder: Output folder, which need not exist.
        needed: Size of the files in bytes.
        purpose: What the files are for, such as "saving the model".
        reclaimable: Size in bytes of files that will be removed first.

    Raises:
        InputError: They do not fit.
    """
    free = shutil.disk_usage(nearest_existing(folder)).free + reclaimable
    if needed > free:
        needs, has = byte_sizes(needed, free)
        raise InputError(
            f"--output_dir {folder}: {purpose} needs {needs} of disk space, and {has} is free. "
            "Free disk space, or choose a folder on another disk."
        )


def is_writable_folder(folder: Path) -> bool:
    """Return whether this user can create files in `folder`."""
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def is_disk_error(error: BaseException) -> bool:
    """Return whether an error of Python, pyarrow or safetensors means a full or failing disk."""
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
    if isinstance(error, OSError) and error.errno in codes:
        return True
    # Other libraries put the system's message into their own errors.
    is_wrapped = isinstance(error, OSError) or type(error).__name__ == "SafetensorError"
    return is_wrapped and any(os.strerror(code) in str(error) for code in codes)


def is_path_error(error: BaseException) -> bool:
    """Return whether an error means that a path cannot be used, such as a name that is too long."""
    codes = (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.EPERM)
    if isinstance(error, ValueError):
        return "embedded null" in str(error)
    return isinstance(error, OSError) and error.errno in codes


_HASH = "sha256"
SAME, CHANGED, GONE = "unchanged", "changed", "gone"
STATES = {SAME: "is unchanged", CHANGED: "was changed since it was read", GONE: "is gone"}


def hashed_values(value: object) -> dict[str, JSONValue]:
    """Return a dataclass or a mapping as JSON values, the last of them their own hash."""
    values = cast("dict[str, JSONValue]", json_values(value))
    return {**values, _HASH: values_hash(values)}


def hashed_text(value: object) -> str:
    """Return a manifest, record or entry as JSON text that states its own hash."""
    return json_text(hashed_values(value))


def read_hashed(
    path: Path, schema: int | None = None, remedy: str = ""
) -> tuple[dict[str, Any], str]:
    """Read what `hashed_text` wrote.

    Args:
        schema: Expected version of its layout; None for any.
        remedy: Sentence for a file of another version.

    Returns:
        The values, and their hash.

    Raises:
        InputError: The file has the layout of another version.
        OSError: It cannot be read.
        ValueError: It is a link, or not as it was written.
    """
    if path.is_symlink():
        raise ValueError("it is a link")
    content = path.read_bytes()
    values = parse_json_object(content)
    if schema is not None:
        check_schema(path, values, schema, remedy)
    stored = values.pop(_HASH, None)
    if stored != values_hash(values) or not content.endswith(b"}\n"):
        raise ValueError("its values do not have the hash that it states")
    return values, str(stored)


@dataclass(frozen=True, kw_only=True)
class Sealed:
    """A folder with a manifest over a closed set of files.

    Nothing in it may be added, missing, changed, or reached through a link.
    """

    folder: Path
    manifest: str  # Name of the file that lists the others.
    files: Mapping[str, FileDigest]  # Hash and size of every other file, by relative path.
    event: str  # What the files were written by, as it follows "after": "the run".
    remedy: str  # What to do about a folder that is not as it was, in a sentence.
    # Function that returns whether a name belongs to the closed set: of a run, the names that it
    # writes or loads, because users may keep other files beside them.
    belongs: Callable[[str], bool] = lambda name: True
    error: type[InputError] = InputError  # What `check` raises.

    def names(self) -> set[str]:
        """Return the names that are listed, and those that belong to the set and exist."""
        found = set(self.files)
        for place, folders, files in os.walk(self.folder):
            inner = Path(place).relative_to(self.folder)
            links = [name for name in folders if Path(place, name).is_symlink()]
            found |= {(inner / name).as_posix() for name in (*files, *links)}
            if not folders and not files and place != str(self.folder):
                found.add(inner.as_posix())
        own = {name for name in found if name in self.files or self.belongs(name)}
        return own - {self.manifest}

    def faults(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, str]]:
        """Yield names with what is wrong with them, as it follows "the file".

        Args:
            names: Names that are about to be read, whether they exist or not; None for all.
        """
        wanted = self.names() if names is None else set(names) - {self.manifest}
        for name in sorted(wanted, key=lambda name: (name not in self.files, name)):
            if problem := self._problem(name):
                yield name, problem

    def _problem(self, name: str) -> str | None:
        path = self.folder / name
        if not is_safe_relative_path(name):
            return "is outside the folder"
        if is_link(self.folder, name):
            return "is a link, or reached through one"
        if name not in self.files:
            return f"was added after {self.event}" if os.path.lexists(path) else None
        if not path.is_file():
            return "is missing"
        return (
            None if describe_file(path) == self.files[name] else f"was changed after {self.event}"
        )

    def check(self, names: Iterable[str] | None = None) -> None:
        """Check that files are as they were written.

        Args:
            names: Names that are about to be read, whether they exist or not; None for all.

        Raises:
            InputError: One is not, or was added; the message names it.
        """
        for name, problem in self.faults(names):
            raise self.error(
                f"{self.folder / name}: the file {problem}, according to the {self.manifest} next "
                f"to it. {self.remedy}"
            )

    def file(self, name: str) -> Path:
        """Return the path of a listed file, which is as it was written.

        Raises:
            InputError: It is not, or it is not listed.
        """
        self.check([name])
        if name not in self.files:
            raise self.error(
                f"{self.folder / name}: the file is not listed in the {self.manifest} next to it. "
                f"{self.remedy}"
            )
        return self.folder / name


@dataclass(frozen=True)
class Recorded:
    """A file that an earlier command read, and the hash of what it read."""

    path: Path
    sha256: str

    @property
    def state(self) -> str:
        """`SAME`, `CHANGED` or `GONE`."""
        try:
            return SAME if describe_file(self.path).sha256 == self.sha256 else CHANGED
        except OSError:
            return GONE

    def file(self) -> Path:
        """Return the path of the file, which is what was read.

        Raises:
            InputError: It was changed, or it is gone.
        """
        state = self.state
        if state != SAME:
            raise InputError(f"{self.path}: the file {STATES[state]}. Restore it from a copy.")
        return self.path


def refuse_link(path: Path, flag: str = "") -> None:
    """Check that an output that the user named is not a symbolic link to a file or a folder.

    The folders above it may be links. So may the path itself to a device or a pipe, such as
    /dev/stdout.

    Raises:
        InputError: It is a link, even one to nothing.
    """
    if path.is_symlink() and (path.is_file() or path.is_dir() or not path.exists()):
        raise InputError(
            f"{flag} {path}: this is a symbolic link to {os.path.realpath(path)}, and nothing is "
            "written through a link. Pass the path that it leads to, or another one.".lstrip()
        )


def is_link(folder: Path, name: str) -> bool:
    """Return whether a path in a folder is, or leads through, a symbolic link."""
    path = folder / name
    inside = [part for part in (path, *path.parents) if part.is_relative_to(folder)]
    return any(part.is_symlink() for part in inside if part != folder)
