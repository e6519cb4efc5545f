"""`ampft train`."""

from __future__ import annotations

import os
import sys

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.commands import Command, CommandLine
from ampft.arguments.parsing import TRAINING_HELP, complete_arguments
from ampft.imports import no_search_for_garbage
from ampft.text.terminal import print_line


def train(line: CommandLine[ClassifyArguments]) -> None:
    """Train a classifier, and say what to do next."""
    arguments = complete_arguments(line.flags, line.given)
    from ampft.runs.start import check_start

    check_start(arguments)
    with no_search_for_garbage(keeps_all="torch" not in sys.modules):
        from ampft.runs.run_text import next_step_line
        from ampft.runs.train import train as train_run

    unlabelled = None
    if arguments.evaluated:
        from ampft.runs.unlabelled_rows import find_unlabelled_rows

        unlabelled = find_unlabelled_rows(arguments)
    remaining = arguments if unlabelled is None else unlabelled.remaining
    run = None if remaining is None else train_run(remaining)
    if arguments.evaluated and unlabelled is None and run is not None:
        from ampft.runs.unlabelled_rows import rows_left_out

        unlabelled = rows_left_out(arguments, run.prepared.task.data.splits)
    folder = None if run is None or run.folder is None else run.folder.path
    if folder is not None:
        print_line(next_step_line(folder))
    if unlabelled is not None and os.environ.get("RANK", "0") == "0":
        unlabelled.predict(folder)


TRAIN = Command(ClassifyArguments, train, TRAINING_HELP, reads_config=True, is_training=True)
