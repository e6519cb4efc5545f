"""The command `ampft ops`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ampft.arguments.commands import Command, CommandLine, TrainingSettings
from ampft.arguments.help_text import Help
from ampft.flag import flag
from ampft.precision.modes import canonical_mode


@dataclass(frozen=True)
class OperationsFlags:
    """The flags of `ampft ops`."""

    mixed_precision: str = flag("fp16", "precision with autocast, fp16 or bf16", metavar="MODE")
    model_name_or_path: str | None = flag(
        None, "model whose operations are examined; if none, only those that autocast lists"
    )
    json: bool = flag(False, "print JSON")
    use_cpu: bool = flag(False, "use the CPU even if there is an accelerator")


def show_operations(line: CommandLine[OperationsFlags]) -> None:
    """Probe autocast and print what it does.

    Raises:
        InputError: A flag is invalid, or the mode has no autocast on this device.
    """
    flags, training = line.flags, line.training if line.after else None
    if flags.model_name_or_path is not None:
        training = replace(line.training, model_name_or_path=flags.model_name_or_path)
    from ampft.lab.operations.autocast_report import examine_autocast, format_operations
    from ampft.text.json_io import json_text
    from ampft.text.terminal import print_line

    report = examine_autocast(canonical_mode(flags.mixed_precision), training, cpu=flags.use_cpu)
    print_line(json_text(report) if flags.json else format_operations(report))


OPS = Command(
    OperationsFlags,
    show_operations,
    Help(
        "Show what autocast does with every operation that it knows, found by probing this device "
        "and this build of torch, beside what PyTorch documents; with a model, also its operations "
        "that are on no list.",
        usage="[-- settings of ampft train]",
    ),
    TrainingSettings({"mixed_precision": ""}),
)
