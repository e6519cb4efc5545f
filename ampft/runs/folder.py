"""The output folder of a run: one writer, and no file that is half written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from ampft.errors import InputError
from ampft.text.json_io import json_text
from ampft.files import try_lock, unlock

LOCK_NAME = ".lock"

# What a run writes about itself. Overwriting removes these and what the earlier run's record lists,
# its model among them, so that a folder never mixes two runs.
RESULT_FILES = (
    "run.json",
    "report.txt",
    "report.json",
    "predictions.parquet",
    "predictions_fp32.parquet",
    "history.jsonl",
    "history.csv",
    "README.md",
)


class RunFolder:
    """A folder with one writer: rank 0 of a run holds it from its start to its end.

    The lock is advisory (`flock` on `.lock`), ends with the process however it ends, and is not
    taken on Windows, which has no `flock`.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, overwrite: bool = False, keep: bool = False
    ) -> None:
        """Create the folder, lock it and, when overwriting, remove an earlier run's results.

        Args:
            path: The folder; created with its parents where it does not exist.
            overwrite: Whether a folder with files in it is taken. Files of other names stay.
            keep: Whether all files in it stay, as where a comparison goes on.

        Raises:
            InputError: When another process holds the folder, when it is not empty and
                `overwrite` is false, or when it cannot be made or written.
        """
        self.path = Path(path)
        overwrite = overwrite or keep
        check_output_folder(self.path, overwrite=overwrite)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock: int | None = _take_lock(self.path)
        except OSError as error:
            raise InputError(
                f"--output_dir {self.path}: cannot be written ({error.strerror}); "
                "name a folder that can be created and written"
            ) from error
        try:
            # Again, now that nobody else can write: another run may have come and gone between.
            _refuse_contents(self.path, overwrite=overwrite)
        except InputError:
            self.close()
            raise
        for name in () if keep else (*_files_of_record(self.path), *RESULT_FILES):
            (self.path / name).unlink(missing_ok=True)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def write_text(self, name: str, text: str) -> Path:
        """Write a text file whole or not at all, in UTF-8."""
        with atomic_path(self.path / name) as temporary:
            # surrogates cannot be encoded; what comes from outside may hold them
            temporary.write_bytes(text.encode("utf-8", "backslashreplace"))
        return self.path / name

    def write_json(self, name: str, value: object) -> Path:
        """Write JSON whole or not at all; non-finite numbers become null."""
        return self.write_text(name, json_text(value))

    def close(self) -> None:
        """Release the folder; calling twice is allowed."""
        if self._lock is None:
            return
        # Removed while still held: whoever opened it meanwhile sees that its file is gone.
        (self.path / LOCK_NAME).unlink(missing_ok=True)
        _release(self._lock)
        self._lock = None


def _files_of_record(folder: Path) -> list[str]:
    """Return the names of the files that an earlier run's record lists, none outside the folder."""
    try:
        names = json.loads((folder / "run.json").read_text(encoding="utf-8"))["files"]
        return [name for name in names if Path(name).name == name and (folder / name).is_file()]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def check_output_folder(path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Check that a run may write to `path`, without creating anything.

    Args:
        path: The folder; it need not exist.
        overwrite: Whether a folder with files in it is taken.

    Raises:
        InputError: As `RunFolder` does, but for rights to write.
    """
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output_dir {folder}: is a file; name a folder, new or empty")
    if (folder / LOCK_NAME).exists():
        _release(_take_lock(folder))
    _refuse_contents(folder, overwrite=overwrite)


def is_unwritable(error: BaseException) -> bool:
    """Say whether an error means that the disk is full or gone, from Python or from safetensors."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
    if isinstance(error, OSError):
        return error.errno in full
    by_safetensors = type(error).__name__ == "SafetensorError"
    return by_safetensors and any(os.strerror(number) in str(error) for number in full)


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path` that takes its place when the block ends well.

    The bytes are on the disk before the name is: data, rename and folder are each synced.

    Args:
        path: The final path; its folder exists.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_contents(folder: Path, *, overwrite: bool) -> None:
    if overwrite or not folder.is_dir():
        return
    found = sorted(entry.name for entry in folder.iterdir() if entry.name != LOCK_NAME)
    if found:
        shown = ", ".join(found[:3]) + (" and more" if len(found) > 3 else "")
        raise InputError(
            f"--output_dir {folder}: is not empty ({shown}); name a new or empty folder, or pass "
            "--overwrite_output_dir to replace the results in it"
        )


def _take_lock(folder: Path) -> int:
    while True:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(folder / LOCK_NAME, flags, 0o644)
        try:
            _lock_or_refuse(descriptor, folder)
        except BaseException:
            os.close(descriptor)
            raise
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), (folder / LOCK_NAME).stat()):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
                return descriptor
        # The holder removed the file between opening and locking it: lock the new one.
        os.close(descriptor)


def _lock_or_refuse(descriptor: int, folder: Path) -> None:
    if not try_lock(descriptor):
        holder = os.read(descriptor, 32).decode("ascii", "replace").strip() or "unknown"
        raise InputError(
            f"--output_dir {folder}: another run is writing to it (process {holder}); "
            "wait for it, end it, or name another folder"
        )


def _release(descriptor: int) -> None:
    unlock(descriptor)  # forked workers share the lock and may outlive the run
    os.close(descriptor)
