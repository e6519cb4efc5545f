"""`ampft report`, `ampft checkpoint` and `ampft push`: what a finished run is good for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ampft.arguments.commands import Command, CommandLine
from ampft.arguments.help_text import Help
from ampft.commands.extension_points import CARD_SECTION, FOLDER_REPORTS
from ampft.errors import InputError
from ampft.flag import REQUIRED, flag, positional
from ampft.text.terminal import fit_terminal, labelled, print_line


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """The flags of `ampft report`."""

    run: str = positional(REQUIRED, "RUN", "output folder of a run or of a comparison")
    output_file: str | None = flag(None, "also write the page of a comparison (HTML)")


@dataclass(frozen=True, kw_only=True)
class CheckpointFlags:
    """The arguments of `ampft checkpoint`."""

    action: str = positional(
        REQUIRED,
        "list|verify",
        "list them by their manifests, or check the SHA-256 of every file",
        choices=("list", "verify"),
    )
    path: str = positional(REQUIRED, "PATH", "output folder of a run, or a checkpoint")


@dataclass(frozen=True, kw_only=True)
class PushFlags:
    """The flags of `ampft push`."""

    run: str = positional(REQUIRED, "RUN", "output folder of a run")
    hub_model_id: str | None = flag(
        None,
        "name on the hub; if none, the folder's name, under your user name",
        metavar="USER/NAME",
    )
    private: bool = flag(False, "make a new repository private")


def report(line: CommandLine[ReportFlags]) -> None:
    """Print the report of a run, or of another folder that an add-on knows."""
    folder, output_file = Path(line.flags.run), line.flags.output_file
    reports = [report for added in reversed(FOLDER_REPORTS.all()) for report in added]
    other = next((report for report in reports if (folder / report.file).is_file()), None)
    if output_file is not None and folder.is_dir() and (other is None or not other.write_page):
        raise InputError(f"--output_file: {folder} is not a comparison. Remove the flag.")
    if other is None:
        from ampft.runs.run_text import format_run

        print_line(fit_terminal(format_run(line.flags.run)))
        return
    print_line(other.text(folder))
    if output_file is not None and other.write_page is not None:
        other.write_page(folder, Path(output_file))


def checkpoint(line: CommandLine[CheckpointFlags]) -> None:
    """List or verify the checkpoints of a run."""
    from ampft.runs.resume import list_checkpoints, verify_checkpoints

    show = list_checkpoints if line.flags.action == "list" else verify_checkpoints
    print_line(show(Path(line.flags.path)))


def push(line: CommandLine[PushFlags]) -> None:
    """Push the model of a run to the Hugging Face hub."""
    from ampft.runs.publishing import push_run
    from ampft.text.terminal import quiet_libraries

    quiet_libraries()
    section = CARD_SECTION.get()
    url = push_run(
        line.flags.run,
        hub_model_id=line.flags.hub_model_id,
        private=line.flags.private,
        comparison=section(Path(line.flags.run)) if section else "",
    )
    print_line(labelled("pushed", url))


REPORT = Command(ReportFlags, report, Help("Print the report of a run or a comparison."))
CHECKPOINT = Command(CheckpointFlags, checkpoint, Help("List or verify the checkpoints of a run."))
PUSH = Command(
    PushFlags,
    push,
    Help("Push the model of a run, its card and its report to the Hugging Face hub."),
)
