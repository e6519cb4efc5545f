"""Make the plan of a comparison, or continue the plan in its folder."""

from __future__ import annotations

import json
import math
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from ampft.arguments.compare import CompareCommand, ComparisonDesign, chosen_metric
from ampft.comparison.arms import Arm
from ampft.comparison.execution.estimate import KIND_OF_LABELS, ExpectedRun, TrialResult, fit
from ampft.comparison.execution.launch import interruptible, launch_command, run_command
from ampft.comparison.execution.plan import (
    PLAN_NAME,
    Plan,
    PlannedRun,
    plan_difference,
    read_plan,
    with_more_seeds,
)
from ampft.comparison.remarks import remark_texts
from ampft.comparison.statistics.multiplicity import alpha_per_analysis
from ampft.comparison.statistics.reach import Reach, reach
from ampft.data.sources.file_names import data_stem
from ampft.errors import InputError
from ampft.files import nearest_existing
from ampft.ownership import is_leftover, temporary_folder
from ampft.precision.modes import BASELINE
from ampft.runs.folder import check_creatable
from ampft.runs.redaction import redact_secrets
from ampft.runs.start import check_data_files
from ampft.tasks import problem_types
from ampft.text.escaping import inert
from ampft.text.json_io import from_json, json_values, read_json_object
from ampft.text.numbers import approximate_duration, counted, in_epochs
from ampft.text.terminal import labelled, print_line


def plan_comparison(command: CompareCommand) -> tuple[Path, Plan]:
    """Return the folder of a comparison and its plan, without writing anything.

    The plan in the folder is continued if there is one. For a new plan, a few steps of each mode
    are timed.

    Raises:
        InputError: The folder holds something else, the input of the runs is invalid, a mode is not
            available on this device, the budget is too small, or the test data are too few for any
            verdict but "undecided" and `anyway` is not set.
    """
    design, arguments = command.design, requested_arguments(command)
    folder = command.output_dir or _default_folder(command, arguments)
    existing = read_plan(folder)
    if existing is not None:
        return folder, _continued_plan(existing, design, arguments, folder)
    _check_new_folder(folder)
    check_data_files(command.classify)
    noun = "arm" if design.arm_settings else "mode"
    print_line(f"trial      timing a few steps of each {noun} to plan the comparison")
    with interruptible(lambda: "nothing has been written yet."):
        trials = arm_trials(command)
    trial = next(iter(trials.values()))
    estimates = {name: each.estimate for name, each in trials.items()}
    plan = Plan(
        design=replace(
            design,
            modes=None if design.arm_settings else trial.modes,
            metric=metric_of_task(design.metric, trial),
        ),
        arguments=arguments,
        arm_estimates=estimates if design.arm_settings else {},
        estimate=trial.estimate,
        size=trial.estimate.size,
        notes=command.notes,
    )
    budget = None if design.budget is None else design.budget - command_seconds(command)
    expected = [ExpectedRun(plan.estimate_of(r.arm), r.arm.mode) for r in plan.all_runs()]
    fitted = fit(expected, budget)
    plan = replace(plan, size=fitted.size, overrides=fitted.overrides, reductions=fitted.reductions)
    if not command.anyway:
        _check_reach(plan, trial.compared["reported split"])
    return folder, plan


def plan_reach(plan: Plan) -> Reach | None:
    """Return what a comparison can show at best; None if its metric is not a share."""
    metrics = [kind.metrics for kind in problem_types().values() if plan.metric in kind.metrics]
    if plan.estimate.cases is None or not all(each[plan.metric].is_share for each in metrics):
        return None
    return reach(
        plan.estimate.cases,
        seeds=plan.design.seed_counts[-1],
        arms=sum(not arm.is_perturbed for arm in plan.compared_arms) - 1,
        margin=plan.design.margin,
        alpha=alpha_per_analysis(plan.design.seed_counts),
        metric=plan.metric,
    )


def _check_reach(plan: Plan, split: str) -> None:
    """Reject a comparison that cannot be decided.

    Modes are compared to find one that is equivalent, and other settings to find a better one.
    """
    found = plan_reach(plan)
    design = plan.design
    if found is None or (found.smallest_difference if design.arm_settings else _is_enough(found)):
        return
    difference = found.smallest_difference
    loss = "no loss" if difference is None else f"only a loss of {_points(difference)} or more"
    raise InputError(
        f"--margin {100 * design.margin:g}: {split} has "
        f"{counted(found.cases, 'independent example')}, and no number of seeds can show "
        f"equivalence within {_points(design.margin)} with fewer than "
        f"{found.cases_needed:,}; at best, {loss} can be found. Use more test data, a "
        f"--margin of at least {_rounded_up(100 * found.margin_needed):g}, or --anyway."
    )


def _is_enough(found: Reach) -> bool:
    return found.cases >= found.cases_needed


def reach_text(plan: Plan) -> str | None:
    """Return what a comparison can show at best, for readers; None if it is unknown."""
    found = plan_reach(plan)
    if found is None:
        return None
    seeds, margin = counted(plan.design.seed_counts[-1], "seed"), _points(plan.design.margin)
    equivalence = f"equivalence within {margin}"
    if not _is_enough(found):
        equivalence = f"no {equivalence} (it takes {found.cases_needed:,} examples)"
    elif not found.is_equivalence_possible:
        equivalence = f"no {equivalence} with so few seeds"
    difference = found.smallest_difference
    loss = "no loss" if difference is None else f"a loss of {_points(difference)} or more"
    return (
        f"with {counted(found.cases, 'independent example')} and {seeds}, at best: {equivalence}, "
        f"and {loss} in {plan.metric}"
    )


def _points(share: float) -> str:
    value = _rounded_up(100 * share)
    return f"{value:g} point{'s' * (value != 1)}"


def _rounded_up(points: float) -> float:
    """Return points rounded up to two significant digits."""
    scale = 10 ** (1 - math.floor(math.log10(points)))
    return math.ceil(round(points * scale, 6)) / scale


def metric_of_task(name: str | None, trial: TrialResult) -> str:
    """Return the requested metric, or the primary one of the task that the trial found.

    Raises:
        InputError: The task does not have the metric.
    """
    problem = problem_types()[trial.compared[KIND_OF_LABELS]]
    return chosen_metric(name, list(problem.metrics))


def arm_trials(command: CompareCommand) -> dict[str, TrialResult]:
    """Return the trial of each arm by name, the baseline first; modes share a single trial.

    Raises:
        InputError: A trial failed, or an arm reports on other examples or classes than the
            baseline.
    """
    design = command.design
    if not design.arm_settings:
        return {"": run_trial(command.classify_argv, design.modes, design.config_file)}
    baseline = design.arm_settings[0].name
    trials: dict[str, TrialResult] = {}
    for arm in design.arm_settings:
        try:
            argv = (*command.classify_argv, *arm.flags)
            trial = run_trial(argv, (arm.mode,), design.config_file)
        except InputError as error:
            raise InputError(f"--arm {arm.name}: {error}") from error
        evaluates = "--evaluate_fp32" in argv
        estimate = replace(trial.estimate, evaluates_fp32=evaluates and arm.mode == BASELINE)
        trials[arm.name] = replace(trial, estimate=estimate)
        _check_compared(baseline, arm.name, trials)
        if design.select_seeds:
            _check_selection(baseline, arm.name, trials)
    return trials


def _check_selection(baseline: str, name: str, trials: Mapping[str, TrialResult]) -> None:
    """Reject a selection without separate examples for the choice and for the result."""
    trial = trials[name]
    if "validation" not in trial.splits or trial.compared["reported split"] == "validation":
        raise InputError(
            "--select validation: the data need a validation and a test split, so that the "
            "examples that choose an arm are not those that estimate its gain. Add "
            "--validation_file and --test_file, or --test_fraction."
        )
    if trial.splits["validation"] != trials[baseline].splits["validation"]:
        raise InputError(
            f"--select validation: {name} and {baseline} have different validation examples. "
            "Choose between arms with the same ones."
        )


def _check_compared(baseline: str, name: str, trials: Mapping[str, TrialResult]) -> None:
    """Reject an arm that would report on other examples or classes than the baseline."""
    expected, received = trials[baseline].compared, trials[name].compared
    for what, value in expected.items():
        if received.get(what) != value:
            left, right = (inert(str(side))[:60] for side in (value, received.get(what)))
            raise InputError(
                f"--arm {name}: it differs from {baseline} in {what}: {left} and {right}. Compare "
                "arms that report on the same examples with the same classes."
            )


def requested_arguments(command: CompareCommand) -> Any:
    """Return the settings of classify.py that a plan keeps: as JSON, with secrets redacted."""
    return json_values(redact_secrets(asdict(command.classify)))


def command_seconds(command: CompareCommand) -> float:
    """Return the seconds since the command began: by default with the process, and its imports."""
    began = command.started
    return time.time() - (psutil.Process().create_time() if began is None else began)


def keeps_model(plan: Plan, run: PlannedRun, keep_models: str) -> bool:
    """Return whether the weights of a complete run stay, by the value of `--keep_models`."""
    return keep_models == "all" or (keep_models == "baseline" and run.arm == plan.arms[0])


def plan_lines(
    folder: Path, plan: Plan, todo: tuple[PlannedRun, ...], keep_models: str = "all"
) -> str:
    """Return a description of the plan, with the time and the disk space that `todo` needs."""
    design, runs = plan.design, plan.all_runs()
    seeds = design.seed_counts[-1]
    first = design.first_seed + design.select_seeds
    choosing = ""
    if design.select_seeds:
        choosing = f"{design.first_seed} to {first - 1} choose an arm on validation; "
    arms = [
        f"{arm.name} ({plan.arms[0].name} with initial weights changed by one unit in the last "
        "place)"
        if arm.is_perturbed
        else _arm_text(plan, arm)
        for arm in plan.arms
    ]
    plain = [arm for arm in plan.arms if not arm.is_perturbed]
    analyses = ""
    if len(design.seed_counts) > 1:
        analyses = f", analysed after {' and '.join(map(str, design.seed_counts))} seeds"
    per_run = ", ".join(
        f"{arm.name} {approximate_duration(plan.expected_seconds(PlannedRun(arm, 0)))}"
        for arm in plain
    )
    sizes: dict[str, list[str]] = {}
    for arm in plain:
        sizes.setdefault(_size_text(plan, arm), []).append(arm.name)
    total = sum(map(plan.expected_seconds, todo))
    kept = [run for run in todo if keeps_model(plan, run, keep_models)] or todo[:1]
    disk_gib = sum(plan.estimate_of(run.arm).model_bytes for run in kept) / 2**30
    done = f"; {len(runs) - len(todo)} already done" if len(todo) < len(runs) else ""
    lines = [
        labelled("comparing", f"{', '.join(arms)}; on {plan.estimate.device}"),
        labelled(
            "seeds",
            f"{choosing}{first} to {first + seeds - 1}{analyses}; "
            f"{counted(len(runs), 'run')}, one at a time, arms interleaved{done}",
        ),
        labelled(
            "each run",
            *(
                text if len(sizes) == 1 else f"{', '.join(names)}: {text}"
                for text, names in sizes.items()
            ),
        ),
    ]
    if shown := reach_text(plan):
        lines.append(labelled("can show", shown))
    if todo:
        models = counted(len(kept), "model")
        lines.append(
            labelled("time", f"about {approximate_duration(total)} in total; per run: {per_run}")
        )
        lines.append(
            labelled("disk", f"{disk_gib:.1f} GiB for {models}{_free_space_note(folder, disk_gib)}")
        )
    if plan.reductions:
        lines.append(labelled("budget", *remark_texts(plan.reductions)))
    if plan.added_after_analysis:
        lines.append(
            labelled("note", "Seeds are added after results were analysed; the report states this.")
        )
    lines += [labelled("note", note) for note in plan.notes]
    return "\n".join([*lines, labelled("folder", str(folder))])


def _arm_text(plan: Plan, arm: Arm) -> str:
    """Return an arm with its settings, and whether it is native or emulated."""
    execution = plan.estimate_of(arm).executions[arm.mode]
    if not plan.design.arm_settings:
        return f"{arm.name} ({execution})"
    (settings,) = [each for each in plan.design.arm_settings if each.name == arm.name]
    flags = shlex.join(settings.flags) or "shared settings"
    return f"{arm.name} ({flags}; {arm.mode}, {execution})"


def _size_text(plan: Plan, arm: Arm) -> str:
    """Return the length of a run of an arm."""
    estimate, size = plan.estimate_of(arm), plan.size_of(arm)
    steps, per_epoch = estimate.total_steps(size), estimate.steps_per_epoch(size)
    return (
        f"{counted(steps, 'step')} {in_epochs(steps, per_epoch)}; "
        f"{counted(size.train_examples, 'training example')}; effective batch "
        f"{estimate.effective_batch_size}"
    )


def _free_space_note(folder: Path, needed: float) -> str:
    free = shutil.disk_usage(nearest_existing(folder)).free / 2**30
    return f"; only {free:.1f} GiB free" if free < needed else ""


def _continued_plan(
    existing: Plan, requested: ComparisonDesign, arguments: dict[str, Any], folder: Path
) -> Plan:
    difference = plan_difference(existing, requested, arguments)
    if difference is not None:
        raise InputError(
            f"--output_dir {folder}: the folder holds another comparison: {difference}. Name "
            "another folder, or use the settings of that comparison to continue it."
        )
    plan = with_more_seeds(existing, requested.seed_counts)
    if plan.design.seed_counts[-1] > existing.design.seed_counts[-1] and plan.reductions:
        note = "Seeds were added after runs were reduced to fit the budget; runs keep that size."
        return replace(plan, notes=(*plan.notes, note))
    return plan


def _check_new_folder(folder: Path) -> None:
    """Reject a path that is not a folder, cannot be created, or is not empty."""
    check_creatable(folder)
    names = (
        sorted(p.name for p in folder.iterdir() if not is_leftover(p)) if folder.exists() else []
    )
    if names:
        listed = ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
        raise InputError(
            f"--output_dir {folder}: the folder is not empty ({listed}) and has no {PLAN_NAME}, so "
            "it does not hold a comparison to continue. Name a new or empty folder."
        )


def _default_folder(command: CompareCommand, arguments: dict[str, Any]) -> Path:
    """Return the first folder under comparisons/ that is new or holds this comparison."""
    source = command.classify.dataset_name or command.classify.train_file or "data"
    stem = data_stem(source)
    for number in range(1, sys.maxsize):
        folder = Path("comparisons", stem if number == 1 else f"{stem}-{number}")
        existing = read_plan(folder) if folder.exists() else None
        if not folder.exists() or (
            existing is not None and plan_difference(existing, command.design, arguments) is None
        ):
            return folder
    raise AssertionError("unreachable")


TRIAL_MODULE = "ampft.comparison.execution.trial"


def run_trial(
    classify_argv: Sequence[str], modes: Sequence[str] | None, config_file: str | None
) -> TrialResult:
    """Time a few steps of each mode.

    Args:
        classify_argv: Command line arguments of classify.py.
        modes: Modes to time; None for the default modes that the device supports.
        config_file: Configuration file of Accelerate.

    Raises:
        InputError: A run would reject its input, a mode is not available, or the trial failed.
    """
    folder = temporary_folder("trial")
    request = {"classify_argv": list(classify_argv), "modes": modes, "launched": time.time()}
    (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
    paths = str(folder / "request.json"), str(folder / "result.json")
    run_command(launch_command(config_file, "-m", TRIAL_MODULE, *paths), folder / "log")
    try:
        result = read_json_object(folder / "result.json")
    except (OSError, ValueError):
        raise InputError(_trial_error(folder / "log")) from None
    if "error" in result:
        raise InputError(result["error"])
    return from_json(TrialResult, result, "trial")


def _trial_error(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    # The launcher prints its own traceback after the process's traceback.
    errors = [line for line in lines if "Error" in line and not line.startswith(" ")]
    reason = inert(errors[0]) if errors else "no error message"
    return (
        f"The trial of a few steps failed: {reason}. To find the cause, run ampft train with "
        "the same settings and each --mixed_precision."
    )
