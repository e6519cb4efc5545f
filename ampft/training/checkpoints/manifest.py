"""The manifest of a checkpoint: what it contains, and whether that is unchanged."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from ampft.errors import InputError
from ampft.files import FilePart, describe_file, write_file
from ampft.text.json_io import (
    JSONValue,
    from_json,
    json_text,
    json_values,
    read_json_object,
    values_hash,
)

SCHEMA = 1
HISTORY_NAME = "history.jsonl"  # in the folder of the run
MANIFEST_NAME = "MANIFEST.json"
MODEL_NAME = "model.safetensors"
OPTIMIZER_NAME = "optimizer.safetensors"
STATE_NAME = "state.json"
BEST_NAME = "best.safetensors"
CONTENT_NAMES = (MODEL_NAME, OPTIMIZER_NAME, STATE_NAME, BEST_NAME)


class DamagedCheckpoint(InputError):
    """A checkpoint is not as it was written; the message names the file."""


@dataclass(frozen=True, kw_only=True)
class CursorPart:
    """Position in the training: the next step to take.

    Attributes:
        epoch: Epoch, from 0.
        step_in_epoch: Optimizer step within the epoch, from 0.
        step: Optimizer steps so far, skipped ones included.
    """

    epoch: int
    step_in_epoch: int
    step: int


@dataclass(frozen=True, kw_only=True)
class CheckpointManifest:
    """What MANIFEST.json says about a checkpoint.

    Attributes:
        cursor: Position in the training.
        reason: Why it was written, such as "every 500 steps".
        settings: What must not differ when the training continues, by name: settings, precision,
            data, classes, model, schedule.
        topology: What may differ only with `--allow_topology_change`.
        environment: Hardware and versions, which may differ and are then recorded.
        history: Hash and size of history.jsonl, up to the last step of the checkpoint.
        files: Hash and size of every other file in the folder, by name.
        written: Time, ISO 8601 in UTC.
        schema: Version of this layout.
    """

    cursor: CursorPart
    reason: str
    settings: Mapping[str, Any]
    topology: Mapping[str, Any]
    environment: Mapping[str, Any]
    history: FilePart
    files: Mapping[str, FilePart]
    written: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    schema: int = SCHEMA

    @property
    def bytes(self) -> int:
        """Size of all files of the checkpoint, except the manifest."""
        return sum(part.bytes for part in self.files.values())


def write_manifest(folder: Path, manifest: CheckpointManifest) -> None:
    """Write MANIFEST.json with the hash of its own values, and wait until it is on the disk."""
    values = cast("dict[str, JSONValue]", json_values(manifest))
    text = json_text({**values, "sha256": values_hash(values)})
    write_file(folder / MANIFEST_NAME, [text.encode()])


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read the manifest of a checkpoint, without looking at the other files.

    Raises:
        DamagedCheckpoint: The manifest is missing or not as it was written.
    """
    path = folder / MANIFEST_NAME
    try:
        _check_is_plain(path)
        values = read_json_object(path)
        is_as_written = path.read_bytes() == json_text(values).encode()
        if values.pop("sha256", None) != values_hash(values) or not is_as_written:
            raise ValueError("it does not have the hash that it states")
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
    present = {path.name for path in folder.iterdir()} - {MANIFEST_NAME}
    for name in sorted(present | manifest.files.keys()):
        path = folder / name
        if name not in manifest.files:
            raise DamagedCheckpoint(f"{path}: the file does not belong to the checkpoint.")
        if name not in present:
            raise DamagedCheckpoint(f"{path}: the file is missing.")
        try:
            _check_is_plain(path)
            if describe_file(path) != manifest.files[name]:
                raise ValueError("its SHA-256 is not the one in the manifest")
        except (OSError, ValueError) as error:
            raise DamagedCheckpoint(f"{path}: the file is damaged ({error}).") from error
    return manifest


def verified_history(path: Path, part: FilePart) -> bytes:
    """Return the beginning of history.jsonl to which a checkpoint belongs.

    Args:
        path: history.jsonl in the run's folder.
        part: Hash and size of that beginning.

    Raises:
        DamagedCheckpoint: The file is missing, too short, or does not begin so.
    """
    try:
        with path.open("rb") as file:
            beginning = file.read(part.bytes)
    except OSError as error:
        raise DamagedCheckpoint(
            f"{path}: the history, which a checkpoint needs, cannot be read ({error.strerror})."
        ) from error
    if len(beginning) < part.bytes or hashlib.sha256(beginning).hexdigest() != part.sha256:
        raise DamagedCheckpoint(
            f"{path}: the history is damaged (its first {part.bytes} bytes do not have the SHA-256 "
            "in the manifest of the checkpoint)."
        )
    return beginning


def _check_is_plain(path: Path) -> None:
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError("it is not a regular file")
