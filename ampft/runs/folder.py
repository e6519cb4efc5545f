"""The output folder of a run: it has one writer, and its files are written atomically."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from filelock import FileLock, Timeout

from ampft.arguments import ClassifyArguments
from ampft.data.sources.file_names import data_stem
from ampft.errors import InputError
from ampft.files import (
    FilePart,
    describe_file,
    durably_rename,
    is_writable_folder,
    nearest_existing,
    set_default_permissions,
    write_text,
)
from ampft.runs.manifest import (
    HISTORY_NAME,
    NONFINITE_NAME,
    RECORD_NAME,
    STAGING_NAME,
    describe_files,
    leftovers,
    refuse_foreign_files,
    remove_earlier_run,
)
from ampft.text.escaping import without_credentials
from ampft.text.json_io import json_text

if TYPE_CHECKING:
    from accelerate import Accelerator

T = TypeVar("T")

LOCK_NAME = ".lock"


class RunFolder:
    """An output folder that the main process of a run locks while the run lasts.

    The lock is advisory. It is released when the process ends, for whatever reason.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        keep_files: bool = False,
        continues: bool = False,
    ) -> None:
        """Create and lock the folder; when overwriting, remove the results of an earlier run.

        Args:
            path: The folder. It and its parents are created if they do not exist.
            overwrite: Whether the folder may contain files. Only the unchanged results of an
                earlier run are removed.
            keep_files: Whether the folder may contain files and nothing is removed, for a
                comparison that continues.
            continues: Whether the folder contains a run that continues: its record, its history and
                its checkpoints are kept.

        Raises:
            InputError: Another process has locked the folder, it is not empty and neither flag is
                set, it contains files of the user under the names of results, or it cannot be
                created or written.
        """
        self.path = Path(path)
        self.staged: dict[str, FilePart] = {}
        overwrite = overwrite or continues
        check_output_folder(path, overwrite=overwrite, keep_files=keep_files)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock: FileLock | None = _lock(self.path)
        except OSError as error:
            raise InputError(
                f"--output_dir {self.path}: the folder cannot be written ({error.strerror}). "
                "Name another folder."
            ) from error
        try:
            # Repeated under the lock, because another run may have written in the meantime.
            _refuse_contents(self.path, overwrite=overwrite, keep_files=keep_files)
        except InputError:
            self.close()
            raise
        if not keep_files:
            remove_earlier_run(self.path, continues=continues)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def write_text(self, name: str, text: str) -> Path:
        """Write a text file atomically, in UTF-8."""
        write_text(self.path / name, text)
        return self.path / name

    def write_json(self, name: str, value: object) -> Path:
        """Write a JSON file atomically; non-finite numbers become null."""
        return self.write_text(name, json_text(value))

    def stage(self) -> Path:
        """Return a hidden subfolder for results, which become visible with `publish`."""
        staging = self.path / STAGING_NAME
        staging.mkdir(exist_ok=True)
        return staging

    def has_record(self) -> bool:
        """Return whether the folder still holds the record that the run wrote at its start."""
        return (self.path / RECORD_NAME).is_file()

    def check_record(self) -> None:
        """Check that the folder has not been removed during the run.

        Raises:
            FileNotFoundError: It has.
        """
        if not self.has_record():
            reason = "the folder was removed or emptied during the run"
            raise FileNotFoundError(errno.ENOENT, reason, str(self.path))

    def files(self) -> dict[str, FilePart]:
        """Return the results, the history and the saved steps, for the record of the run."""
        history, steps = self.path / HISTORY_NAME, self.path / NONFINITE_NAME
        saved = {f"{NONFINITE_NAME}/{name}": part for name, part in describe_files(steps).items()}
        written = {HISTORY_NAME: describe_file(history)} if history.exists() else {}
        return self.staged | written | saved

    def publish(self) -> None:
        """Move the staged files, which `staged` lists, into the folder.

        Raises:
            InputError: The user has created a file of the same name in the meantime.
        """
        for name in self.staged:
            source, target = self.path / STAGING_NAME / name, self.path / name
            if os.path.lexists(target):
                raise InputError(
                    f"--output_dir {self.path}: {name} was created by another program during the "
                    f"run, whose results are kept in {STAGING_NAME}. Move the results elsewhere."
                )
            target.parent.mkdir(parents=True, exist_ok=True)
            set_default_permissions(source)
            durably_rename(source, target)
        shutil.rmtree(self.path / STAGING_NAME)

    def close(self) -> None:
        """Release the lock. A second call has no effect."""
        if self._lock is not None:
            _unlock(self._lock)
            self._lock = None


def check_output_folder(
    path: str | os.PathLike[str], *, overwrite: bool = False, keep_files: bool = False
) -> None:
    """Check that a run may write to `path`, without creating anything.

    Args:
        path: The folder, which need not exist.
        overwrite: Whether the folder may contain files.
        keep_files: Whether it may contain files that a comparison keeps.

    Raises:
        InputError: The path is a URL or a file, another process has locked the folder, it is not
            empty and neither flag is set, or it contains files of the user under the names of
            results.
    """
    if "://" in str(path):
        raise InputError(
            f"--output_dir {without_credentials(str(path))}: this is a URL. Name a local folder, "
            "and copy it after the run."
        )
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output_dir {folder}: this is a file. Name a folder.")
    if os.path.lexists(folder / LOCK_NAME):
        _unlock(_lock(folder))
    _refuse_contents(folder, overwrite=overwrite, keep_files=keep_files)


def _refuse_contents(folder: Path, *, overwrite: bool, keep_files: bool) -> None:
    if keep_files or not folder.is_dir():
        return
    if overwrite:
        refuse_foreign_files(folder)
        return
    own = {LOCK_NAME, *(path.name for path in leftovers(folder))}
    names = sorted(entry.name for entry in folder.iterdir() if entry.name not in own)
    if names:
        listed = ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
        raise InputError(
            f"--output_dir {folder}: the folder is not empty ({listed}). Name a new or empty "
            "folder, pass --overwrite_output_dir to replace the results in it, or pass "
            "--resume_from_checkpoint latest to continue the run in it."
        )


def choose_folder(args: ClassifyArguments, mode: str, *, replaces: bool = False) -> Path:
    """Return the output folder without creating it. All processes return the same folder.

    Args:
        args: Settings of a run.
        mode: Precision of the run, for the name of a default folder.
        replaces: Whether the folder holds a run that is replaced or continues.

    Raises:
        InputError: `--output_dir` is not empty or cannot be created.
    """
    return on_main_process(lambda: _choose_folder(args, mode, replaces))


def claim_default_folder(
    args: ClassifyArguments, mode: str, accelerator: Accelerator, chosen: Path
) -> Path:
    """Create and return the default folder of a run. All processes return the same folder.

    Runs that start at the same time choose the same name. The first to create the folder gets it,
    and the others use the next name. The folder is not created earlier, so that a run that is
    refused leaves nothing behind.

    Args:
        args: Settings of a run.
        mode: Precision of the run.
        accelerator: Accelerator whose trackers will write into the folder.
        chosen: Folder that `choose_folder` returned; used unchanged if `--output_dir` is set.
    """
    if args.output_dir is not None:
        return chosen
    folder = on_main_process(lambda: _claim_default_folder(args, mode)) or chosen
    configuration = accelerator.project_configuration
    configuration.project_dir = configuration.logging_dir = str(folder)
    return folder


def on_main_process(function: Callable[[], T]) -> T:
    """Return on every process what `function` returns on the main process.

    Processes that tried to lock the same folder would refuse each other.
    """
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    results: list[T | None] = [function() if PartialState().is_main_process else None]
    broadcast_object_list(results)
    return cast("T", results[0])


def _choose_folder(args: ClassifyArguments, mode: str, replaces: bool) -> Path:
    if args.output_dir is not None:
        check_output_folder(args.output_dir, overwrite=args.overwrite_output_dir or replaces)
        check_creatable(Path(args.output_dir))
        return Path(args.output_dir)
    return next(path for path in _default_folders(args, mode) if not path.exists())


def _claim_default_folder(args: ClassifyArguments, mode: str) -> Path | None:
    for path in _default_folders(args, mode):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # `RunFolder` reports the error
            return None
        return path
    return None


def _default_folders(args: ClassifyArguments, mode: str) -> Iterator[Path]:
    source = args.dataset_name or args.train_file or "data"
    stem = f"{mode}-{data_stem(source)}-seed{args.seed}"
    return (Path("runs", stem if n == 1 else f"{stem}-{n}") for n in range(1, sys.maxsize))


def check_creatable(folder: Path) -> None:
    """Check that a folder can be created, or written if it exists.

    Raises:
        InputError: It can be neither created nor written.
    """
    nearest = nearest_existing(folder)
    if not is_writable_folder(nearest):
        raise InputError(
            f"--output_dir {folder}: the folder cannot be written, because {nearest} is not a "
            "folder that this user may write to. Name another folder."
        )


def _lock(folder: Path) -> FileLock:
    """Lock the folder for this process.

    Raises:
        InputError: Another process has locked it, or it cannot be locked.
    """
    path = folder / LOCK_NAME
    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"--output_dir {folder}: another run is writing to this folder (process "
            f"{_holder(path)}). "
            "Wait until it ends, stop it, or name another folder."
        ) from None
    except OSError as error:  # for example, the lock file is a symbolic link
        raise InputError(
            f"--output_dir {folder}: the folder cannot be locked ({path.name}: {error.strerror}). "
            "Remove that file, or name another folder."
        ) from error
    path.write_text(f"{os.getpid()}\n")
    return lock


def _holder(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip() or "unknown"
    except OSError:  # it has just released the lock
        return "unknown"


def _unlock(lock: FileLock) -> None:
    # Removed before the release: filelock detects that the file a process waits for is gone.
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
