"""The folder `checkpoints` of a run: finding, publishing and removing checkpoints."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from ampft.files import remove, rename, sync
from ampft.training.checkpoints.manifest import CONTENT_NAMES, MANIFEST_NAME

STORE_NAME = "checkpoints"
_COMPLETE = re.compile(r"step-(\d+)")
_INCOMPLETE = re.compile(r"step-\d+\.tmp-[0-9a-f]{8}")


class CheckpointStore:
    """The checkpoints of a run, in the folder `checkpoints` of its output folder.

    A checkpoint is written under a temporary name, synced, and renamed: it is complete or
    invisible. Only the main process writes, while it holds the lock of the output folder.
    """

    def __init__(self, output_dir: Path, limit: int | None = None) -> None:
        """Name the folder, which `write` creates.

        Args:
            output_dir: Output folder of the run.
            limit: Number of checkpoints to keep; None keeps all.
        """
        self.path = output_dir / STORE_NAME
        self._limit = limit

    def complete(self) -> list[Path]:
        """Return the folders of all checkpoints, by ascending step."""
        if not self.path.is_dir():
            return []
        steps = {
            int(match[1]): entry
            for entry in self.path.iterdir()
            if (match := _COMPLETE.fullmatch(entry.name)) and _is_folder(entry)
        }
        return [steps[step] for step in sorted(steps)]

    def begin(self, step: int) -> Path | None:
        """Create and return the temporary folder of a checkpoint.

        Return None if a checkpoint of this step exists already: it is the one that the training
        continued from, or that was written before the validation at this step.
        """
        name = f"step-{step}"
        if (self.path / name).exists():
            return None
        if not self.path.is_dir():
            self.path.mkdir()
            sync(self.path.parent)
        temporary = self.path / f"{name}.tmp-{secrets.token_hex(4)}"
        temporary.mkdir()
        return temporary

    def publish(self, temporary: Path) -> None:
        """Make a checkpoint visible whose files are on the disk, and then remove the oldest ones.

        Args:
            temporary: Folder from `begin`.
        """
        rename(temporary, self.path / temporary.name.partition(".")[0])
        sync(self.path)
        self.prune()

    def discard(self, temporary: Path) -> None:
        """Remove a checkpoint that could not be written, as far as possible."""
        with contextlib.suppress(OSError):
            _remove_checkpoint(temporary)

    def prune(self) -> None:
        """Remove the oldest checkpoints beyond the limit."""
        if self._limit is not None:
            for folder in self.complete()[: -self._limit]:
                _remove_checkpoint(folder)

    def remove_incomplete(self) -> None:
        """Remove what processes that were killed while they wrote a checkpoint left behind."""
        if self.path.is_dir():
            for entry in list(self.path.iterdir()):
                if _INCOMPLETE.fullmatch(entry.name) and _is_folder(entry):
                    _remove_checkpoint(entry)

    def remove(self, folder: Path) -> None:
        """Remove a checkpoint, also a damaged one."""
        _remove_checkpoint(folder)

    def remove_after(self, step: int) -> list[Path]:
        """Remove and return the checkpoints of later steps than `step`."""
        later = [folder for folder in self.complete() if _step_of(folder) > step]
        for folder in reversed(later):
            _remove_checkpoint(folder)
        return later

    def remove_all(self) -> None:
        """Remove all checkpoints, and the folder if nothing else is in it."""
        self.remove_incomplete()
        self.remove_after(-1)
        if _is_folder(self.path) and not any(self.path.iterdir()):
            remove(self.path)


def _remove_checkpoint(folder: Path) -> None:
    """Remove the files of a checkpoint, and the folder if nothing else is in it.

    A complete one is hidden first: it is never visible without some of its files.
    """
    if not _is_own(folder):
        return
    hidden = folder
    if _COMPLETE.fullmatch(folder.name):
        hidden = folder.with_name(f"{folder.name}.tmp-{secrets.token_hex(4)}")
        rename(folder, hidden)
    for path in _own_files(hidden):
        remove(path)
    if not any(hidden.iterdir()):
        remove(hidden)


def _is_own(folder: Path) -> bool:
    """Return whether a folder is a checkpoint of this program, damaged ones included."""
    names = {path.name for path in folder.iterdir()}
    return MANIFEST_NAME in names or names <= {*CONTENT_NAMES}


def _own_files(folder: Path) -> Iterator[Path]:
    yield from (folder / name for name in (MANIFEST_NAME, *CONTENT_NAMES))


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
