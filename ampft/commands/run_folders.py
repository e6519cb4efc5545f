"""`ampft report`, `ampft checkpoint` and `ampft push`: what a finished run is good for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ampft.arguments.commands import Command, CommandLine
from ampft.arguments.help_text import Help
from ampft.errors import InputError
from ampft.flag import REQUIRED, flag, positional
from ampft.registry import room
from ampft.text.terminal import labelled, print_line


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
    """Print the report of a run, of a comparison, of a learning curve or of a search."""
    from ampft.comparison.findings import COMPARISON_NAME

    folder, output_file = Path(line.flags.run), line.flags.output_file
    if (folder / COMPARISON_NAME).is_file():
        from ampft.comparison.analysis.unchanged_runs import runs_check_line
        from ampft.comparison.report.report_files import read_comparison, terminal_text, write_page

        comparison = read_comparison(folder)
        print_line(runs_check_line(folder, comparison))
        print_line(terminal_text(comparison).rstrip("\n"))
        if output_file is not None:
            write_page(comparison, Path(output_file))
        return
    from ampft.comparison.execution.plan import PLAN_NAME
    from ampft.runs.run_text import format_run

    is_curve = (folder / "curve.json").is_file()
    if not is_curve and (folder / PLAN_NAME).is_file():
        _refuse_unfinished(folder)
    if output_file is not None and folder.is_dir():
        raise InputError(f"--output_file: {folder} is not a comparison. Remove the flag.")
    if (folder / "search.json").is_file():
        print_line(room("answer of a search").report_text(folder))
        return
    if is_curve:
        curves = room("curves")
        curve = curves.read_curve(folder / curves.CURVE_NAME)
        print_line(room("curve page").curve_text(curve))
        return
    print_line(format_run(line.flags.run))


def _refuse_unfinished(folder: Path) -> None:
    """Say how far a comparison without results has come."""
    from ampft.comparison.execution.comparison_folder import run_folder, runs_without_result
    from ampft.comparison.execution.plan import read_plan

    plan = read_plan(folder)
    assert plan is not None, "its file exists"
    runs, missing = plan.all_runs(), runs_without_result(plan.all_runs(), folder)
    complete = [run_folder(folder, run) for run in runs if run not in missing]
    show = f" To see one of them: ampft report {complete[0]}" if complete else ""
    raise InputError(
        f"RUN {folder}: the comparison has not finished: {len(complete)} of {len(runs)} runs are "
        f"complete. Repeat its command with --output_dir {folder} to continue.{show}"
    )


def checkpoint(line: CommandLine[CheckpointFlags]) -> None:
    """List or verify the checkpoints of a run."""
    from ampft.runs.resume import list_checkpoints, verify_checkpoints

    show = list_checkpoints if line.flags.action == "list" else verify_checkpoints
    print_line(show(Path(line.flags.path)))


def push(line: CommandLine[PushFlags]) -> None:
    """Push the model of a run to the Hugging Face hub."""
    from ampft.comparison.report.report_files import comparison_section
    from ampft.runs.publishing import push_run
    from ampft.text.terminal import quiet_libraries

    quiet_libraries()
    url = push_run(
        line.flags.run,
        hub_model_id=line.flags.hub_model_id,
        private=line.flags.private,
        comparison=comparison_section(Path(line.flags.run)),
    )
    print_line(labelled("pushed", url))


REPORT = Command(ReportFlags, report, Help("Print the report of a run or a comparison."))
CHECKPOINT = Command(CheckpointFlags, checkpoint, Help("List or verify the checkpoints of a run."))
PUSH = Command(
    PushFlags,
    push,
    Help("Push the model of a run, its card and its report to the Hugging Face hub."),
)
