"""From a command line to a plan: a new one, or the one that its folder already has."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from ampft.arguments.compare import CompareCommand
from ampft.comparison.arms import arms_of
from ampft.comparison.execution.estimate import Estimate, ModeCost, Size, fit
from ampft.comparison.execution.launch import interruptible, launch_command, run_to_end
from ampft.comparison.execution.plan import (
    PLAN_NAME,
    Plan,
    PlannedRun,
    difference,
    interleaved,
    read_plan,
    with_looks,
)
from ampft.errors import InputError
from ampft.files import nearest_existing
from ampft.runs.folder import LOCK_NAME, check_creatable
from ampft.runs.record import withhold_secrets
from ampft.text.escaping import inert
from ampft.text.json_io import json_values
from ampft.text.numbers import about, counted
from ampft.text.terminal import labelled, print_line


def plan_comparison(command: CompareCommand) -> tuple[Path, Plan]:
    """Return the folder of a comparison and its plan; nothing is written yet.

    A folder that has a plan goes on with it. For a new one, a few steps are measured.

    Raises:
        InputError: The folder holds something else, the input of the runs is bad, a mode is not
            available here, or the budget is too small.
    """
    asked = question(command)
    folder = command.output_dir or _default_folder(command, asked)
    kept = read_plan(folder)
    if kept is not None:
        return folder, _continued(kept, asked, folder)
    _refuse_contents(folder)
    print_line("trial      a few steps of each mode, for the plan")
    with interruptible(lambda: "nothing was written yet."):
        measured = measure(command.classify_argv, command.modes, command.config_file)
    planned_arms = arms_of(measured.modes, placebo=command.placebo)
    runs = interleaved(planned_arms, range(command.looks[-1]))
    left = None if command.budget is None else command.budget - seconds_of_process()
    fitted = fit(measured.estimate, [run.arm.mode for run in runs], left)
    return folder, Plan(
        **{**asked, "modes": measured.modes},
        estimate=measured.estimate,
        size=fitted.size,
        overrides=fitted.overrides,
        reductions=fitted.sentences,
        notes=command.notes,
    )


def question(command: CompareCommand) -> dict[str, Any]:
    """Return what a command asks, as a plan names it."""
    return {
        "modes": command.modes,
        "first_seed": command.classify.seed,
        "looks": command.looks,
        "metric": command.metric,
        "margin": command.margin,
        "placebo": command.placebo,
        "arguments": json_values(withhold_secrets(asdict(command.classify))),
        "config_file": command.config_file,
        "budget": command.budget,
    }


def seconds_of_process() -> float:
    """Return the seconds since this process began, its imports included."""
    return time.time() - psutil.Process().create_time()


def plan_lines(folder: Path, plan: Plan, todo: tuple[PlannedRun, ...]) -> str:
    """Return the plan for people, with the time and the disk that `todo` take."""
    estimate, runs = plan.estimate, plan.runs()
    size, seeds = plan.size, plan.looks[-1]
    named = [
        f"{arm.name}: {arm.mode} again, its initial weights one unit in the last place off"
        if arm.is_perturbed
        else f"{arm.mode} ({estimate.executions[arm.mode]})"
        for arm in plan.arms
    ]
    looks = ""
    if len(plan.looks) > 1:
        looks = f", a look after {' and '.join(map(str, plan.looks))}"
    steps, per_epoch = estimate.total_steps(size), estimate.steps_per_epoch(size)
    each = ", ".join(f"{m} {about(estimate.run_seconds(m, size))}" for m in plan.modes)
    total = sum(map(plan.expected_seconds, todo))
    space = len(todo) * estimate.model_bytes / 2**30
    kept = f"; {len(runs) - len(todo)} done before" if len(todo) < len(runs) else ""
    lines = [
        labelled("comparing", f"{', '.join(named)}; on {estimate.device}"),
        labelled(
            "seeds",
            f"{plan.first_seed} to {plan.first_seed + seeds - 1}{looks}; "
            f"{counted(len(runs), 'run')}, one after the other, arms interleaved{kept}",
        ),
        labelled(
            "each run",
            f"{counted(steps, 'step')} = {steps / per_epoch:.3g} x {per_epoch} per epoch; "
            f"{counted(size.train_examples, 'training example')}; effective batch "
            f"{estimate.effective_batch_size}",
        ),
    ]
    if todo:
        models = counted(len(todo), "model")
        lines.append(labelled("time", f"about {about(total)}; a run: {each}"))
        lines.append(labelled("disk", f"{space:.1f} GiB for {models}{_free(folder, space)}"))
    if plan.reductions:
        lines.append(labelled("budget", *plan.reductions))
    if plan.added_after_look:
        lines.append(
            labelled("note", "seeds are added after a look at results; the report says so")
        )
    lines += [labelled("note", note) for note in plan.notes]
    return "\n".join([*lines, labelled("folder", str(folder))])


def _free(folder: Path, needed: float) -> str:
    free = shutil.disk_usage(nearest_existing(folder)).free / 2**30
    return f"; only {free:.1f} GiB are free" if free < needed else ""


def _continued(kept: Plan, asked: dict[str, Any], folder: Path) -> Plan:
    differs = difference(kept, asked)
    if differs is not None:
        raise InputError(
            f"--output_dir {folder}: holds another comparison: {differs}. Name another folder, or "
            "repeat that comparison's settings to go on with it."
        )
    plan = with_looks(kept, asked["looks"])
    if plan.looks[-1] > kept.looks[-1] and plan.reductions:
        note = "Seeds were added; the budget was fitted to fewer, and every run keeps its size."
        return replace(plan, notes=(*plan.notes, note))
    return plan


def _refuse_contents(folder: Path) -> None:
    """Refuse a folder that is none, cannot be made, or has something else in it."""
    check_creatable(folder)
    found = (
        sorted(p.name for p in folder.iterdir() if p.name != LOCK_NAME) if folder.exists() else []
    )
    if found:
        shown = ", ".join(found[:3]) + (" and more" if len(found) > 3 else "")
        raise InputError(
            f"--output_dir {folder}: is not empty ({shown}) and holds no comparison that could go "
            f"on: there is no {PLAN_NAME}. Name a new or empty folder."
        )


def _default_folder(command: CompareCommand, asked: dict[str, Any]) -> Path:
    """Return the first folder under comparisons/ that is new or holds this very comparison."""
    source = command.classify.dataset_name or command.classify.train_file or "data"
    stem = Path(source).stem
    for number in range(1, sys.maxsize):
        folder = Path("comparisons", stem if number == 1 else f"{stem}-{number}")
        kept = read_plan(folder) if folder.exists() else None
        if not folder.exists() or (kept is not None and difference(kept, asked) is None):
            return folder
    raise AssertionError("numbers do not end")


MODULE = "ampft.comparison.execution.trial"


@dataclass(frozen=True)
class Measured:
    """What the trial found; `modes` are those asked for, or of the default those available."""

    estimate: Estimate
    modes: tuple[str, ...]


def measure(words: Sequence[str], modes: Sequence[str] | None, config_file: str | None) -> Measured:
    """Time a few steps of each mode.

    Args:
        words: Settings of classify.py.
        modes: To measure; None for those of the default that the device has.
        config_file: Of Accelerate.

    Raises:
        InputError: A run would refuse its input, a mode is not available, or the trial failed.
    """
    with tempfile.TemporaryDirectory(prefix="ampft-") as name:
        folder = Path(name)
        request = {"words": list(words), "modes": modes, "launched": time.time()}
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        paths = str(folder / "request.json"), str(folder / "result.json")
        run_to_end(launch_command(config_file, "-m", MODULE, *paths), folder / "log")
        try:
            result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise InputError(_failed(folder / "log")) from None
    if "error" in result:
        raise InputError(result["error"])
    return _measured(result)


def _measured(result: dict[str, Any]) -> Measured:
    modes, threads = tuple(result.pop("modes_here")), result.pop("threads")
    if result["device"] == "cpu":
        result["device"] = f"CPU, {threads} thread{'s' * (threads != 1)}"
    costs = {mode: ModeCost(**cost) for mode, cost in result["modes"].items()}
    size = Size(**result["size"])
    return Measured(Estimate(**{**result, "modes": costs, "size": size}), modes)


def _failed(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # The launcher's own traceback comes after that of the process.
    ends = [line for line in lines if "Error" in line and not line.startswith(" ")]
    reason = inert(ends[0]) if ends else "it said nothing"
    return (
        f"a trial of a few steps failed: {reason}. Try recipes/classify.py with the same settings "
        "and each --mixed_precision."
    )
