"""`ampft train` and `ampft estimate`."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.commands import Command, CommandLine, TrainingSettings
from ampft.arguments.help_text import Help
from ampft.arguments.parsing import TRAINING_HELP, complete_arguments
from ampft.flag import flag
from ampft.text.terminal import labelled, print_line


def train(line: CommandLine[ClassifyArguments]) -> None:
    """Train a classifier, and say what to do next."""
    arguments = complete_arguments(line.flags, line.given)
    from ampft.runs.start import check_start

    check_start(arguments)
    from ampft.runs.run_text import next_step_line
    from ampft.runs.train import train as train_run

    unlabelled = None
    if arguments.evaluated:
        from ampft.runs.unlabelled_rows import find_unlabelled_rows

        unlabelled = find_unlabelled_rows(arguments)
    remaining = arguments if unlabelled is None else unlabelled.remaining
    run = None if remaining is None else train_run(remaining)
    folder = None if run is None or run.folder is None else run.folder.path
    if folder is not None:
        print_line(next_step_line(folder))
    if unlabelled is not None and os.environ.get("RANK", "0") == "0":
        unlabelled.predict(folder)


@dataclass(frozen=True)
class EstimateFlags:
    """The flags of `ampft estimate`."""

    json: bool = flag(False, "print JSON, with times in seconds")
    config_file: str | None = flag(
        None, "configuration file of Accelerate; if none, its own default"
    )


def estimate(line: CommandLine[EstimateFlags]) -> None:
    """Time a few steps in a separate process, and print what the training will take."""
    from ampft.comparison.execution.duration import duration_text, estimate_duration
    from ampft.runs.start import check_data_files

    check_data_files(line.training)
    if not line.flags.json:
        print_line(labelled("trial", "timing a few steps ..."))
    found = estimate_duration(line.training, line.after, line.flags.config_file)
    print_line(json.dumps(asdict(found), indent=2) if line.flags.json else duration_text(found))


TRAIN = Command(ClassifyArguments, train, TRAINING_HELP, reads_config=True, is_training=True)
ESTIMATE = Command(
    EstimateFlags,
    estimate,
    Help(
        "Time a few steps of a training in a separate process, and say how long all of it will "
        "take, and how much memory and disk space it needs. Nothing is kept on the disk.",
        "The estimate assumes that the machine stays as busy as it is now.",
    ),
    TrainingSettings(
        {
            "resume_from_checkpoint": "ampft estimate times a training from its beginning. Remove "
            "the flag"
        }
    ),
)
