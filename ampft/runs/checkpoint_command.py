"""The command `ampft checkpoint`: lists the checkpoints of a run, and verifies them."""

from __future__ import annotations

from pathlib import Path

from ampft.errors import InputError
from ampft.runs.manifest import HISTORY_NAME
from ampft.runs.resume_point import run_folder
from ampft.text.numbers import byte_size
from ampft.text.tables import Quote, Table, terminal_table
from ampft.training.checkpoints.manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    DamagedCheckpoint,
    read_manifest,
    verified_history,
    verify,
)
from ampft.training.checkpoints.store import STORE_NAME, CheckpointStore


def list_checkpoints(path: Path) -> str:
    """Return a table of the checkpoints at `path`, by their manifests; nothing is verified.

    Args:
        path: Output folder of a run, its folder of checkpoints, or a checkpoint.

    Raises:
        InputError: No checkpoint was found.
    """
    rows = [_row(folder) for folder in checkpoints_at(path)]
    header = ("checkpoint", "epoch", "step in epoch", "size", "written", "reason")
    return terminal_table(Table(header=header, rows=rows, left=6))


def verify_checkpoints(path: Path) -> str:
    """Check every file of the checkpoints at `path`; return one line for each.

    Args:
        path: Same as in `list_checkpoints`.

    Raises:
        InputError: No checkpoint was found, or one is damaged; the message names every damaged
            file.
    """
    intact, damaged = [], []
    for folder in checkpoints_at(path):
        try:
            manifest = verify(folder)
            verified_history(run_folder(folder) / HISTORY_NAME, manifest.history)
        except DamagedCheckpoint as error:
            damaged.append(f"damaged   {error}")
        else:
            files = len(manifest.files) + 1
            intact.append(f"intact    {folder}: {files} files, {byte_size(manifest.bytes)}")
    if damaged:
        lines = "\n".join([*damaged, *intact])
        raise InputError(f"{len(damaged)} of {len(damaged) + len(intact)} are damaged\n{lines}")
    return "\n".join(intact)


def checkpoints_at(path: Path) -> list[Path]:
    """Return the folders of the checkpoints at `path`, by ascending step.

    Args:
        path: Same as in `list_checkpoints`.

    Raises:
        InputError: No checkpoint was found.
    """
    if (path / MANIFEST_NAME).exists():
        return [path]
    found = CheckpointStore(path.parent if path.name == STORE_NAME else path).complete()
    if not found:
        raise InputError(
            f"PATH {path}: no checkpoint was found. Give the --output_dir of a run with "
            "--checkpointing_steps, or one of its checkpoints."
        )
    return found


def _row(folder: Path) -> tuple[str | Quote, ...]:
    try:
        manifest: CheckpointManifest = read_manifest(folder)
    except DamagedCheckpoint as error:
        return (Quote(folder.name), "", "", "", "", Quote(f"damaged: {error}"))
    cursor = manifest.cursor
    return (
        Quote(folder.name),
        str(cursor.epoch + 1),
        str(cursor.step_in_epoch),
        byte_size(manifest.bytes),
        Quote(manifest.written),
        Quote(manifest.reason),
    )
