"""A comparison's folder: which of its runs can be compared, and comparing them again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ampft.arguments.compare import LEAST_SEEDS
from ampft.comparison.execution.ending import outcome
from ampft.comparison.execution.plan import Plan, PlannedRun
from ampft.comparison.execution.plan_file import PLAN_NAME
from ampft.errors import InputError
from ampft.text.json_io import JSONValue

if TYPE_CHECKING:
    from ampft.comparison.findings import Comparison

RUNS_NAME = "runs"
LOGS_NAME = "logs"
YARDSTICK_NAME = "yardstick.json"


def compare_again(
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
    if seeds - len(missing) < LEAST_SEEDS:
        raise InputError(
            f"{folder}: {len(missing)} of {seeds} seeds lack a run, and {LEAST_SEEDS} are needed. "
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
