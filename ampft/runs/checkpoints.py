"""The checkpoints of runs: where a run continues, what is damaged, and `ampft checkpoint`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ampft.arguments import ClassifyArguments
from ampft.errors import InputError
from ampft.runs.folder import on_main_process
from ampft.runs.manifest import HISTORY_NAME, earlier_record
from ampft.text.numbers import byte_size
from ampft.text.tables import Cell, Quote, Table, terminal_table
from ampft.training.checkpoints.manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    DamagedCheckpoint,
    read_manifest,
    verified_history,
    verify,
)
from ampft.training.checkpoints.store import STORE_NAME, CheckpointStore

LATEST = "latest"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint.

    Attributes:
        folder: Its folder.
        manifest: Its manifest.
    """

    folder: Path
    manifest: CheckpointManifest

    def history(self) -> bytes:
        """Return the part of history.jsonl that belongs to it.

        Raises:
            DamagedCheckpoint: The history of the run is missing or was changed.
        """
        return verified_history(run_folder(self.folder) / HISTORY_NAME, self.manifest.history)


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """Where a run with `--resume_from_checkpoint` begins.

    Attributes:
        output_dir: Output folder of the run.
        checkpoint: The checkpoint; None begins at the first step.
        is_finished: Whether the run in the output folder has finished.
    """

    output_dir: Path
    checkpoint: Checkpoint | None = None
    is_finished: bool = False

    @property
    def is_first(self) -> bool:
        """Whether there is no checkpoint yet.

        The folder may hold files of others, such as a log of the scheduler, and a run that ended
        before its first checkpoint.
        """
        return self.checkpoint is None and not self.is_finished

    @property
    def is_inside(self) -> bool:
        """Whether the checkpoint belongs to the run in the output folder."""
        return (
            self.checkpoint is not None
            and run_folder(self.checkpoint.folder).resolve() == self.output_dir.resolve()
        )


def run_folder(checkpoint: Path) -> Path:
    """Return the output folder of the run that wrote a checkpoint."""
    return checkpoint.absolute().parents[1]


def find_resume_point(args: ClassifyArguments) -> ResumePoint | None:
    """Return where a run begins; None without `--resume_from_checkpoint`.

    Args:
        args: Settings of the run.

    Raises:
        InputError: The checkpoint does not exist, or is damaged.
    """
    return None if args.resume_from_checkpoint is None else on_main_process(lambda: _find(args))


def _find(args: ClassifyArguments) -> ResumePoint:
    assert args.resume_from_checkpoint is not None
    assert args.output_dir is not None, "checked with the other arguments"
    output_dir = Path(args.output_dir)
    record = earlier_record(output_dir) if output_dir.is_dir() else None
    if record is not None and record["status"] == "finished":
        return ResumePoint(output_dir=output_dir, is_finished=True)
    if args.resume_from_checkpoint == LATEST:
        found = CheckpointStore(output_dir).complete()
        if not found:
            return ResumePoint(output_dir=output_dir)
        checkpoint = found[-1]
    else:
        checkpoint = Path(args.resume_from_checkpoint)
        if not checkpoint.is_dir():
            raise InputError(
                f"--resume_from_checkpoint {checkpoint}: this folder does not exist. Give the "
                f"folder of a checkpoint, such as {output_dir}/checkpoints/step-100, or {LATEST}."
            )
        if not (checkpoint / MANIFEST_NAME).exists() and CheckpointStore(checkpoint).complete():
            raise InputError(
                f"--resume_from_checkpoint {checkpoint}: this is the folder of a run. Give one of "
                f"its checkpoints, or pass --output_dir {checkpoint} --resume_from_checkpoint "
                f"{LATEST}."
            )
    try:
        return ResumePoint(output_dir=output_dir, checkpoint=verified(checkpoint))
    except DamagedCheckpoint as error:
        raise InputError(f"--resume_from_checkpoint: {error} {advice(checkpoint)}") from error


def verified(folder: Path) -> Checkpoint:
    """Return a checkpoint whose files, and whose part of the history, are as they were written.

    Raises:
        DamagedCheckpoint: They are not.
    """
    checkpoint = Checkpoint(folder, verify(folder))
    checkpoint.history()
    return checkpoint


def advice(damaged: Path) -> str:
    """Return what to do about a damaged checkpoint: the older ones that can be used."""
    usable = [
        folder
        for folder in CheckpointStore(run_folder(damaged)).complete()
        if folder.name != damaged.name and damage(folder) is None
    ]
    if not usable:
        return "No other checkpoint of the run can be used. Restore it from a copy, or start anew."
    listed = ", ".join(folder.name for folder in reversed(usable))
    return (
        f"Nothing was changed. These checkpoints of the run are intact: {listed}. To continue from "
        f"one of them: --resume_from_checkpoint {usable[-1]}"
    )


def damage(checkpoint: Path) -> DamagedCheckpoint | None:
    """Return what is wrong with a checkpoint or its part of the history; None if all is right."""
    try:
        verified(checkpoint)
    except DamagedCheckpoint as error:
        return error
    return None


def list_checkpoints(path: Path) -> str:
    """Return a table of the checkpoints at `path`, by their manifests; nothing is verified.

    Args:
        path: Output folder of a run, its folder of checkpoints, or a checkpoint.

    Raises:
        InputError: No checkpoint was found.
    """
    rows: list[tuple[Cell, ...]] = []
    for folder in _checkpoints_at(path):
        try:
            manifest = read_manifest(folder)
        except DamagedCheckpoint as error:
            rows.append((Quote(folder.name), "", "", "", "", Quote(f"damaged: {error}")))
            continue
        rows.append(
            (
                Quote(folder.name),
                str(manifest.cursor.epoch + 1),
                str(manifest.cursor.step_in_epoch),
                byte_size(manifest.bytes),
                Quote(manifest.written),
                Quote(manifest.reason),
            )
        )
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
    for folder in _checkpoints_at(path):
        try:
            manifest = verified(folder).manifest
        except DamagedCheckpoint as error:
            damaged.append(f"damaged   {error}")
        else:
            files = len(manifest.files) + 1
            intact.append(f"intact    {folder}: {files} files, {byte_size(manifest.bytes)}")
    if damaged:
        lines = "\n".join([*damaged, *intact])
        raise InputError(f"{len(damaged)} of {len(damaged) + len(intact)} are damaged\n{lines}")
    return "\n".join(intact)


def _checkpoints_at(path: Path) -> list[Path]:
    """Return the folders of the checkpoints at `path`, by ascending step."""
    if (path / MANIFEST_NAME).exists():
        return [path]
    found = CheckpointStore(path.parent if path.name == STORE_NAME else path).complete()
    if not found:
        raise InputError(
            f"PATH {path}: no checkpoint was found. Give the --output_dir of a run with "
            "--checkpointing_steps, or one of its checkpoints."
        )
    return found
