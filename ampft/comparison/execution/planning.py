"""Make the plan of a comparison, or continue the plan in its folder."""

from __future__ import annotations

import itertools
import shlex
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.flags import later_wins
from ampft.comparison.execution.launch import (
    WHOLE_MACHINE,
    NoResult,
    Program,
    ResourceSlot,
    call_in_subprocess,
    check_memory,
    command_slots,
    launch_command,
    run_command,
)
from ampft.comparison.execution.plan import (
    KIND_OF_LABELS,
    PLAN_NAME,
    TOO_FEW,
    FinalRows,
    Plan,
    TrainingSize,
    TrialResult,
    plan_difference,
    read_plan,
    with_more_seeds,
)
from ampft.comparison.execution.plan_text import (
    limits_of_design,
    points_text,
    rounded_up,
    shows_nothing,
)
from ampft.comparison.extension_points import CLUSTER
from ampft.comparison.remarks import remark
from ampft.comparison.settings import CompareCommand, chosen_metric
from ampft.data.sources.file_names import data_stem
from ampft.errors import InputError, check_type
from ampft.exit_codes import interruptible
from ampft.ownership import is_leftover
from ampft.precision.modes import BASELINE
from ampft.processes import RAY
from ampft.runs.folder import check_creatable
from ampft.runs.redaction import redact_command, redact_secrets
from ampft.runs.start import check_data_files
from ampft.tasks.table import problem_types
from ampft.text.escaping import inert
from ampft.text.json_io import from_json, json_values
from ampft.text.numbers import approximate_duration, counted
from ampft.text.terminal import print_line

TRIAL_MODULE = "ampft.comparison.execution.trial"
FOLDS = 5  # which a refused comparison is advised to use
# Flags of classify.py that reduce a run, by the field of its size.
SIZE_FLAGS = {
    "epochs": "num_train_epochs",
    "max_steps": "max_train_steps",
    "train_examples": "max_train_samples",
}


def plan_comparison(
    command: CompareCommand, timed: Callable[[CompareCommand], dict[str, TrialResult]] | None = None
) -> tuple[Path, Plan]:
    """Return the folder of a comparison and its plan, without writing anything.

    The plan in the folder is continued if there is one. For a new plan, a few steps of each mode
    are timed.

    Args:
        command: Command of the user.
        timed: Returns the measurements of each arm, by name; None times them here.

    Raises:
        InputError: The folder holds something else, the input of the runs is invalid, a mode is not
            available on this device, the budget is too small, or the test data are too few for any
            verdict but "undecided" and `anyway` is not set.
    """
    check_type("plan_comparison", "command", command, CompareCommand)
    design, arguments = command.design, redacted_settings(command)
    output_dir = command.settings.output_dir
    folder = _default_folder(command, arguments) if output_dir is None else Path(output_dir)
    existing = read_plan(folder)
    if existing is not None:
        difference = plan_difference(existing, design, arguments)
        if difference is not None:
            raise InputError(
                f"--output_dir {folder}: the folder holds another comparison: {difference}. Choose "
                "another folder, or use the settings of that comparison to continue it."
            )
        return folder, with_more_seeds(existing, design.seed_counts)
    check_new_folder(folder)
    check_data_files(command.classify)
    start = trial_starter(command)
    if timed is not None:
        trials = timed(command)
    else:
        noun = "arm" if design.arm_settings else "mode"
        print_line(f"trial      reading the data, then timing a few steps of each {noun}")
        with interruptible(lambda: "nothing has been written yet."):
            trials = trials_by_arm(command, start)
    trial = next(iter(trials.values()))
    if design.folds:  # their predictions are joined to one table
        from ampft.tasks.single_label import SingleLabel  # imports torch

        if trial.compared[KIND_OF_LABELS] != SingleLabel.name:
            raise InputError(
                "--folds: it supports tasks with one label per example. For others, pass a "
                "--test_file."
            )
    if design.engine != RAY:  # on a cluster, each run reserves its memory on its node
        check_memory(design.jobs, max(each.estimate.peak_bytes for each in trials.values()))
    modes = None if design.arm_settings else trial.modes
    estimates = {name: each.estimate for name, each in trials.items()}
    plan = Plan(
        design=replace(design, modes=modes, metric=metric_of_task(design.metric, trial)),
        arguments=arguments,
        arm_estimates=estimates if design.arm_settings else {},
        estimate=trial.estimate,
        size=trial.estimate.size,
        notes=command.notes,
    )
    if design.budget is not None:
        plan = fit_to_budget(plan, design.jobs * (design.budget - command_seconds(command)))
    return folder, plan


def redacted_settings(command: CompareCommand) -> Any:
    """Return the settings of the runs as a plan stores them: as JSON, with secrets redacted."""
    return json_values(redact_secrets(asdict(command.classify)))


def command_seconds(command: CompareCommand) -> float:
    """Return the seconds since the command began: by default with the process, and its imports."""
    began = command.started
    return time.time() - (psutil.Process().create_time() if began is None else began)


def metric_of_task(name: str | None, trial: TrialResult) -> str:
    """Return the requested metric, or the primary one of the task that the trial found.

    Raises:
        InputError: The task does not have the metric.
    """
    problem = problem_types()[trial.compared[KIND_OF_LABELS]]
    return chosen_metric(name, list(problem.metrics))


def _default_folder(command: CompareCommand, arguments: dict[str, Any]) -> Path:
    """Return the first folder under comparisons/ that is new or holds this comparison."""
    stem = data_stem(command.classify.dataset_name or command.classify.train_file or "data")
    names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
    for folder in (Path("comparisons", name) for name in names):
        existing = read_plan(folder) if folder.exists() else None
        if not folder.exists() or (
            existing is not None and plan_difference(existing, command.design, arguments) is None
        ):
            return folder
    raise AssertionError("unreachable")


def check_new_folder(folder: Path) -> None:
    """Reject a path that is not a folder, cannot be created, or is not empty."""
    check_creatable(folder)
    files = folder.iterdir() if folder.exists() else ()
    names = sorted(path.name for path in files if not is_leftover(path))
    if names:
        listed = ", ".join(names[:3]) + (" and more" if len(names) > 3 else "")
        raise InputError(
            f"--output_dir {folder}: the folder is not empty ({listed}) and has no {PLAN_NAME}, so "
            "it does not hold a comparison to continue. Choose a new or empty folder."
        )


def check_final_rows(command: CompareCommand, size: FinalRows) -> None:
    """Reject a comparison that cannot be decided, with a command that can.

    Raises:
        InputError: The test data are too few for any verdict but "undecided".
    """
    design = command.design
    metric = chosen_metric(design.metric, list(problem_types()[size.problem].metrics))
    found = limits_of_design(design, metric, cases=size.cases, arms=size.arms)
    if found is None or not shows_nothing(design, found):
        return
    what = f"All {design.folds} folds have" if design.folds else f"{size.split} has"
    smallest = found.smallest_difference
    loss = "no loss" if smallest is None else f"only a loss of {points_text(smallest)} or more"
    folded = replace(design, folds=FOLDS)
    in_folds = limits_of_design(folded, metric, cases=size.rows // FOLDS, arms=size.arms)
    can_fold = _can_fold(command, size) and not shows_nothing(folded, in_folds)
    if can_fold:
        way = f"test on all {size.rows:,} rows, with {FOLDS} times as many runs"
        flags: dict[str, object] = {"folds": FOLDS}
    elif design.arm_settings or found.margin_needed >= 1:
        way, flags = "train anyway", {"anyway": True}
    else:
        margin = rounded_up(100 * found.margin_needed)
        way, flags = f"choose a margin of {margin:g} points", {"margin": margin}
    raise InputError(
        f"{what} {counted(found.cases, 'independent example')}, and no number of seeds can "
        f"show equivalence within {points_text(design.margin)} (--margin) with fewer than "
        f"{found.cases_needed:,}; at best, {loss} can be found. Use more labelled data, or "
        f"{way}: {_command_with(command, **flags)}"
        + ("" if "anyway" in flags else " (or --anyway in its place, to find only large losses)")
    )


def _can_fold(command: CompareCommand, size: FinalRows) -> bool:
    """Return whether the training file has all rows, and nothing set contradicts `--folds`."""
    from ampft.tasks.single_label import SingleLabel  # imports torch

    asked, default = command.classify, ClassifyArguments()
    others = ("validation_file", "test_file", "dataset_name", "test_fraction", "data_seed")
    return (
        asked.train_file is not None
        and size.problem == SingleLabel.name
        and not (command.design.folds or command.design.select_seeds)
        and all(getattr(asked, name) == getattr(default, name) for name in others)
    )


def _command_with(command: CompareCommand, **flags: object) -> str:
    """Return the command line of a comparison with other flags."""
    words, shared = ["ampft", "compare"], list(command.classify_argv)
    for field in fields(command.settings):
        value = flags.get(field.name, getattr(command.settings, field.name))
        every = value if isinstance(value, tuple) else (value,)
        if value is True:
            words.append(f"--{field.name}")
        elif value != field.default:
            words += [word for each in every for word in (f"--{field.name}", str(each))]
    shared = shared[:-2] if command.design.folds else shared  # without --folds, which it has set
    return inert(shlex.join(redact_command([*words, "--", *shared])))


def total_seconds(plan: Plan, size: TrainingSize | None = None) -> float:
    """Return the seconds of all runs if they have this size; None stands for the size of each."""
    estimates = [(plan.estimate_of(run.arm), run.arm.mode) for run in plan.all_runs()]
    return sum(each.run_seconds(mode, size or each.size) for each, mode in estimates)


def fit_to_budget(plan: Plan, budget: float) -> Plan:
    """Reduce the epochs (or the steps, if they limit the run), then the training examples.

    Seeds and evaluation data are never reduced: the precision of the result depends on them.

    Args:
        plan: Plan with runs of the requested size.
        budget: Seconds for all runs.

    Raises:
        InputError: Even the minimum size exceeds the budget, or the runs differ in size.
    """
    if total_seconds(plan) <= budget:
        return plan
    requested, runs = plan.size, plan.all_runs()
    left = f"--budget: {approximate_duration(max(budget, 0))} are left"
    estimates = [plan.estimate_of(run.arm) for run in runs]
    if any(estimate.size != requested for estimate in estimates):
        raise InputError(
            f"{left}, but the runs take about {approximate_duration(total_seconds(plan))}, and "
            "their arms differ in the length of training, which a budget would have to change. "
            "Increase the budget, or shorten the training of the arms."
        )

    def seconds(value: int, name: str, size: TrainingSize) -> float:
        return total_seconds(plan, replace(size, **{name: value}))

    fewest = max(estimate.min_examples() for estimate in estimates)
    minima = {"max_steps": 1} if requested.max_steps else {"epochs": 1, "train_examples": fewest}
    size = requested
    for name, least in minima.items():
        values = range(least, getattr(requested, name) + 1)
        fitting = bisect_right(values, budget, key=partial(seconds, name=name, size=size))
        size = replace(size, **{name: values[max(fitting - 1, 0)]})
        if fitting:
            return _reduced(plan, size)
    steps = counted(plan.estimate.total_steps(size), "optimizer step")
    raise InputError(
        f"{left} for {counted(len(runs), 'run')}, but even with {steps} each, they take about "
        f"{approximate_duration(total_seconds(plan, size))}. Increase the budget, name fewer "
        "arms, or remove --budget. A budget never reduces seeds or evaluation data."
    )


def _reduced(plan: Plan, size: TrainingSize) -> Plan:
    overrides, reductions = {}, []
    for name, flag in SIZE_FLAGS.items():
        before, after = getattr(plan.size, name), getattr(size, name)
        if before != after:
            overrides[flag] = after
            reductions.append(remark("reduced", flag=flag, before=before, after=after))
    return replace(plan, size=size, overrides=overrides, reductions=tuple(reductions))


def trial_starter(command: CompareCommand) -> Callable[[Program], object]:
    """Return a function that runs a program to its end, where the runs of a command will train.

    Raises:
        InputError: There are too few GPUs, cores or nodes.
    """
    if command.design.engine == RAY:
        launcher = CLUSTER.require().ray_launcher_of_trials(command)
        return lambda program: launcher.run(program, lambda: None)
    return _start_in(command_slots(command)[0], command.design.config_file)


def _start_in(slot: ResourceSlot, config_file: str | None) -> Callable[[Program], object]:
    def start(program: Program) -> object:
        words = launch_command(config_file, *program.argv, launcher_flags=slot.launcher_flags)
        return run_command(words, program.log, slot)

    return start


def trials_by_arm(
    command: CompareCommand, start: Callable[[Program], object] | None = None
) -> dict[str, TrialResult]:
    """Return the trial of each arm by name, the baseline first; modes share a single trial.

    Args:
        command: Command of the user.
        start: Runs a trial to its end; None for this machine.

    Raises:
        InputError: A trial failed, or an arm reports on other examples or classes than the
            baseline.
    """
    design = command.design
    if not design.arm_settings:
        argv = list(command.classify_argv)
        return {"": run_trial(argv, design.modes, design.config_file, start, command)}
    baseline = design.arm_settings[0].name
    trials: dict[str, TrialResult] = {}
    for arm in design.arm_settings:
        try:
            argv = later_wins(ClassifyArguments, command.classify_argv, arm.flags)
            checked = None if trials else command  # all arms have the test data of the baseline
            trial = run_trial(argv, (arm.mode,), design.config_file, start, checked)
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


def run_trial(
    classify_argv: Sequence[str],
    modes: Sequence[str] | None,
    config_file: str | None,
    start: Callable[[Program], object] | None = None,
    command: CompareCommand | None = None,
) -> TrialResult:
    """Time a few steps of each mode.

    Args:
        classify_argv: Command line arguments of classify.py.
        modes: Modes to time; None for the default modes that the device supports.
        config_file: Configuration file of Accelerate.
        start: Runs a program to its end; None for this machine.
        command: Comparison that is refused before anything is timed if its test data are too few;
            None for no such check.

    Raises:
        InputError: A run would reject its input, a mode is not available, the test data are too
            few, or the trial failed.
    """
    checked = None if command is None or command.settings.anyway else command.design
    request = {
        "classify_argv": list(classify_argv),
        "modes": modes,
        "launched": time.time(),
        "design": json_values(checked),
    }
    try:
        result = call_in_subprocess(
            TRIAL_MODULE, "trial", request, start or _start_in(WHOLE_MACHINE, config_file)
        )
    except NoResult as error:
        raise InputError(
            f"The trial of a few steps failed: {inert(str(error))}. To find the cause, run ampft "
            "train with the same settings and each --mixed_precision."
        ) from None
    if command is not None and TOO_FEW in result:
        check_final_rows(command, from_json(FinalRows, result[TOO_FEW], TOO_FEW))
    return from_json(TrialResult, result, "trial")
