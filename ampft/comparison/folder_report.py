"""What `ampft report` says about the folder of a comparison."""

from __future__ import annotations

from pathlib import Path

from ampft.commands.extension_points import FolderReport
from ampft.comparison.analysis.unchanged_runs import runs_check_line
from ampft.comparison.execution.comparison_folder import run_folder, runs_without_result
from ampft.comparison.execution.plan import PLAN_NAME, read_plan
from ampft.comparison.findings import COMPARISON_NAME
from ampft.comparison.report.report_files import read_comparison, terminal_text, write_page
from ampft.errors import InputError


def _finished_text(folder: Path) -> str:
    comparison = read_comparison(folder)
    text = terminal_text(comparison).rstrip("\n")
    return f"{runs_check_line(folder, comparison)}\n{text}"


def _write_page(folder: Path, output_file: Path) -> None:
    write_page(read_comparison(folder), output_file)


def _refuse_unfinished(folder: Path) -> str:
    """Say how far a comparison without results has come.

    Raises:
        InputError: Always; it says how to continue.
    """
    plan = read_plan(folder)
    assert plan is not None, "its file exists"
    runs, missing = plan.all_runs(), runs_without_result(plan.all_runs(), folder)
    complete = [run_folder(folder, run) for run in runs if run not in missing]
    show = f" To see one of them: ampft report {complete[0]}" if complete else ""
    raise InputError(
        f"RUN {folder}: the comparison has not finished: {len(complete)} of {len(runs)} runs are "
        f"complete. Repeat its command with --output_dir {folder} to continue.{show}"
    )


FINISHED = FolderReport(COMPARISON_NAME, _finished_text, _write_page)
UNFINISHED = FolderReport(PLAN_NAME, _refuse_unfinished, _write_page)
