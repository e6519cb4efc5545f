"""A comparison's folder: how its runs ended, and comparing them again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments.compare import MIN_SEEDS
from ampft.comparison.execution.plan import PLAN_NAME, Plan, PlannedRun
from ampft.errors import InputError
from ampft.runs.record import RunRecord, read_record
from ampft.text.escaping import inert
from ampft.text.json_io import JSONValue

if TYPE_CHECKING:
    from ampft.comparison.findings import Comparison

COMPLETE = ("finished", "diverged")
_ERROR = "error: "
_TAIL = 2**16  # bytes of a log, which hold its end


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: "finished", "diverged", or "failed" for anything else.
        record: Where there is one.
        complaint: The message of bad input; None where there is none.
    """

    status: str
    record: RunRecord | None = None
    complaint: str | None = None

    @property
    def complete(self) -> bool:
        """Whether it has an answer: a run that diverged is one."""
        return self.status in COMPLETE

    def words(self, metric: str) -> str:
        """Return the outcome in a clause for people."""
        if self.status == "finished" and self.record is not None:
            return f"{metric} {self.record.metrics.get(metric, float('nan')):.4f}"
        reason = self.record.reason if self.record is not None else None
        reason = self.complaint or reason
        return f"{self.status} ({inert(reason)})" if reason else self.status


def outcome(folder: Path, log: Path | None = None) -> Outcome:
    """Return how the run in `folder` ended.

    Args:
        folder: Of the run; it need not exist.
        log: What it printed, where a message of bad input is looked for.
    """
    try:
        record = read_record(folder)
    except InputError:
        record = None
    if record is not None and record.status in COMPLETE:
        return Outcome(record.status, record)
    return Outcome("failed", record, None if log is None else _complaint(log))


def _complaint(log: Path) -> str | None:
    """Return the last message of bad input in a log; the launcher hides the exit code."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    found = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    return found[-1] if found else None


RUNS_NAME = "runs"
LOGS_NAME = "logs"
YARDSTICK_NAME = "yardstick.json"


def compare_planned_runs(
    folder: Path,
    plan: Plan,
    *,
    metric: str | None = None,
    margin: float | None = None,
    baseline: str | None = None,
) -> Comparison:
    """Compare the runs of a comparison's folder as its plan has it, at the last look reached.

    Args:
        folder: Of the comparison.
        plan: From its plan.json.
        metric: What the user named; None for nothing, here and below.
        margin: In points.
        baseline: A mode.

    Raises:
        InputError: The user named something else than the plan has, the first look is still to
            come, or the runs cannot be compared.
    """
    from ampft.comparison.analysis.compare import compare_folders

    kept = {"metric": plan.metric, "margin": f"{100 * plan.margin:g}", "baseline": plan.modes[0]}
    shown = None if margin is None else f"{margin:g}"
    asked = {"metric": metric, "margin": shown, "baseline": baseline}
    for name, value in asked.items():
        if value is not None and value != kept[name]:
            raise InputError(
                f"--{name} {value}: the plan in {folder / PLAN_NAME} has {kept[name]}, and its "
                f"verdicts hold for that alone. Leave the flag away, or {_unplanned(folder)}."
            )
    seeds = _reached(plan, folder)
    return compare_folders(
        whole_runs(plan, folder, seeds),
        metric=plan.metric,
        margin=plan.margin,
        baseline=plan.modes[0],
        plan=plan.facts(read_yardstick(folder), lacking=left_out(plan, folder, seeds)),
    )


def run_folder(folder: Path, run: PlannedRun) -> Path:
    """Return the folder of a run."""
    return folder / RUNS_NAME / run.name


def log_file(folder: Path, run: PlannedRun) -> Path:
    """Return the file with what a run printed."""
    return folder / LOGS_NAME / f"{run.name}.log"


def whole_runs(plan: Plan, folder: Path, seeds: int) -> list[Path]:
    """Return the folders of the runs of those of the first `seeds` seeds that are whole.

    Arms are compared pair by pair: a seed at which a run left no record is left out, in every arm.

    Raises:
        InputError: Too few seeds are left to compare.
    """
    missing = _lacking(plan, folder, seeds)
    if seeds - len(missing) < MIN_SEEDS:
        raise InputError(
            f"{folder}: {len(missing)} of {seeds} seeds lack a run, and {MIN_SEEDS} are needed. "
            "The comparison's own command trains what is missing."
        )
    place = plan.arms.index
    runs = sorted(plan.runs(seeds), key=lambda run: (run.seed, place(run.arm)))
    return [run_folder(folder, run) for run in runs if run.seed not in missing]


def left_out(plan: Plan, folder: Path, seeds: int) -> tuple[str, ...]:
    """Return a sentence for each of the first `seeds` seeds that `whole_runs` leaves out."""
    return tuple(
        f"seed {seed} is left out: {' and '.join(arms)} left no record at it"
        for seed, arms in _lacking(plan, folder, seeds).items()
    )


def read_yardstick(folder: Path) -> Mapping[str, JSONValue] | None:
    """Return the noise yardstick of a comparison's folder; None where it has none."""
    try:
        found = json.loads((folder / YARDSTICK_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _lacking(plan: Plan, folder: Path, seeds: int) -> dict[int, list[str]]:
    """Return the arms without a record by ascending seed."""
    found: dict[int, list[str]] = {}
    place = plan.arms.index
    for run in sorted(plan.runs(seeds), key=lambda run: (run.seed, place(run.arm))):
        if outcome(run_folder(folder, run)).record is None:
            found.setdefault(run.seed, []).append(run.arm.name)
    return found


def _reached(plan: Plan, folder: Path) -> int:
    """Return the last look all of whose runs were started: one between looks was not planned."""
    reached = [
        look
        for look in plan.looks
        if all(
            log_file(folder, run).exists() or outcome(run_folder(folder, run)).record is not None
            for run in plan.runs(look)
        )
    ]
    if not reached:
        raise InputError(
            f"RUN {folder}: has not come to its first look, at {plan.looks[0]} seeds. Let the "
            f"comparison go on with its own command, or {_unplanned(folder)}."
        )
    return max(reached)


def _unplanned(folder: Path) -> str:
    return f"name the runs themselves, {folder / RUNS_NAME}/*, for a comparison without a plan"
