"""The first second of a run: what is refused and said before PyTorch is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments import ClassifyArguments
from ampft.data.sources.file_names import check_file, named_files
from ampft.runs.folder import check_output_folder
from ampft.runs.later_parts import trained_checkpoint
from ampft.text.terminal import print_phase

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker
    from datasets import DatasetDict

    from ampft.runs.prepared import Prepared


def check_start(args: ClassifyArguments) -> None:
    """Check that the files exist and that the output folder can be used, and print a first line.

    Args:
        args: Settings of a run.

    Raises:
        InputError: A file does not exist, or the output folder cannot be used.
    """
    check_data_files(args)
    is_main = os.environ.get("RANK", "0") == "0"
    if args.output_dir is not None and args.resume_from_checkpoint is None and is_main:
        is_ended = trained_checkpoint(Path(args.output_dir)) is not None
        check_output_folder(args.output_dir, overwrite=args.overwrite_output_dir or is_ended)
    if "torch" not in sys.modules:
        print_phase("importing PyTorch and transformers")


def check_data_files(args: ClassifyArguments) -> None:
    """Check that the files of the data exist.

    Raises:
        InputError: A file does not exist.
    """
    for flag in ("train_file", "validation_file", "test_file"):
        for path in named_files(names, f"--{flag}") if (names := getattr(args, flag)) else ():
            check_file(path, flag=f"--{flag}")


def prepare(
    args: ClassifyArguments,
    data: DatasetDict | None = None,
    trackers: Sequence[GeneralTracker] = (),
) -> Prepared:
    """Build accelerator, data, task, model, batches, optimizer and schedule from the settings.

    Args:
        args: Settings of a run.
        data: Data in memory, by split; None reads the data that `args` names.
        trackers: Trackers of the user, in addition to those that `args` names.

    Raises:
        InputError: The device does not support the precision, or the data, the model, the output
            folder, the checkpoint or a combination of settings is invalid. Nothing has been
            written.
        AlreadyFinished: The run that would continue has finished.
    """
    check_start(args)
    from ampft.runs.prepare import prepare

    return prepare(args, data, trackers)
