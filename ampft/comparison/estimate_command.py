"""`ampft estimate`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from ampft.arguments.commands import Command, CommandLine, TrainingSettings
from ampft.arguments.help_text import Help
from ampft.flag import flag
from ampft.text.terminal import labelled, print_line


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
    estimated = estimate_duration(line.training, line.after, line.flags.config_file)
    print_line(
        json.dumps(asdict(estimated), indent=2) if line.flags.json else duration_text(estimated)
    )


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
