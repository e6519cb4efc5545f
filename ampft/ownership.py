"""What this program may remove or replace: what carries its token, never what has a familiar name.

A folder belongs to this program if it contains a file with a random token and with the folder's
name, which only its creator writes, and only into a new folder. A copy under another name, a link
to such a folder and a folder with the usual files in it do not.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from filelock import lock_descriptor, unlock_descriptor

from ampft.errors import InputError
from ampft.files import is_begun_file, refuse_link, remove, rename, sync, write
from ampft.signals import deferred, note_own_files
from ampft.text.json_io import read_json_object

OWNER_NAME = ".ampft-owner"
PRIVATE_NAME = ".ampft-run"
_TEXT = "ampft created this folder\nname {}\ntoken {}\n"
_OWNER = re.compile(_TEXT.format("(.+)", "([0-9a-f]{32})"))
_MAX_BYTES = 1024  # of the file with the token, which is shorter


def new_token() -> str:
    """Return a random token."""
    return secrets.token_hex(16)


def write_token(folder: Path, token: str, name: str | None = None) -> None:
    """Write the token into a folder; an existing file is never replaced.

    Args:
        folder: Folder that this process has just created.
        name: Name that the folder will get, if it is not its name yet.

    Raises:
        FileExistsError: The folder already contains a file of that name.
    """
    note_own_files()
    with (folder / OWNER_NAME).open("xb") as file:
        write(file, _TEXT.format(name or folder.name, token).encode())
    sync(folder / OWNER_NAME)


def read_token(folder: Path, name: str | None = None) -> str | None:
    """Return the token in a folder; None for a link, or if this program did not create the folder.

    Args:
        folder: Folder, which need not exist.
        name: Name that the token must state, if it is not the name of the folder.
    """
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if is_plain_folder(folder) and is_plain_file(folder / OWNER_NAME):
            with (folder / OWNER_NAME).open("rb") as file:
                match = _OWNER.fullmatch(file.read(_MAX_BYTES).decode())
            if match and match[1] == (name or folder.name):
                return match[2]
    return None


def is_torn_token(path: Path) -> bool:
    """Return whether a file is the beginning of a token, whose process was killed meanwhile."""
    if not is_plain_file(path) or path.stat().st_size > _MAX_BYTES:
        return False
    start, content = _TEXT.partition("{}")[0].encode(), path.read_bytes()
    is_begun = content.startswith(start) or start.startswith(content)
    return is_begun and not _OWNER.fullmatch(content.decode(errors="replace"))


def is_plain_folder(path: Path) -> bool:
    """Return whether a path is a folder and not a symbolic link to one."""
    return path.is_dir() and not path.is_symlink()


def is_plain_file(path: Path) -> bool:
    """Return whether a path is a regular file and not a symbolic link to one."""
    return path.is_file() and not path.is_symlink()


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode numbers of a file; None if it is missing."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


class PrivateFolder:
    """The hidden folder of a running program in its output folder, which it locks.

    It holds files that are not results yet, under names with the token. The lock is advisory; the
    system releases it when the process ends for any reason.
    """

    def __init__(self, output_dir: Path) -> None:
        """Create the folder, or take over the folder of a killed run, and lock it.

        Raises:
            BlockingIOError: Another process has locked it.
            InputError: A file, link or folder of the user has its name.
            OSError: It cannot be created.
        """
        self.path = output_dir / PRIVATE_NAME
        self._descriptor: int | None = None
        while self._descriptor is None:
            if not os.path.lexists(self.path):
                _create(self.path)
            self._descriptor = _locked_owner(self.path)
        try:
            token = read_token(self.path)
            assert token is not None, "it is locked"
            self.token = token
            self.clear()
            self.file("process").write_text(f"{os.getpid()}\n")
        except BaseException:
            self.close()
            raise

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder.

        Raises:
            InputError: The folder was replaced during the run.
        """
        return private_file(self.path.parent, name, token=self.token)

    def is_intact(self) -> bool:
        """Return whether the folder is still the one that this object created."""
        return read_token(self.path) == self.token

    def clear(self) -> None:
        """Remove all files with the token in their names and files that a kill left unfinished."""
        if self.is_intact():
            for entry in list(self.path.iterdir()):
                if self.token in entry.name or is_begun_file(entry):
                    remove_tree(entry)

    def close(self, *, keep: bool = False) -> None:
        """Release the lock and, unless its files are to be kept, remove the folder."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        # Removed before the release: another process detects that what it waits for is gone.
        with contextlib.suppress(OSError):
            if not keep and self.is_intact():
                self.clear()
                if [entry.name for entry in self.path.iterdir()] == [OWNER_NAME]:
                    hidden = _unfinished(self.path, self.token)
                    rename(self.path, hidden)  # it is never visible without its token
                    _remove_marked(hidden)
        unlock_descriptor(descriptor)
        os.close(descriptor)


def private_file(output_dir: Path, name: str, *, token: str | None = None) -> Path:
    """Return the path of a file with the token in its name, in the private folder of a run.

    All processes of the run may call it.

    Raises:
        InputError: The folder was replaced or removed during the run.
    """
    found = read_token(output_dir / PRIVATE_NAME)
    if found is None or token not in (None, found):
        raise InputError(
            f"--output_dir {output_dir}: another program removed or replaced {PRIVATE_NAME} during "
            "the run. Let nothing else write into this folder."
        )
    stem, dot, suffix = name.partition(".")
    return output_dir / PRIVATE_NAME / f"{stem}-{found}{dot}{suffix}"


def check_unlocked(output_dir: Path) -> None:
    """Check that no run has locked an output folder, without changing anything.

    Raises:
        BlockingIOError: Another process has locked it.
        InputError: A file, link or folder of the user has the name of the private folder.
    """
    path = output_dir / PRIVATE_NAME
    if os.path.lexists(path) and (descriptor := _locked_owner(path)) is not None:
        unlock_descriptor(descriptor)
        os.close(descriptor)


def lock_holder_pid(output_dir: Path) -> str:
    """Return the process id of the run that has locked an output folder, or "unknown"."""
    try:
        return private_file(output_dir, "process").read_text().strip() or "unknown"
    except (OSError, InputError):  # it has just ended
        return "unknown"


def is_leftover(path: Path) -> bool:
    """Return whether an entry of an output folder is a private folder, or an unfinished one."""
    return (path.name == PRIVATE_NAME and read_token(path) is not None) or _is_unfinished(path)


def remove_unfinished(output_dir: Path) -> None:
    """Remove private folders that killed processes had not finished creating."""
    for path in list(output_dir.iterdir()):
        if _is_unfinished(path):
            # Renamed first: if its process is alive, it fails to rename it, rather than to publish
            # a folder that has just lost its token.
            hidden = _unfinished(output_dir / PRIVATE_NAME, new_token())
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                rename(path, hidden)
                _remove_marked(hidden)


def _is_unfinished(path: Path) -> bool:
    """Return whether a folder has the name of an unfinished private folder and nothing foreign."""
    match = re.fullmatch(rf"{re.escape(PRIVATE_NAME)}\.tmp-([0-9a-f]{{32}})", path.name)
    if not match or not is_plain_folder(path):
        return False
    try:
        if {entry.name for entry in path.iterdir()} - {OWNER_NAME}:
            return False
        text = (path / OWNER_NAME).read_bytes() if is_plain_file(path / OWNER_NAME) else b""
    except FileNotFoundError:  # its process is alive
        return False
    return _TEXT.format(PRIVATE_NAME, match[1]).encode().startswith(text)


def remove_tree(path: Path) -> None:
    """Remove a file, a link, or a folder with its contents; no link is followed."""
    if is_plain_folder(path):
        shutil.rmtree(path)
    else:
        remove(path)


def _create(path: Path) -> None:
    """Create a private folder that is never visible under its name without its token."""
    token = new_token()
    temporary = _unfinished(path, token)
    temporary.mkdir()
    try:
        write_token(temporary, token, path.name)
        if not os.path.lexists(path):
            rename(temporary, path)
    except FileNotFoundError:  # the process with the lock took it for abandoned
        pass
    except OSError:
        if not os.path.lexists(path):  # otherwise, another process was faster
            raise
    finally:
        _remove_marked(temporary)


def _unfinished(path: Path, token: str) -> Path:
    return path.with_name(f"{path.name}.tmp-{token}")


def _remove_marked(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # another process removes it
        remove(folder / OWNER_NAME)
        remove(folder)


def _locked_owner(path: Path) -> int | None:
    """Return the locked descriptor of the token in a private folder; None if it has just gone.

    Raises:
        BlockingIOError: Another process has locked it.
        InputError: The folder is not one that this program created.
    """
    owner = path / OWNER_NAME
    if read_token(path) is None:
        if not os.path.lexists(path):
            return None
        raise InputError(
            f"--output_dir {path.parent}: {path.name} was not created by this program, which "
            "needs this name. Move it, or choose another folder."
        )
    try:
        descriptor = os.open(owner, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        return None
    is_locked = False
    try:
        is_locked = lock_descriptor(descriptor, blocking=False)
        if not is_locked:
            raise BlockingIOError(str(path))
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), owner.lstat()):
                return descriptor
        is_locked = False  # its holder removed it in the meantime
        return None
    finally:
        if not is_locked:
            os.close(descriptor)


@functools.cache  # once per process: one that trains often would look at all its own each time
def _remove_left(place: Path, prefix: str, process: int) -> None:
    """Remove the temporary folders of processes that were killed."""
    for folder in place.glob(f"{prefix}*"):
        with contextlib.suppress(OSError, InputError):  # another thread or process removes it
            # The lock fails if its process is alive.
            if read_token(folder) is not None and (lock := _locked_owner(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


class TemporaryFolder:
    """A new folder `ampft-PURPOSE-*`, removed at the end of a `with` block or of this process.

    `TMPDIR` sets its place. The first in a process removes those that killed processes left. A
    process that inherits `descriptor` keeps the lock, so that the folder stays until it has ended.
    """

    def __init__(self, purpose: str, place: Path | None = None) -> None:
        """Create the folder.

        Args:
            place: Folder for it, in which it is hidden; None for that of temporary files.

        Raises:
            OSError: It cannot be created, as on a full disk.
        """
        prefix = f"{'' if place is None else '.'}ampft-{purpose}-"
        place = Path(tempfile.gettempdir()) if place is None else place
        _remove_left(place, prefix, os.getpid())
        self._token = new_token()
        self.path = place / f"{prefix}{self._token}"
        new = self.path.with_name(f"{self.path.name}.tmp")
        self._process = os.getpid()
        with deferred():  # a signal is heard once the folder will be removed
            new.mkdir(mode=0o700)
            try:
                write_token(new, self._token, self.path.name)
                self.descriptor = os.open(new / OWNER_NAME, os.O_RDWR)
                lock_descriptor(self.descriptor, blocking=False)  # before others can find it
                rename(new, self.path)
            except BaseException:  # a full disk
                shutil.rmtree(new, ignore_errors=True)
                raise
            atexit.register(self.remove)

    def __enter__(self) -> Path:
        """Return a folder in it that is empty."""
        empty = self.path / "files"
        empty.mkdir()
        return empty

    def __exit__(self, *error: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove the folder, unless this process is a fork of the one that created it."""
        with deferred():
            atexit.unregister(self.remove)
            if self._process == os.getpid() and read_token(self.path) == self._token:
                shutil.rmtree(self.path, ignore_errors=True)
                os.close(self.descriptor)


def temporary_folder(purpose: str) -> Path:
    """Return a new folder, which is removed when the process ends; see `TemporaryFolder`."""
    return TemporaryFolder(purpose).path


# The records of a run and of a comparison, which list or hash what lies beside and below them.
_RECORD_NAMES = ("run.json", "plan.json", "comparison.json")
_PAGE_MARK = b'<meta name="generator" content="ampft">'
_PAGE_HEAD = 4096  # bytes of a page that contain the mark


def check_output_file(flag: str, path: Path) -> None:
    """Check that a file that the user asks for is in a folder, and replaces no result.

    Args:
        flag: Flag that received the path.
        path: File to be written; an existing one is replaced unless it belongs to a run or to a
            comparison.

    Raises:
        InputError: It is a folder or a link, its folder does not exist, or it is a file of a run or
            of a comparison, other than a page that this program wrote.
    """
    refuse_link(path, flag)
    if path.is_dir():
        raise InputError(f"{flag} {path}: this is a folder. Choose a file.")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{flag} {path}: its folder does not exist. Create it first.")
    target = path.resolve()
    # A checkpoint's files are three levels below the folder of their run.
    holders = [f for f in target.parents[:3] if any((f / n).is_file() for n in _RECORD_NAMES)]
    if target.exists() and holders and not _is_own_page(target):
        raise InputError(
            f"{flag} {path}: this file exists in {holders[0]}, which holds the results of a run or "
            "of a comparison. Choose another file."
        )


def check_page_file(flag: str, path: Path) -> None:
    """Check as `check_output_file` does that a page can be written, which replaces only a page.

    Raises:
        InputError: The path cannot be written, or holds a file that is not an ampft page.
    """
    check_output_file(flag, path)
    if path.is_file() and path.stat().st_size and not _is_own_page(path):
        raise InputError(
            f"{flag} {path}: this file exists and is not a page of this program. Choose another "
            "file, or remove it."
        )


def check_replaceable(flag: str, folder: Path, names: Sequence[str]) -> None:
    """Check that files with the names of results in a folder were written by this program.

    A page says so itself; JSON has the version of its layout, and also proves what has its name and
    another ending.

    Args:
        folder: Folder, which need not exist.

    Raises:
        InputError: The folder or one of the files is a link, or a file is somebody else's.
    """
    refuse_link(folder, flag)
    for path in (folder / name for name in names):
        is_own = is_plain_file(path) and (
            _is_own_page(path) or _has_layout(path.with_suffix(".json"))
        )
        if os.path.lexists(path) and not is_own:
            raise InputError(
                f"{flag} {folder}: {path.name} exists there and was not written by this program. "
                "Choose another folder."
            )


def _is_own_page(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return _PAGE_MARK in file.read(_PAGE_HEAD)
    return False


def _has_layout(path: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return is_plain_file(path) and isinstance(read_json_object(path).get("schema"), int)
    return False
