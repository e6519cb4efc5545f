"""What this add-on adds to the core."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampft.commands.extension_points import (
    AROUND_A_TRAINING,
    ARTIFACTS,
    COMMANDS,
    FOLDER_REPORTS,
    CommandEntry,
    FolderReport,
)
from ampft.comparison.extension_points import INFERENCE, Inference
from ampft.errors import InputError

if TYPE_CHECKING:
    from ampft.arguments.commands import Command
    from ampft.commands.extension_points import Classifier


def _export(argv: Sequence[str]) -> Command[Any, Any]:
    from ampft.export.certificate.export_command import EXPORT

    return EXPORT


@COMMANDS.add
def commands() -> tuple[CommandEntry, ...]:
    """Return the commands."""
    return (
        CommandEntry(
            "export",
            AROUND_A_TRAINING,
            "write a model for onnxruntime, OpenVINO or PyTorch, and verify it",
            _export,
        ),
    )


def _refuse_artifact(folder: Path) -> str:
    """Say where the verification of an artifact is.

    Raises:
        InputError: Always.
    """
    raise InputError(
        f"RUN {folder}: this is an artifact of ampft export. Its verification is in "
        f"{folder / 'certificate.html'}. To repeat it: ampft audit {folder} --run RUN"
    )


@FOLDER_REPORTS.add
def folder_reports() -> tuple[FolderReport, ...]:
    """Return what `ampft report` says about an artifact."""
    return (FolderReport("artifact.json", _refuse_artifact),)


@ARTIFACTS.add
def artifacts() -> Classifier:
    """Return the function that reads an artifact for predictions."""
    from ampft.export.artifact import artifact_classifier

    return artifact_classifier


@INFERENCE.add
def inference() -> Inference:
    """Return the comparison of precisions of inference."""
    from ampft.export.inference import compare_inference

    return compare_inference
