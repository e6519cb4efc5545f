"""The folder `checkpoints` of a run: finding, verifying, publishing and removing checkpoints.

A manifest says what a checkpoint contains. The folder and each checkpoint contain the same token.
Only a checkpoint with the token is removed, and in it only files of the size that its manifest
states.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ampft.errors import InputError
from ampft.files import (
    FileDigest,
    Sealed,
    describe_file,
    hashed_text,
    read_hashed,
    remove,
    rename,
    sync,
    write_file,
)
from ampft.ownership import (
    OWNER_NAME,
    is_plain_file,
    is_plain_folder,
    is_torn_token,
    new_token,
    private_file,
    read_token,
    write_token,
)
from ampft.text.json_io import from_json

SCHEMA = 1
HISTORY_NAME = "history.jsonl"  # in the folder of the run
MANIFEST_NAME = "MANIFEST.json"
MODEL_NAME = "model.safetensors"
OPTIMIZER_NAME = "optimizer.safetensors"
STATE_NAME = "state.json"
BEST_NAME = "best.safetensors"
CONTENT_NAMES = (MODEL_NAME, OPTIMIZER_NAME, STATE_NAME, BEST_NAME)
STORE_NAME = "checkpoints"
_COMPLETE = re.compile(r"step-(\d+)")
_INCOMPLETE = re.compile(r"(step-\d+)\.tmp-[0-9a-f]{16}")


class DamagedCheckpoint(InputError):
    """A checkpoint is not as it was written; the message names the file."""


@dataclass(frozen=True, kw_only=True)
class CursorPart:
    """Position in the training: the next step to take."""

    epoch: int  # Epoch, from 0.
    step_in_epoch: int  # Optimizer step within the epoch, from 0.
    step: int  # Optimizer steps so far, skipped ones included.


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """What MANIFEST.json says about a checkpoint."""

    cursor: CursorPart  # Position in the training.
    reason: str  # Why it was written, such as "every 500 steps".
    # What must not differ when the training continues, by name: settings, precision, data, classes,
    # model, schedule.
    settings: Mapping[str, Any]
    topology: Mapping[str, Any]  # What may differ only with `--allow_topology_change`.
    environment: Mapping[str, Any]  # Hardware and versions, which may differ and are then recorded.
    history: FileDigest  # Hash and size of history.jsonl, up to the last step of the checkpoint.
    files: Mapping[str, FileDigest]  # Hash and size of every other file in the folder, by name.
    # Settings that may differ and are then recorded, by flag; empty in earlier checkpoints.
    choices: Mapping[str, Any] = field(default_factory=dict)
    # Time, ISO 8601 in UTC.
    written: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    schema: int = SCHEMA  # Version of this layout.

    @property
    def bytes(self) -> int:
        """Size of all files of the checkpoint, except the manifest."""
        return sum(part.bytes for part in self.files.values())


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Write MANIFEST.json with the hash of its own values, and wait until it is on the disk."""
    write_file(folder / MANIFEST_NAME, [hashed_text(manifest).encode()])


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read the manifest of a checkpoint, without looking at the other files.

    Raises:
        DamagedCheckpoint: The manifest is missing or not as it was written.
    """
    path = folder / MANIFEST_NAME
    try:
        values, _ = read_hashed(path)
        if values.get("schema") != SCHEMA:
            raise ValueError(f"its schema is {values.get('schema')!r}, not {SCHEMA}")
        return from_json(CheckpointManifest, values, MANIFEST_NAME)
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{path}: the file is missing.") from error
    except (OSError, ValueError, TypeError) as error:
        raise DamagedCheckpoint(f"{path}: the file is damaged ({error}).") from error


def verify(folder: Path) -> CheckpointManifest:
    """Check that a checkpoint is exactly as it was written, without opening a tensor.

    Args:
        folder: Folder of the checkpoint, called step-N.

    Raises:
        DamagedCheckpoint: A file is missing, was added or differs from the manifest.
    """
    manifest = read_manifest(folder)
    if folder.name != f"step-{manifest.cursor.step}":
        raise DamagedCheckpoint(
            f"{folder / MANIFEST_NAME}: the file belongs to step {manifest.cursor.step}, not to "
            f"{folder.name}."
        )
    Sealed(
        folder=folder,
        manifest=MANIFEST_NAME,
        files=manifest.files,
        event="the checkpoint",
        remedy="The checkpoint cannot be used.",
        error=DamagedCheckpoint,
    ).check()
    return manifest


def verified_history(path: Path, part: FileDigest) -> bytes:
    """Return the beginning of history.jsonl to which a checkpoint belongs.

    Args:
        path: history.jsonl in the run's folder.
        part: Hash and size of that beginning.

    Raises:
        DamagedCheckpoint: The file is missing, too short, or does not begin so.
    """
    try:
        is_long_enough = 0 <= part.bytes <= path.stat().st_size
        with path.open("rb") as file:
            beginning = file.read(part.bytes if is_long_enough else 0)
    except OSError as error:
        raise DamagedCheckpoint(
            f"{path}: the history, which a checkpoint needs, cannot be read ({error.strerror})."
        ) from error
    if len(beginning) != part.bytes or hashlib.sha256(beginning).hexdigest() != part.sha256:
        raise DamagedCheckpoint(
            f"{path}: the history is damaged (its first {part.bytes} bytes do not have the SHA-256 "
            "in the manifest of the checkpoint)."
        )
    return beginning


class CheckpointStore:
    """The checkpoints of a run, in the folder `checkpoints` of its output folder.

    A checkpoint is written under a temporary name, synced, and renamed: it is complete or
    invisible. Only the main process writes, while it holds the lock of the output folder.
    """

    def __init__(self, output_dir: Path, limit: int | None = None) -> None:
        """Choose the folder, which `write` creates.

        Args:
            limit: Number of checkpoints to keep; None keeps all.
        """
        self.path = output_dir / STORE_NAME
        self._limit = limit

    def complete(self) -> list[Path]:
        """Return the folders of all checkpoints, by ascending step, including foreign ones."""
        if not is_plain_folder(self.path):
            return []
        steps = {
            int(match[1]): entry
            for entry in self.path.iterdir()
            if (match := _COMPLETE.fullmatch(entry.name)) and is_plain_folder(entry)
        }
        return [steps[step] for step in sorted(steps)]

    def own(self) -> list[Path]:
        """Return the folders of the checkpoints that this run provably wrote, by ascending step."""
        token = read_token(self.path)
        return [folder for folder in self.complete() if self._is_own(folder, token)]

    def refuse_foreign(self) -> None:
        """Check that no other program uses a name that a checkpoint of this run may get.

        Raises:
            InputError: A file, a link or a foreign folder has such a name.
        """
        if not is_plain_folder(self.path):
            return
        own = self.own()
        foreign = [
            entry.name
            for entry in sorted(self.path.iterdir())
            if (_COMPLETE.fullmatch(entry.name) and entry not in own)
            or (entry.name == OWNER_NAME and read_token(self.path) is None)
        ]
        if foreign:
            raise _foreign(self.path / foreign[0])

    def begin(self, step: int) -> Path | None:
        """Create and return the temporary folder of a checkpoint.

        Return None if this step already has a checkpoint: the training continued from it, or it was
        written before the validation at this step.

        Raises:
            InputError: Another program uses the name of the checkpoint or of the folder.
        """
        name = f"step-{step}"
        if not os.path.lexists(self.path):
            self._create()
        token = read_token(self.path)
        if token is None and is_plain_folder(self.path):
            with contextlib.suppress(FileExistsError):
                write_token(self.path, new_token())
            token = read_token(self.path)
        if token is None:
            raise InputError(
                f"{self.path}: another program replaced this folder or its {OWNER_NAME}, so no "
                "checkpoint can be written. Move it, and let nothing else write into it."
            )
        if os.path.lexists(self.path / name):
            if self._is_own(self.path / name, token):
                return None
            raise _foreign(self.path / name)
        temporary = _hidden(self.path / name)
        temporary.mkdir()
        write_token(temporary, token, name)
        return temporary

    def _create(self) -> None:
        """Create the folder, which is never visible without its token while a run has its own."""
        try:
            hidden = private_file(self.path.parent, STORE_NAME)
        except InputError:  # no run has locked the folder above
            self.path.mkdir()
        else:
            hidden.mkdir()
            write_token(hidden, new_token(), STORE_NAME)
            rename(hidden, self.path)
        sync(self.path.parent)

    def publish(self, temporary: Path, *, prunes: bool = True) -> None:
        """Make a checkpoint visible whose files are on the disk, and then remove the oldest ones.

        Args:
            temporary: Folder from `begin`.
            prunes: Whether the oldest ones are removed.

        Raises:
            InputError: Another program took the name of the checkpoint in the meantime.
        """
        folder = self.path / temporary.name.partition(".")[0]
        if os.path.lexists(folder):
            raise _foreign(folder)
        rename(temporary, folder)
        sync(self.path)
        if prunes:
            self.prune()

    def discard(self, temporary: Path) -> None:
        """Remove a checkpoint that could not be written, as far as possible."""
        with contextlib.suppress(OSError):
            self._remove(temporary)

    def prune(self) -> None:
        """Remove the oldest checkpoints of this run beyond the limit."""
        if self._limit is not None:
            for folder in self.own()[: -self._limit]:
                self._remove(folder)

    def remove_incomplete(self) -> None:
        """Remove what processes that were killed while they wrote a checkpoint left behind."""
        token = read_token(self.path)
        for entry in list(self.path.iterdir()) if token else []:
            match = _INCOMPLETE.fullmatch(entry.name)
            if not match:
                continue
            if read_token(entry, match[1]) == token:
                self._remove(entry)
            elif _has_no_token_yet(entry):
                (entry / OWNER_NAME).unlink(missing_ok=True)
                remove(entry)

    def remove(self, folder: Path) -> bool:
        """Remove a checkpoint, even if damaged; return whether this run provably wrote it."""
        is_own = self._is_own(folder, read_token(self.path))
        if is_own:
            self._remove(folder)
        return is_own

    def remove_after(self, step: int) -> list[Path]:
        """Remove and return this run's checkpoints of later steps than `step`."""
        later = [folder for folder in self.own() if _step_of(folder) > step]
        for folder in reversed(later):
            self._remove(folder)
        return later

    def remove_all(self) -> None:
        """Remove all checkpoints of this run, and the folder if nothing else is in it."""
        self.remove_incomplete()
        self.remove_after(-1)
        if read_token(self.path) and [entry.name for entry in self.path.iterdir()] == [OWNER_NAME]:
            remove(self.path / OWNER_NAME)
        if is_plain_folder(self.path) and not any(self.path.iterdir()):
            remove(self.path)

    def _is_own(self, folder: Path, token: str | None) -> bool:
        """Return whether this run wrote a checkpoint, even if it was damaged since."""
        return token is not None and read_token(folder) == token

    def _remove(self, folder: Path) -> None:
        """Remove the files of this run's checkpoint, and the folder if nothing else is in it.

        A complete checkpoint is hidden first, so it is never visible with files missing. A
        checkpoint to which the user added files stays where it is, without its manifest. Changed
        files of a checkpoint are kept in the hidden folder.
        """
        names = {path.name for path in folder.iterdir()}
        if not names <= {*CONTENT_NAMES, MANIFEST_NAME, OWNER_NAME}:
            own = sorted(_own_files(folder), key=lambda path: path.name != MANIFEST_NAME)
        else:
            if _COMPLETE.fullmatch(folder.name):
                hidden = _hidden(folder)
                rename(folder, hidden)
                folder = hidden
            own = list(_own_files(folder))
            if names - {path.name for path in own} - {OWNER_NAME}:  # the manifest says which
                own = [path for path in own if path.name not in (MANIFEST_NAME, OWNER_NAME)]
        for path in own:
            remove(path)
        if not any(folder.iterdir()):
            remove(folder)


def _foreign(path: Path) -> InputError:
    return InputError(
        f"{path}: the run that has this --output_dir did not write it, or it was changed since. "
        "Move it, or choose another --output_dir."
    )


def _own_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a checkpoint that are not the user's, the token last."""
    manifest = _manifest(folder)
    for name in (*CONTENT_NAMES, MANIFEST_NAME, OWNER_NAME):
        path = folder / name
        if is_plain_file(path):
            part = None if manifest is None else manifest.files.get(name)
            if part is None or _is_unchanged(path, part, folder / MANIFEST_NAME):
                yield path


def _is_unchanged(path: Path, part: FileDigest, manifest: Path) -> bool:
    """Return whether a file is the one in the manifest.

    Its content is read only if it was written, moved or linked after the manifest, which is the
    last file of a checkpoint.
    """
    status = path.stat()
    if status.st_size != part.bytes:
        return False
    return status.st_ctime_ns <= manifest.stat().st_ctime_ns or describe_file(path) == part


def _manifest(folder: Path) -> CheckpointManifest | None:
    try:
        return read_manifest(folder)
    except DamagedCheckpoint:
        return None


def _hidden(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.tmp-{secrets.token_hex(8)}")


def _has_no_token_yet(entry: Path) -> bool:
    """Return whether a process was killed while it created or removed a hidden folder."""
    if not is_plain_folder(entry):
        return False
    paths = list(entry.iterdir())
    return not paths or ([path.name for path in paths] == [OWNER_NAME] and is_torn_token(paths[0]))


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))
