"""`ampft compare`: train and compare, or compare what exists."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments.commands import Command, CommandLine
from ampft.arguments.help_text import Help
from ampft.comparison.arm_settings import CompareArmsArguments, command_of_arms
from ampft.comparison.extension_points import INFERENCE, TABLES
from ampft.comparison.settings import PRECISIONS, CompareArguments, command_of_precisions
from ampft.errors import InputError
from ampft.flag import OUTPUT, SETTINGS, flag, positional, split_names
from ampft.precision.modes import BASELINE
from ampft.text.terminal import print_line

if TYPE_CHECKING:
    from ampft.comparison.findings import Comparison

EXISTING = "comparison of finished runs or tables"
_SHARED = ("metric", "margin", "output_dir")
_OF_TRAININGS = {
    f.name: "a comparison of finished runs or tables trains nothing"
    for kind in (CompareArguments, CompareArmsArguments)
    for f in fields(kind)
    if f.name not in _SHARED
} | {SETTINGS: "a comparison of finished runs or tables trains nothing"}
_ONE_KIND = "a comparison reads either tables or runs"


@dataclass(frozen=True)
class CompareFlags(CompareArmsArguments, CompareArguments):
    """The flags of `ampft compare`."""

    runs: tuple[str, ...] = positional(
        (),
        "RUN",
        "output folders of finished runs or of a comparison; all arms need runs with the same "
        "seeds: at least 3, or one run each, which compares these models only",
        excludes={"predictions": _ONE_KIND, **_OF_TRAININGS},
    )
    predictions: tuple[str, ...] = flag(
        (),
        "instead of runs, tables of predictions from any framework (CSV, TSV, JSON, JSON Lines or "
        "Parquet) with the columns id, label, and prediction, probabilities (an object by class) "
        "or one probability_CLASS per class; text and group are optional. Arm and seed come from "
        "columns arm and seed, from names like ARM-seed1.csv, or from ARM:SEED=FILE; with "
        "ARM=FILE, each arm is one model",
        group=EXISTING,
        metavar="FILE",
        many=True,
        excludes={"inference": _ONE_KIND, **_OF_TRAININGS},
    )
    inference: str | None = flag(
        None,
        "let the trained models of RUN predict their test split in several of fp32, tf32, bf16, "
        "fp16, bf16-true, int8, or batch sizes (fp32@1,fp32@32), and compare predictions, latency "
        "and size; with one run, the verdict holds for that model only",
        group=EXISTING,
        metavar="MODES",
        joined=True,
        excludes=_OF_TRAININGS,
    )
    on: str | None = flag(
        None,
        "file with labels, such as this week's rows, that the model of each RUN predicts; these "
        "predictions are compared, so the runs need not have the same data, classes or seed",
        group=EXISTING,
        metavar="FILE",
        needs=("runs",),
        excludes={
            "inference": "--inference predicts the test split of the run",
            "by": "each RUN is an arm",
        },
    )
    drop_missing_labels: bool = flag(
        False,
        "leave out the rows of --on that have no label or no input, and report how many",
        group=EXISTING,
        needs=("on",),
    )
    encoding: str = flag(
        "utf-8",
        "character encoding of the files of --on and --predictions",
        group=EXISTING,
        needs=("on", "predictions"),
    )
    baseline: str | None = flag(
        None,
        "arm that all others are compared with; if none, fp32 if the arms are precisions, "
        "otherwise the arm of the first RUN or table",
        group=EXISTING,
        metavar="NAME",
        needs=("runs", "predictions"),
        excludes={"inference": f"with --inference, the baseline is {BASELINE}"},
    )
    by: str | None = flag(
        None,
        "settings that distinguish the arms, such as learning_rate; if none, the precision if the "
        "runs have several, otherwise all settings in which they differ",
        group=EXISTING,
        metavar="a[,b]",
        joined=True,
        needs=("runs",),
        excludes={"inference": "the arms are the precisions in which the models predict"},
    )
    label_names: str | None = flag(
        None,
        "all classes; if none, those that occur as labels or have probabilities",
        group=EXISTING,
        metavar="a,b",
        joined=True,
        needs=("predictions",),
    )
    output_dir: str | None = flag(
        None,
        "folder for the comparison; if none, one under comparisons/ for trainings, and printed "
        "only for what exists",
        group=OUTPUT,
    )


def compare(line: CommandLine[CompareFlags]) -> None:
    """Train and compare, or compare finished runs or tables of predictions."""
    flags = line.flags
    exists = bool(flags.runs or flags.predictions)
    if not exists and (line.has_dashes or line.given.intersection(_OF_TRAININGS)):
        command = command_of_arms(line) if flags.arm else command_of_precisions(line)
        from ampft.comparison.execution.train_and_compare import compare as compare_runs
        from ampft.comparison.report.report_files import next_step_line

        session = compare_runs(command)
        print_line(next_step_line(session.folder.path))
        return
    if not exists:
        asked = "--inference" if flags.inference else "compare"
        raise InputError(
            f"{asked}: RUN is missing. Pass folders of runs, tables with --predictions FILE, or "
            f"what to train: {line.program} --modes {BASELINE},bf16 -- --train_file FILE."
        )
    from ampft.comparison.report.report_files import terminal_text, write_comparison

    if flags.output_dir is not None:
        _refuse_results(Path(flags.output_dir))
    margin = flags.margin / 100
    if flags.predictions:
        comparison = TABLES.require().compare(
            flags.predictions,
            metric=flags.metric,
            margin=margin,
            baseline=flags.baseline,
            label_names=split_names(flags.label_names),
            encoding=flags.encoding,
        )
    elif flags.on:
        comparison = TABLES.require().compare_on(
            flags.on,
            [Path(run) for run in flags.runs],
            metric=flags.metric,
            margin=margin,
            baseline=flags.baseline,
            encoding=flags.encoding,
            drop_missing_labels=flags.drop_missing_labels,
        )
    elif flags.inference:
        inference = INFERENCE.require()
        modes = inference.parse_inference_modes(flags.inference)
        folders = [Path(run) for run in flags.runs]
        comparison = inference.compare_inference(folders, modes, metric=flags.metric, margin=margin)
    else:
        comparison = _compare_runs(line)
    print_line(terminal_text(comparison).rstrip("\n"))
    if flags.output_dir is None:
        print_line(
            "\nAdd --output_dir DIR to write comparison.html, comparison.md and comparison.json."
        )
        return
    write_comparison(comparison, Path(flags.output_dir))
    print_line(f"\nwrote {flags.output_dir}: comparison.html, comparison.md, comparison.json")


def _compare_runs(line: CommandLine[CompareFlags]) -> Comparison:
    """Compare runs. A single folder with a plan is compared as planned."""
    flags, folders = line.flags, [Path(run) for run in line.flags.runs]
    from ampft.comparison.execution.plan import PLAN_NAME, read_plan

    plan = read_plan(folders[0]) if len(folders) == 1 else None
    if plan is not None:
        from ampft.comparison.execution.comparison_folder import compare_planned_runs

        if flags.by is not None:
            raise InputError(
                f"--by {flags.by}: {folders[0]} holds a plan, which names the arms. Remove the "
                "flag."
            )
        return compare_planned_runs(
            folders[0],
            plan,
            metric=flags.metric,
            margin=flags.margin if "margin" in line.given else None,
            baseline=flags.baseline,
        )
    from ampft.comparison.analysis.compare_folders import compare_folders
    from ampft.comparison.analysis.loading import RUNS_NAME
    from ampft.comparison.findings import COMPARISON_NAME

    for folder in folders:
        was_planned = (folder / RUNS_NAME).is_dir() and (folder / COMPARISON_NAME).is_file()
        if was_planned and not (folder / PLAN_NAME).is_file():
            raise InputError(
                f"RUN {folder}: this is the folder of a comparison, but its plan.json is gone, "
                "which says how many analyses there were. Restore it from a copy, or pass the "
                f"folders in {folder / RUNS_NAME}."
            )
    return compare_folders(
        folders,
        metric=flags.metric,
        margin=flags.margin / 100,
        baseline=flags.baseline,
        by=split_names(flags.by) or (),
    )


def _refuse_results(folder: Path) -> None:
    """Reject a folder that holds a run or a comparison, whose records would be overwritten."""
    from ampft.comparison.execution.plan import PLAN_NAME
    from ampft.comparison.report.report_files import RESULT_NAMES
    from ampft.ownership import check_replaceable
    from ampft.runs.manifest import RECORD_NAME

    for name, owner in ((PLAN_NAME, "a comparison"), (RECORD_NAME, "a run")):
        if (folder / name).exists():
            raise InputError(
                f"--output_dir {folder}: the folder holds {name}, the record of {owner}, whose "
                "results must not be overwritten. Choose another folder."
            )
    check_replaceable("--output_dir", folder, RESULT_NAMES)


COMPARE = Command(
    CompareFlags,
    compare,
    Help(
        "Train in several precisions (--modes), or with several settings (--arm), each with "
        "several seeds, and compare; settings of a training that all share follow after ` -- `. Or "
        "compare finished runs, or tables of predictions.",
        "For example: ampft compare --modes fp32,bf16 -- --train_file FILE",
        usage="[-- settings of ampft train]",
    ),
    PRECISIONS.settings,
    reads_config=True,
)
