"""Finds and verifies the checkpoint that a run continues from, before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ampft.arguments import ClassifyArguments
from ampft.errors import AlreadyFinished, InputError
from ampft.files import describe_file
from ampft.runs.compatibility import argument_settings, differences, refuse_differences
from ampft.runs.folder import on_main_process
from ampft.runs.manifest import HISTORY_NAME, RECORD_NAME, earlier_record
from ampft.training.checkpoints.manifest import (
    MANIFEST_NAME,
    DamagedCheckpoint,
    Manifest,
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
    manifest: Manifest | None = None
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


def find_resume_point(args: ClassifyArguments, mode: str) -> ResumePoint | None:
    """Return where a run begins; None without `--resume_from_checkpoint`.

    Args:
        args: Settings of the run.
        mode: Precision of the run.

    Raises:
        AlreadyFinished: The run in the output folder has finished.
        InputError: The checkpoint does not exist, or is damaged.
    """
    if args.resume_from_checkpoint is None:
        return None
    point = on_main_process(lambda: _find(args, mode))
    if point.is_finished:
        raise AlreadyFinished(
            f"{point.output_dir}: this run has finished, so nothing is trained. To see its report: "
            f"ampft report {point.output_dir}"
        )
    return point


def _find(args: ClassifyArguments, mode: str) -> ResumePoint:
    assert args.resume_from_checkpoint is not None
    assert args.output_dir is not None, "checked with the other arguments"
    output_dir = Path(args.output_dir)
    record = earlier_record(output_dir) if output_dir.is_dir() else None
    if record is not None and record["status"] == "finished":
        _check_same_run(output_dir, record, args, mode)
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


def _check_same_run(
    folder: Path, record: Mapping[str, Any], args: ClassifyArguments, mode: str
) -> None:
    """Check that the finished run in a folder is the one that the settings describe."""
    precision, arguments = record["precision"], record.get("arguments")
    if not isinstance(precision, Mapping) or not isinstance(arguments, Mapping):
        raise InputError(
            f"{folder / RECORD_NAME}: the file is damaged (precision or arguments is not an "
            "object). Choose another --output_dir."
        )
    before = {
        "precision": str(precision.get("requested")),
        **argument_settings(arguments),
    }
    now = {"precision": mode, **argument_settings(asdict(args))}
    if args.learning_rate is None:  # the model, which is not loaded, determines it
        del now["--learning_rate"]
    shared = {name: value for name, value in before.items() if name in now}
    refuse_differences(
        f"{folder / RECORD_NAME}",
        differences(shared, {name: now[name] for name in shared}),
        "Choose another --output_dir.",
    )
    data = record.get("data")
    hashes = data.get("files") if isinstance(data, Mapping) else None
    paths = [path for paths in args.paths().values() for path in paths if path.is_file()]
    if isinstance(hashes, Mapping) and hashes and paths:
        known = set(hashes.values())
        changed = [str(path) for path in paths if describe_file(path).sha256 not in known]
        if changed:
            raise InputError(
                f"--resume_from_checkpoint: {folder} holds a finished run on other data: "
                f"{', '.join(changed)}. Choose another --output_dir, or restore the data."
            )


def _verified(checkpoint: Path) -> Manifest:
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
