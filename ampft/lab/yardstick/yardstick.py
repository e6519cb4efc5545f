"""The command `ampft yardstick`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from ampft.arguments.commands import Command, CommandLine, TrainingSettings
from ampft.arguments.help_text import Help
from ampft.flag import flag
from ampft.ownership import check_output_file


@dataclass(frozen=True)
class YardstickFlags:
    """The flags of `ampft yardstick`."""

    modes: str = flag("fp32,bf16,fp16", "precisions to measure", metavar="a,b", joined=True)
    batches: int = flag(32, "number of training step batches, at least 2", at_least=2)
    checkpoints: tuple[str, ...] = flag(
        (), "output folders of runs, whose weights are also measured", metavar="RUN", many=True
    )
    output: str | None = flag(None, "JSON file to write", metavar="FILE")


def yardstick(line: CommandLine[YardstickFlags]) -> None:
    """Measure the yardstick, print it, and write it if requested.

    Raises:
        InputError: A flag is invalid, or `measure_yardstick` fails.
    """
    flags = line.flags
    if flags.output is not None:
        check_output_file("--output", Path(flags.output))
    from ampft.lab.yardstick.figures import format_yardstick
    from ampft.lab.yardstick.measure import measure_yardstick
    from ampft.text.terminal import labelled, print_line

    modes = [name.strip() for name in flags.modes.split(",")]
    training = dataclasses.replace(line.training, output_dir=None)
    measured = measure_yardstick(
        training, modes, batches=flags.batches, checkpoints=flags.checkpoints
    )
    print_line(format_yardstick(measured))
    if flags.output is not None:
        from ampft.files import hashed_text, special_or_atomic_path

        with special_or_atomic_path(Path(flags.output)) as path:
            path.write_text(hashed_text(measured), encoding="utf-8")
        print_line(labelled("wrote", flags.output))


YARDSTICK = Command(
    YardstickFlags,
    yardstick,
    Help(
        "Measure, without training, the gradient error of each precision relative to the noise "
        "between batches, over all weights and per block of the model.",
        usage="[-- settings of ampft train]",
    ),
    TrainingSettings(
        {"mixed_precision": "--modes before ` -- ` names the precisions. Remove the flag"}
    ),
)
