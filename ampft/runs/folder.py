"""The output folder of a run: one writer, and no file that is half written."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from ampft.arguments import ClassifyArguments
from ampft.errors import InputError
from ampft.files import is_writable_folder, nearest_existing, write_text
from ampft.text.json_io import json_text

if TYPE_CHECKING:
    from accelerate import Accelerator

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

    The lock is advisory and ends with the process, however that ends.
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
            self._lock: FileLock | None = _lock(self.path)
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
        write_text(self.path / name, text)
        return self.path / name

    def write_json(self, name: str, value: object) -> Path:
        """Write JSON whole or not at all; non-finite numbers become null."""
        return self.write_text(name, json_text(value))

    def close(self) -> None:
        """Release the folder; calling twice is allowed."""
        if self._lock is None:
            return
        _unlock(self._lock)
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
        _unlock(_lock(folder))
    _refuse_contents(folder, overwrite=overwrite)


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


def choose_folder(args: ClassifyArguments, mode: str) -> Path:
    """Return the output folder, the same on every process; nothing is created yet.

    Args:
        args: Settings of a run.
        mode: Precision of the run, for the name of a default folder.

    Raises:
        InputError: `--output_dir` is not empty, or cannot be created.
    """
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    # Only the main process looks: two that try the lock of a folder would refuse each other.
    chosen = [_choose_folder(args, mode) if PartialState().is_main_process else None]
    broadcast_object_list(chosen)
    assert chosen[0] is not None
    return chosen[0]


def claim_folder(
    args: ClassifyArguments, mode: str, accelerator: Accelerator, chosen: Path
) -> Path:
    """Create the folder of a run that names none; return it, the same on every process.

    Runs that start at once choose the same name. The first to create the folder has it, the others
    take the next one. Nothing is created before a run starts, so that a refused run leaves nothing
    behind.

    Args:
        args: Settings of a run.
        mode: Precision of the run.
        accelerator: Trackers that it starts later write into the folder.
        chosen: What `choose_folder` returned; it stays where `--output_dir` was given.
    """
    from accelerate.utils import broadcast_object_list

    if args.output_dir is not None:
        return chosen
    claimed = [_claim_folder(args, mode) if accelerator.is_main_process else None]
    broadcast_object_list(claimed)
    folder = claimed[0] or chosen
    configuration = accelerator.project_configuration
    configuration.project_dir = configuration.logging_dir = str(folder)
    return folder


def _choose_folder(args: ClassifyArguments, mode: str) -> Path:
    if args.output_dir is not None:
        check_output_folder(args.output_dir, overwrite=args.overwrite_output_dir)
        check_creatable(Path(args.output_dir))
        return Path(args.output_dir)
    return next(path for path in _default_folders(args, mode) if not path.exists())


def _claim_folder(args: ClassifyArguments, mode: str) -> Path | None:
    for path in _default_folders(args, mode):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError:  # whoever opens the folder has the message
            return None
        return path
    return None


def _default_folders(args: ClassifyArguments, mode: str) -> Iterator[Path]:
    source = args.dataset_name or args.train_file or "data"
    stem = f"{mode}-{Path(source).stem}-seed{args.seed}"
    return (Path("runs", stem if n == 1 else f"{stem}-{n}") for n in range(1, sys.maxsize))


def check_creatable(folder: Path) -> None:
    """Check that a folder can be created, or written if it exists.

    Raises:
        InputError: It cannot.
    """
    nearest = nearest_existing(folder)
    if not is_writable_folder(nearest):
        raise InputError(
            f"--output_dir {folder}: cannot be written, because {nearest} is not a folder that "
            "this user may write to. Name another one."
        )


def _lock(folder: Path) -> FileLock:
    """Lock the folder for this process.

    Raises:
        InputError: Another process holds it.
    """
    path = folder / LOCK_NAME
    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        holder = path.read_text(errors="replace").strip() or "unknown"
        raise InputError(
            f"--output_dir {folder}: another run is writing to it (process {holder}). "
            "Wait for it, end it, or name another folder."
        ) from None
    except OSError as error:  # such as a link in the place of the lock file
        raise InputError(
            f"--output_dir {folder}: cannot be locked ({path.name}: {error.strerror}). "
            "Remove that file, or name another folder."
        ) from error
    path.write_text(f"{os.getpid()}\n")
    return lock


def _unlock(lock: FileLock) -> None:
    # Removed while it is still held: filelock notices that the file of a waiting process is gone.
    Path(lock.lock_file).unlink(missing_ok=True)
    lock.release()
