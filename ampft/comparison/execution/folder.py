"""The folder of a comparison: its runs, how they ended, and comparing them as planned."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments.compare import MIN_SEEDS
from ampft.comparison.analysis.loading import RUNS_NAME
from ampft.comparison.execution.plan import PLAN_NAME, Plan, PlannedRun
from ampft.comparison.execution.selection import selection_remark
from ampft.comparison.findings import PlanFacts
from ampft.comparison.remarks import remark
from ampft.errors import InputError
from ampft.runs.record import RunRecord, read_record
from ampft.text.escaping import inert
from ampft.text.json_io import JSONValue, read_json_object

if TYPE_CHECKING:
    from ampft.comparison.findings import Comparison

LOGS_NAME = "logs"
YARDSTICK_NAME = "yardstick.json"
COMPLETE = ("finished", "diverged")
_ERROR = "error: "
_TAIL = 2**16  # bytes read from the end of a log


@dataclass(frozen=True)
class RunEnding:
    """How a run ended.

    Attributes:
        status: "finished", "diverged", or "failed" for anything else.
        record: Run record; None if there is none.
        input_error: Message of an `InputError`; None if there is none.
    """

    status: str
    record: RunRecord | None = None
    input_error: str | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the run has a result. That it diverged is a result, too."""
        return self.status in COMPLETE

    def summary(self, metric: str) -> str:
        """Return the ending in a clause for readers."""
        if self.status == "finished" and self.record is not None:
            return f"{metric} {self.record.metrics.get(metric, float('nan')):.4f}"
        reason = self.record.reason if self.record is not None else None
        reason = self.input_error or reason
        return f"{self.status} ({inert(reason)})" if reason else self.status


def run_ending(folder: Path, log: Path | None = None) -> RunEnding:
    """Return how the run in `folder` ended.

    Args:
        folder: Folder of the run, which need not exist.
        log: Output of the run, to be searched for the message of an `InputError`.
    """
    try:
        record = read_record(folder)
    except InputError:
        record = None
    if record is not None and record.status in COMPLETE:
        return RunEnding(record.status, record)
    errors: list[str] = []
    with contextlib.suppress(OSError):
        if log is not None:
            with log.open("rb") as file:  # the launcher hides the exit code 2
                file.seek(max(0, log.stat().st_size - _TAIL))
                lines = file.read().decode("utf-8", "replace").splitlines()
            errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    return RunEnding("failed", record, errors[-1] if errors else None)


def compare_planned_runs(
    folder: Path,
    plan: Plan,
    *,
    metric: str | None = None,
    margin: float | None = None,
    baseline: str | None = None,
) -> Comparison:
    """Compare the runs of a folder according to its plan, at the last analysis it has reached.

    Args:
        folder: Folder of the comparison.
        plan: Plan from its plan.json.
        metric: Metric that the user requested; None if not set.
        margin: Margin that the user requested, in points; None if not set.
        baseline: Baseline that the user requested; None if not set.

    Raises:
        InputError: The request differs from the plan, the comparison has not reached its first
            analysis, or the runs cannot be compared.
    """
    planned = {"metric": plan.metric, "margin": f"{100 * plan.design.margin:g}"}
    planned["baseline"] = plan.arms[0].name
    margin_text = None if margin is None else f"{margin:g}"
    requested = {"metric": metric, "margin": margin_text, "baseline": baseline}
    for name, value in requested.items():
        if value is not None and value != planned[name]:
            raise InputError(
                f"--{name} {value}: the plan in {folder / PLAN_NAME} specifies {planned[name]}, "
                f"and its verdicts hold only for that. Remove the flag, or {_without_plan(folder)}."
            )
    if plan.design.select_seeds and plan.selected is None:
        raise InputError(
            f"RUN {folder}: no arm has been chosen yet. Repeat its command to continue, or "
            f"{_without_plan(folder)}."
        )
    seeds = _seeds_at_last_analysis(plan, folder)
    runs = complete_runs(plan, folder, seeds)
    return compare_planned(plan, folder, runs, plan_facts(plan, folder, seeds))


def compare_planned(plan: Plan, folder: Path, runs: Sequence[Path], facts: PlanFacts) -> Comparison:
    """Compare the runs of a plan: as they are, or the folds of each seed as one.

    Args:
        plan: Plan of the comparison.
        folder: Its folder.
        runs: Run folders of the seeds that count.
        facts: What the analysis needs of the plan.

    Raises:
        InputError: The runs cannot be compared.
    """
    from ampft.comparison.analysis.compare import compare_folders
    from ampft.comparison.execution.joined_folds import compare_folds

    if plan.design.folds:
        return compare_folds(plan, folder, runs, facts.remarks)
    return compare_folders(
        runs,
        metric=plan.metric,
        margin=plan.design.margin,
        baseline=plan.arms[0].name,
        plan=facts,
    )


def run_folder(folder: Path, run: PlannedRun) -> Path:
    """Return the folder of a run."""
    return folder / RUNS_NAME / run.name


def log_file(folder: Path, run: PlannedRun) -> Path:
    """Return the log file of a run."""
    return folder / LOGS_NAME / f"{run.name}.log"


def incomplete_runs(plan: Plan, folder: Path, seeds: int | None = None) -> tuple[PlannedRun, ...]:
    """Return the compared runs of the first `seeds` seeds without a result, in execution order.

    None stands for all runs, including those that choose an arm.
    """
    return without_result(plan.all_runs() if seeds is None else plan.runs(seeds), folder)


def without_result(runs: Sequence[PlannedRun], folder: Path) -> tuple[PlannedRun, ...]:
    """Return which of some runs of the comparison in `folder` have no result."""
    return tuple(run for run in runs if not run_ending(run_folder(folder, run)).is_complete)


def complete_runs(plan: Plan, folder: Path, seeds: int) -> list[Path]:
    """Return the run folders of the first `seeds` seeds, without incomplete seeds.

    Arms are compared seed by seed, so a seed at which any run left no record is omitted in every
    arm.

    Raises:
        InputError: Too few seeds remain.
    """
    missing = _arms_without_record(plan, folder, seeds)
    if seeds - len(missing) < MIN_SEEDS:
        raise InputError(
            f"{folder}: {len(missing)} of {seeds} seeds lack a run, but at least {MIN_SEEDS} "
            "complete seeds are needed. Repeat the command of the comparison to train the missing "
            "runs."
        )
    return [run_folder(folder, run) for run in _by_seed(plan, seeds) if run.seed not in missing]


def plan_facts(plan: Plan, folder: Path, seeds: int) -> PlanFacts:
    """Return what the analysis of the first `seeds` seeds needs from the plan and its folder."""
    yardstick = None
    with contextlib.suppress(OSError, ValueError):  # it is optional
        yardstick = read_json_object(folder / YARDSTICK_NAME)
    chosen = selection_remark(plan)
    return PlanFacts(
        planned=True,
        seed_counts=plan.design.seed_counts,
        added_after_analysis=plan.added_after_analysis,
        remarks=(
            *([chosen] if chosen else []),
            *(
                remark("omitted_seed", seed=seed, arms=arms)
                for seed, arms in _arms_without_record(plan, folder, seeds).items()
            ),
            *plan.reductions,
        ),
        overhead_share=plan.overhead_share,
        yardstick=yardstick,
        arm_names=plan.arm_names,
        runs_at_a_time=plan.design.jobs,
        nodes=plan.nodes,
    )


def _by_seed(plan: Plan, seeds: int) -> list[PlannedRun]:
    """Return the runs of the first `seeds` seeds by seed, then in the order of the arms."""
    return sorted(plan.runs(seeds), key=lambda run: (run.seed, plan.arms.index(run.arm)))


def _arms_without_record(plan: Plan, folder: Path, seeds: int) -> dict[int, list[JSONValue]]:
    """Return the names of the arms without a run record, by ascending seed."""
    arms: dict[int, list[JSONValue]] = {}
    for run in _by_seed(plan, seeds):
        if run_ending(run_folder(folder, run)).record is None:
            arms.setdefault(run.seed, []).append(run.arm.name)
    return arms


def _seeds_at_last_analysis(plan: Plan, folder: Path) -> int:
    """Return the number of seeds of the last planned analysis whose runs were all started."""
    reached = [
        seeds
        for seeds in plan.design.seed_counts
        if all(
            log_file(folder, run).exists() or run_ending(run_folder(folder, run)).record is not None
            for run in plan.runs(seeds)
        )
    ]
    if not reached:
        raise InputError(
            f"RUN {folder}: the comparison has not reached its first planned analysis, at "
            f"{plan.design.seed_counts[0]} seeds. Repeat its command to continue, or "
            f"{_without_plan(folder)}."
        )
    return max(reached)


def _without_plan(folder: Path) -> str:
    return f"pass the runs themselves ({folder / RUNS_NAME}/*) for a comparison without a plan"
