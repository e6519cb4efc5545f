"""Finds and verifies the checkpoint that a run continues from, before anything is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ampft.arguments import ClassifyArguments
from ampft.errors import InputError
from ampft.runs.folder import on_main_process
from ampft.runs.manifest import HISTORY_NAME, earlier_record
from ampft.training.checkpoints.manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    DamagedCheckpoint,
    verified_history,
    verify,
)
from ampft.training.checkpoints.store import CheckpointStore

LATEST = "latest"


@dataclass(frozen=True, kw_only=True)
class ResumePoint:
    """Where a run with `--resume_from_checkpoint` begins.

    Attributes:
        output_dir: Output folder of the run.
        checkpoint: Folder of the verified checkpoint; None begins at the first step.
        manifest: Its manifest.
        is_finished: Whether the run in the output folder has finished.
        is_first: Whether there is no checkpoint yet. The folder may hold files of others, such as a
            log of the scheduler, and a run that ended before its first checkpoint.
    """

    output_dir: Path
    checkpoint: Path | None = None
    manifest: CheckpointManifest | None = None
    is_finished: bool = False
    is_first: bool = False

    @property
    def is_inside(self) -> bool:
        """Whether the checkpoint belongs to the run in the output folder."""
        return (
            self.checkpoint is not None
            and run_folder(self.checkpoint).resolve() == self.output_dir.resolve()
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
            return ResumePoint(output_dir=output_dir, is_first=True)
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
    return ResumePoint(output_dir=output_dir, checkpoint=checkpoint, manifest=_verified(checkpoint))


def _verified(checkpoint: Path) -> CheckpointManifest:
    try:
        manifest = verify(checkpoint)
        verified_history(run_folder(checkpoint) / HISTORY_NAME, manifest.history)
    except DamagedCheckpoint as error:
        raise InputError(f"--resume_from_checkpoint: {error} {advice(checkpoint)}") from error
    return manifest


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
        manifest = verify(checkpoint)
        verified_history(run_folder(checkpoint) / HISTORY_NAME, manifest.history)
    except DamagedCheckpoint as error:
        return error
    return None
