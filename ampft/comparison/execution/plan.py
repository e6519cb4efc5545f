"""The plan of a comparison: its arms, seeds, the order of its runs and their cost; plan.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, cast

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.flags import flag_values
from ampft.comparison.remarks import Remark, remark_texts
from ampft.comparison.settings import PLACEBO, ComparisonDesign
from ampft.errors import InputError
from ampft.files import read_hashed
from ampft.precision.modes import BASELINE, MODE_TABLE
from ampft.text.escaping import inert
from ampft.text.json_io import Count, JSONValue, NotNegative, Positive, from_json, json_values

PLAN_NAME = "plan.json"
SCHEMA = 4  # since 4, the file states its own hash
LONGEST_RUN = 1e9  # seconds
FLAG_NAMES = {"first_seed": "seed", "arm_settings": "arm"}
KIND_OF_LABELS = "kind of labels"
TOO_FEW = "too few"  # key of the `FinalRows` that ends a trial before anything is timed
# A model cannot learn a class from fewer examples.
MIN_EXAMPLES_PER_CLASS = 8


@dataclass(frozen=True, kw_only=True)
class ModeCost:
    """Cost of a mode: seconds per optimizer step, and per example in evaluation."""

    step: NotNegative
    evaluated_example: NotNegative


@dataclass(frozen=True, kw_only=True)
class TrainingSize:
    """How much a run trains on."""

    epochs: Positive  # Passes over the training data.
    train_examples: Positive  # Number of training examples.
    max_steps: Positive | None = None  # Number of optimizer steps; None trains for `epochs`.


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    """What runs cost, measured before the first one."""

    startup: NotNegative  # Seconds from launching a process to its first step.
    modes: Mapping[str, ModeCost]  # Cost by mode.
    executions: Mapping[str, str]  # "native", "emulated" or "unproven", by mode.
    device: str  # Description such as "CPU, 2 threads".
    size: TrainingSize  # Requested size of a run.
    effective_batch_size: Positive  # Examples per optimizer step, over all processes.
    validation_examples: Count  # Examples of each validation; 0 for none.
    final_examples: Count  # Examples of the final report, evaluated in the mode and again in fp32.
    classes: Count  # Number of classes.
    model_bytes: Count  # Size of a saved model in bytes.
    # Optimizer steps between validations; None validates after each epoch.
    eval_steps: Positive | None = None
    evaluates_fp32: bool = True  # Whether runs also predict the final split in fp32.
    # Number of independent examples of the final report: groups count once; None in plans of
    # earlier versions.
    cases: int | None = None
    # Peak resident memory of the process that took the measurements, in bytes; 0 if it is unknown.
    peak_bytes: Count = 0

    def steps_per_epoch(self, size: TrainingSize) -> int:
        """Return the optimizer steps per epoch, including a short last one."""
        return -(-size.train_examples // self.effective_batch_size)

    def total_steps(self, size: TrainingSize) -> int:
        """Return the optimizer steps of a run."""
        return size.max_steps or size.epochs * self.steps_per_epoch(size)

    def run_seconds(self, mode: str, size: TrainingSize) -> float:
        """Return the seconds of a run in `mode`, from launch to end."""
        cost = self.modes[mode]
        steps = self.total_steps(size)
        validations = -(-steps // (self.eval_steps or self.steps_per_epoch(size)))
        evaluated = validations * self.validation_examples + self.final_examples
        in_fp32 = 0.0
        if self.evaluates_fp32:
            in_fp32 = self.final_examples * self.modes[BASELINE].evaluated_example
        return self.startup + steps * cost.step + evaluated * cost.evaluated_example + in_fp32

    def min_examples(self) -> int:
        """Return the minimum number of training examples that a budget may leave."""
        needed = max(self.effective_batch_size, MIN_EXAMPLES_PER_CLASS * self.classes)
        return min(needed, self.size.train_examples)


@dataclass(frozen=True)
class TrialResult:
    """The result of the trial."""

    estimate: CostEstimate  # Measured costs.
    modes: tuple[str, ...]  # Requested modes, or the available default modes.
    splits: Mapping[str, str]  # Fingerprints of the splits of the data, by name.
    # What must be equal in all runs of a comparison, as names and values for readers: the split of
    # the final report, its contents, and the classes.
    compared: Mapping[str, str]
    # Peak memory of a process on its device after the longest step, in bytes; None if it cannot be
    # measured.
    peak_memory: Count | None = None
    disk_bytes: Count = 0  # Size of the weights and checkpoints that a run saves.
    learning_rate: float | None = None  # Peak learning rate of a run, also if it is the default.
    import_seconds: NotNegative = 0.0  # Part of the startup before the data are read.


@dataclass(frozen=True, kw_only=True)
class FinalRows:
    """How much the test data of a comparison can show, which is known before anything is timed."""

    split: str  # Split of the final report.
    cases: Positive  # Its independent examples; with folds, per fold.
    rows: Positive  # Independent rows of all splits.
    problem: str  # Kind of labels.
    arms: Count  # Number of arms that are compared with the baseline.


@dataclass(frozen=True)
class Arm:
    """A name and settings, or the placebo: the baseline from perturbed initial weights."""

    name: str  # Name in tables, folders and plots.
    # Flags of classify.py that its runs have beside those that all runs share.
    flags: tuple[str, ...]
    mode: str  # Precision of its runs.
    # Whether its initial weights are changed by one unit in the last place.
    is_perturbed: bool = False


def mode_arm(mode: str) -> Arm:
    """Return the arm of a precision, which also predicts in float32 where it can."""
    flags = ["--mixed_precision", mode]
    if not MODE_TABLE[mode].replaces_layers:
        flags.append("--evaluate_fp32")
    return Arm(mode, tuple(flags), mode)


@dataclass(frozen=True)
class PlannedRun:
    """One run: an arm with a seed, and a fold from 1; 0 without folds."""

    arm: Arm
    seed: int
    fold: int = 0

    @property
    def name(self) -> str:
        """The name of its folder and its log."""
        return f"{self.arm.name}-seed{self.seed}" + (f"-fold{self.fold}" if self.fold > 0 else "")

    @property
    def title(self) -> str:
        """What it is called on the terminal."""
        return f"{self.arm.name} seed {self.seed}" + (f" fold {self.fold}" if self.fold > 0 else "")

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of classify.py that distinguish it from the other runs."""
        perturbed = ["--perturb_initial_weights"] if self.arm.is_perturbed else []
        fold = ["--fold", str(self.fold)] if self.fold > 0 else []
        return (*self.arm.flags, "--seed", str(self.seed), *perturbed, *fold)


@cache
def set_by_flags(flags: tuple[str, ...]) -> dict[str, JSONValue]:
    """Return the settings that the flags of a planned run set, as a record has them."""
    return cast("dict[str, JSONValue]", json_values(flag_values(ClassifyArguments, flags)))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a comparison and its progress; `plan.json`."""

    # What is compared, and how; the trial has chosen what the command left open.
    design: ComparisonDesign
    arguments: Mapping[str, Any]  # Parsed settings of classify.py, with secrets redacted.
    estimate: CostEstimate  # Measurements taken before the first run.
    size: TrainingSize  # Size of each run, after reductions to fit the budget.
    overrides: Mapping[str, int] = field(default_factory=dict)  # Settings that the budget changes.
    reductions: tuple[Remark, ...] = ()  # One remark per override.
    notes: tuple[str, ...] = ()  # Notes on other decisions, such as that fp32 was added.
    # Numbers of seeds that were complete when the results were analysed.
    seeds_analysed: tuple[int, ...] = ()
    # Whether unplanned seeds were added after results were seen.
    added_after_analysis: bool = False
    runs_seconds: NotNegative = 0.0  # Time of the runs so far, from launch to end.
    # Time of the comparison itself so far, without the runs and the yardstick.
    own_seconds: NotNegative = 0.0
    yardstick_seconds: NotNegative = 0.0  # Time of the noise yardstick.
    # Time at which the plan was made, ISO 8601, UTC.
    written: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    # Measurements taken for each arm with its own settings, by name.
    arm_estimates: Mapping[str, CostEstimate] = field(default_factory=dict)
    # Name of the arm that was chosen; None before, and if all arms are compared.
    selected: str | None = None
    # Mean validation metric of the arms that could be chosen, by name.
    selection_scores: Mapping[str, float] = field(default_factory=dict)
    # Name of the node of a cluster that trained each run, by the name of the run.
    nodes: Mapping[str, str] = field(default_factory=dict)
    schema: int = SCHEMA  # Version of this layout.

    @property
    def metric(self) -> str:
        """Name of the primary metric."""
        assert self.design.metric is not None, "the trial chose it"
        return self.design.metric

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The baseline, its placebo and the other arms."""
        arms = [
            Arm(each.name, (*each.flags, "--mixed_precision", each.mode), each.mode)
            for each in self.design.arm_settings
        ] or [mode_arm(mode) for mode in self.design.modes or ()]
        if self.design.placebo and arms:
            arms.insert(1, replace(arms[0], name=PLACEBO, is_perturbed=True))
        return tuple(arms)

    @property
    def compared_arms(self) -> tuple[Arm, ...]:
        """The arms that are compared: all, or the baseline, its placebo and the chosen arm.

        Before the choice, the arm that takes longest stands for the chosen one.
        """
        if not self.design.select_seeds:
            return self.arms

        def seconds(arm: Arm) -> float:
            return self.expected_seconds(PlannedRun(arm, self.design.first_seed))

        others = [arm for arm in self.arms[1:] if not arm.is_perturbed]
        chosen = self.selected or max(others, key=seconds).name
        kept = {self.arms[0].name, PLACEBO, chosen}
        return tuple(arm for arm in self.arms if arm.name in kept)

    @property
    def selection_runs(self) -> tuple[PlannedRun, ...]:
        """The runs that choose an arm, in execution order."""
        arms = tuple(arm for arm in self.arms if not arm.is_perturbed)
        return interleaved_runs(
            arms, range(self.design.first_seed, self.design.first_seed + self.design.select_seeds)
        )

    def all_runs(self) -> tuple[PlannedRun, ...]:
        """Return the runs that choose an arm, and the runs that are compared."""
        return (*self.selection_runs, *self.runs())

    @property
    def arm_names(self) -> dict[str, str]:
        """Name of the arm of each run folder; a placebo has the baseline's name.

        Empty if the arms are modes.
        """
        if not self.design.arm_settings:
            return {}
        names = {arm.name: arm.name for arm in self.arms} | {PLACEBO: self.arms[0].name}
        runs = sorted(self.runs(), key=lambda run: self.arms.index(run.arm))
        return {run.name: names[run.arm.name] for run in runs}

    def runs(self, seeds: int | None = None) -> tuple[PlannedRun, ...]:
        """Return the compared runs of the first `seeds` seeds in execution order.

        None stands for all seeds.
        """
        count = self.design.seed_counts[-1] if seeds is None else seeds
        first = self.design.first_seed + self.design.select_seeds
        return interleaved_runs(self.compared_arms, range(first, first + count), self.design.folds)

    def expected_seconds(self, run: PlannedRun) -> float:
        return self.estimate_of(run.arm).run_seconds(run.arm.mode, self.size_of(run.arm))

    def estimate_of(self, arm: Arm) -> CostEstimate:
        """Return the measurements taken for the runs of an arm."""
        return self.arm_estimates.get(arm.name, self.estimate)

    def size_of(self, arm: Arm) -> TrainingSize:
        """Return the size of the runs of an arm, after reductions to fit the budget."""
        if self.overrides or arm.name not in self.arm_estimates:
            return self.size
        return self.arm_estimates[arm.name].size

    @property
    def overhead_share(self) -> float | None:
        """Ratio of the comparison's own time to its runs' time; None before the first run ended."""
        return self.own_seconds / self.runs_seconds if self.runs_seconds else None

    def with_analysis(self, seeds: int) -> Plan:
        """Return the plan after the results of `seeds` complete seeds were analysed.

        Analysing the same seeds again does not count as another analysis.
        """
        if seeds in self.seeds_analysed:
            return self
        return replace(self, seeds_analysed=(*self.seeds_analysed, seeds))


def interleaved_runs(arms: tuple[Arm, ...], seeds: range, folds: int = 0) -> tuple[PlannedRun, ...]:
    """Return the runs of all arms with all seeds and folds, in training order: seed by seed.

    The order of the arms rotates from seed to seed, so that drift of the machine affects all arms
    alike: over as many seeds as there are arms, each arm takes each position once.
    """
    return tuple(
        PlannedRun(arms[(position + rotation) % len(arms)], seed, fold)
        for rotation, seed in enumerate(seeds)
        for fold in (range(1, folds + 1) if folds else (0,))
        for position in range(len(arms))
    )


def read_plan(folder: Path) -> Plan | None:
    """Return the plan in a comparison's folder; None if there is none.

    Raises:
        InputError: plan.json exists and cannot be read.
    """
    path = folder / PLAN_NAME
    try:
        values, _ = read_hashed(path, SCHEMA, "Choose another --output_dir.")
        plan = from_json(Plan, values, "plan")
        if plan.design.metric is None or not plan.arms:
            raise ValueError("plan.design has no metric or no arms")
        remark_texts(plan.reductions)
        for arm in plan.arms:
            _check_estimate(plan, arm)
        return plan
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(
            f"{path}: the file is not a valid plan ({type(error).__name__}: {error}). Choose "
            "another --output_dir, or delete the file together with its runs."
        ) from error


def _check_estimate(plan: Plan, arm: Arm) -> None:
    """Check that the cost of a run of an arm was estimated."""
    estimate = plan.estimate_of(arm)
    for name, modes in (("modes", estimate.modes), ("executions", estimate.executions)):
        for mode in (arm.mode, BASELINE) if name == "modes" else (arm.mode,):
            if mode not in modes:
                raise ValueError(f"plan.estimate.{name}.{mode} is missing")
    if not plan.expected_seconds(PlannedRun(arm, 0)) < LONGEST_RUN:
        raise ValueError(f"plan.estimate says that a run of {arm.name} takes years")


def plan_difference(
    plan: Plan, requested: ComparisonDesign, arguments: Mapping[str, Any]
) -> str | None:
    """Return the first difference between a command and the plan in its folder; None if none.

    Args:
        requested: Design of the command; None for `modes` or `metric` stands for the plan's value.
        arguments: Settings of classify.py, with secrets redacted.
    """
    for name in (each.name for each in fields(ComparisonDesign) if each.name != "seed_counts"):
        planned, now = getattr(plan.design, name), getattr(requested, name)
        if planned != now and not (name in ("modes", "metric") and now is None):
            return _change(FLAG_NAMES.get(name, name), planned, now)
    for name in sorted(set(arguments) & set(plan.arguments)):
        if plan.arguments[name] != arguments[name]:
            return _change(name, plan.arguments[name], arguments[name])
    seeds = plan.design.seed_counts
    asked = requested.seed_counts
    new = [count for count in asked if count not in seeds]
    # New analyses may only follow those that were planned.
    if seeds == asked or (asked[-1] > seeds[-1] and min(new) > seeds[-1]):
        return None
    return _change("seeds", seeds, asked)


def _change(name: str, planned: object, requested: object) -> str:
    return f"--{name} was {_value_text(planned)} and is now {_value_text(requested)}"


def _value_text(value: object) -> str:
    if value is None or value == ():
        return "not set"
    return inert(",".join(map(str, value)) if isinstance(value, tuple) else str(value))


def keeps_model(plan: Plan, run: PlannedRun, keep_models: str) -> bool:
    """Return whether the weights of a complete run stay, by the value of `--keep_models`."""
    return keep_models == "all" or (keep_models == "baseline" and run.arm == plan.arms[0])


def with_more_seeds(plan: Plan, seed_counts: tuple[int, ...]) -> Plan:
    """Return the plan with more seeds, marked if results have already been analysed."""
    if seed_counts == plan.design.seed_counts:
        return plan
    notes = plan.notes
    if seed_counts[-1] > plan.design.seed_counts[-1] and plan.reductions:
        note = "Seeds were added after runs were reduced to fit the budget; runs keep that size."
        notes = (*notes, note)
    return replace(
        plan,
        design=replace(plan.design, seed_counts=seed_counts),
        added_after_analysis=plan.added_after_analysis or bool(plan.seeds_analysed),
        notes=notes,
    )
