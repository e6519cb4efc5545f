"""The first second of a run: what is refused and said before PyTorch is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ampft.arguments import ClassifyArguments
from ampft.data.request import DataRequest
from ampft.data.sources.file_names import check_file, named_files
from ampft.errors import check_type
from ampft.imports import no_search_for_garbage
from ampft.runs.folder import check_output_folder
from ampft.runs.later_parts import trained_checkpoint
from ampft.text.terminal import labelled, print_line, print_phase

LOOK_SECONDS = 0.2  # for which the use of the cores is measured
LEAST_MISSING = 0.6  # cores that threads must lack for sleeping to be faster

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
        if (note := let_waiting_threads_sleep(args.cpu_threads)) is not None:
            print_line(labelled("threads", note))
        print_phase("importing PyTorch and transformers")


def let_waiting_threads_sleep(threads: int | None) -> str | None:
    """Let threads that wait for each other sleep if other programs use their cores.

    GNU OpenMP, which PyTorch uses on Linux, keeps a waiting thread spinning for milliseconds. On a
    busy machine, that takes the core from the very thread it waits for. With one of two cores
    busy, a step is more than twice as fast if waiting threads sleep; on idle cores it is 1.4 times
    slower (`benchmarks/LOG.md`). The results are identical. OpenMP reads the variable once, when
    PyTorch is imported.

    Args:
        threads: Number of threads from `--cpu_threads`; None for one per physical core.

    Returns:
        What was done, for the user; None where enough cores are idle, or the user has chosen.
    """
    cores = psutil.cpu_count() or 1
    wanted = threads or _threads_of_environment() or psutil.cpu_count(logical=False) or cores
    is_chosen = not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}.isdisjoint(os.environ)
    if is_chosen or wanted < 2 or os.environ.get("WORLD_SIZE", "1") != "1":
        return None
    busy = cores * psutil.cpu_percent(LOOK_SECONDS) / 100
    if busy < cores - wanted + LEAST_MISSING:
        return None
    os.environ["OMP_WAIT_POLICY"] = "passive"
    return (
        f"other programs use {busy:.1f} of {cores} cores, so threads that wait for each other "
        "sleep. The results are the same (OMP_WAIT_POLICY=active keeps the threads awake)"
    )


def _threads_of_environment() -> int | None:
    """Return the number of threads that the user set; accelerate's launcher sets one too."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and "ACCELERATE_DYNAMO_MODE" not in os.environ else None


def check_data_files(request: DataRequest) -> None:
    """Check that the files of the data exist.

    Raises:
        InputError: A file does not exist.
    """
    for flag in ("train_file", "validation_file", "test_file"):
        for path in named_files(names, f"--{flag}") if (names := getattr(request, flag)) else ():
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
    check_type("prepare", "args", args, ClassifyArguments)
    check_start(args)
    with no_search_for_garbage():
        from ampft.runs.prepare import prepare

    return prepare(args, data, trackers)
