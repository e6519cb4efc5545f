"""The settings of a comparison, and after `--` its runs' settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from ampft.arguments.classify import ClassifyArguments
from ampft.arguments.commands import Command, CommandLine, TrainingSettings
from ampft.arguments.flags import later_wins, parse_duration
from ampft.arguments.help_text import Help
from ampft.errors import InputError, did_you_mean
from ampft.flag import MAX_SEED, OUTPUT, flag
from ampft.precision.modes import BASELINE, MODES, is_fp32, mode_hint
from ampft.processes import ENGINES, LOCAL
from ampft.tasks.table import TASKS, problem_types
from ampft.text.json_io import Count, NotNegative, Positive, ValueRule, is_ascending, one_of

COMPARISON, EXECUTION = "comparison", "time and processes"

MIN_SEEDS = 3
MOST_SEEDS = 10_000
Seeds = Annotated[int, ValueRule(lambda count: 0 <= count <= MOST_SEEDS, f"0 to {MOST_SEEDS}")]
PLACEBO = "placebo"  # name of the arm
PROGRAM = "compare_precision.py"
KEPT_MODELS = ("none", "baseline", "all")

# Settings of classify.py that the comparison chooses for each run, and what to do instead; empty
# for a flag that the comparison has too.
SET_BY_COMPARISON = {
    "output_dir": "",
    "overwrite_output_dir": "finished runs are kept and unfinished ones start again; to repeat all "
    "runs, choose another --output_dir",
    "max_time": "all runs train for the same number of steps; limit the time of the comparison "
    "with --budget before ` -- `",
    "push_to_hub": "push one of the runs afterwards, with ampft push RUN",
    "folds": "",
    "evaluate_only": "a comparison trains its runs; evaluate with ampft train, and compare the "
    "folders with ampft compare RUN RUN",
    "perturb_initial_weights": "the placebo arm does this unless --no_placebo is set",
}
SET_BY_MODES = {  # the same if the arms are precisions
    "mixed_precision": "give the precisions before ` -- `, as in --modes fp32,bf16",
    "check_precision": "fp32 has nothing to compare; --yardstick before ` -- ` measures how "
    "exact the gradient of each mode is",
}


def parse_seeds(name: str, text: str) -> tuple[int, ...]:
    """Return the numbers of seeds at which a comparison is analysed, ascending.

    Args:
        name: Name of the flag, for the messages.

    Raises:
        InputError: It is not such a list.
    """
    parts = [part.strip() for part in text.split(",")]
    numbers = tuple(int(part) for part in parts if part.isascii() and part.isdigit())
    if len(numbers) != len(parts) or list(numbers) != sorted(set(numbers)):
        raise InputError(
            f"--{name}: received {text!r}; use a number such as 5, or increasing numbers for "
            "planned interim analyses, such as 5,10."
        )
    if numbers[0] < MIN_SEEDS:
        raise InputError(
            f"--{name}: received {text!r}; it must be at least {MIN_SEEDS}, because fewer seeds "
            "cannot tell a difference from chance. Use 3 for screening; the default is 5."
        )
    return numbers


@dataclass(frozen=True)
class ComparisonFlags:
    """The settings of every comparison. `--help` describes each."""

    seeds: str = flag(
        "5",
        "number of seeds, at least 3; 5,10 plans an interim analysis after 5 seeds and continues "
        "to 10 only if a verdict is still undecided",
        group=COMPARISON,
        metavar="N[,N]",
        check=parse_seeds,
    )
    metric: str | None = flag(
        None, "metric to compare; if none, the task's primary metric (accuracy)", group=COMPARISON
    )
    margin: float = flag(
        1.0,
        "equivalence margin: the largest difference that does not matter, in points",
        group=COMPARISON,
        metavar="POINTS",
        above=0,
        below=100,
    )
    no_placebo: bool = flag(
        False,
        "skip the placebo: the baseline trained again from slightly perturbed weights",
        group=COMPARISON,
    )
    anyway: bool = flag(
        False,
        "train even if the test data are too few for any verdict at the margin",
        group=COMPARISON,
    )
    folds: int | None = flag(
        None,
        "number of folds, for data without a test split: each seed divides the training data "
        "anew, and every row is predicted by a model that was not trained on it; the interval does "
        "not take folds for independent",
        group=COMPARISON,
        at_least=2,
    )
    budget: str | None = flag(
        None,
        "time limit for all runs, such as 90s, 15min or 1h30min; shortens training to stay within "
        "it, but never reduces the number of seeds",
        group=EXECUTION,
        metavar="TIME",
        check=parse_duration,
    )
    jobs: int = flag(
        1,
        "number of runs that train at the same time, each on GPUs of its own, or on its share of "
        "the CPU cores; on a CPU, speeds are then not ranked",
        group=EXECUTION,
        at_least=1,
    )
    gpus_per_run: int = flag(
        1, "GPUs of each run, with --jobs or --engine ray", group=EXECUTION, at_least=1
    )
    engine: str = flag(
        "local",
        "where runs train: local (this machine), or ray (the Ray cluster of RAY_ADDRESS, --jobs "
        "runs at a time, each on a node that is free)",
        group=EXECUTION,
        choices=ENGINES,
    )
    config_file: str | None = flag(
        None, "configuration file that accelerate launch uses for every run", group=EXECUTION
    )
    keep_models: str = flag(
        "all",
        "whose weights stay in the folder: none, baseline, or all; records, reports and "
        "predictions always stay",
        group=OUTPUT,
        choices=KEPT_MODELS,
    )
    output_dir: str | None = flag(
        None, "folder for the comparison; if none, one under comparisons/", group=OUTPUT
    )


@dataclass(frozen=True)
class ModeFlags:
    """The precisions of a comparison."""

    modes: str | None = flag(
        None,
        f"comma-separated precisions out of {', '.join(MODES)}; if none, those of fp32,bf16,fp16 "
        "that this machine supports",
        group=COMPARISON,
        metavar="a,b",
        joined=True,
    )
    yardstick: bool = flag(
        False,
        "also measure the gradient error of each mode relative to the batch noise",
        group=COMPARISON,
    )


@dataclass(frozen=True)
class CompareArguments(ComparisonFlags, ModeFlags):
    """The settings of a comparison of precisions."""


@dataclass(frozen=True)
class ArmSettings:
    """The name of an arm and its settings, as a user wrote them."""

    name: str  # Name of the arm, also in names of folders.
    flags: tuple[str, ...]  # Flags of classify.py that differ from those that all arms share.
    mode: str  # Precision of its runs.

    def __str__(self) -> str:
        return f"{self.name}: {shlex.join(self.flags)}".rstrip(": ")


@dataclass(frozen=True, kw_only=True)
class ComparisonDesign:
    """What is compared, and how: fixed before the first run, and kept in the plan."""

    # Precisions, the baseline first; None if the arms have other settings, and in a command for the
    # default.
    modes: tuple[Annotated[str, one_of(MODES)], ...] | None
    # Settings of the arms, the baseline first; empty if the arms are precisions.
    arm_settings: tuple[ArmSettings, ...]
    first_seed: Count  # Seed of the first run of each arm; the other seeds follow consecutively.
    metric: str | None  # Name of the primary metric; None in a command for the task's metric.
    margin: float  # Equivalence margin as a fraction (0.01 is one point).
    placebo: bool  # Whether the baseline is also trained from perturbed initial weights.
    config_file: str | None  # Configuration file of Accelerate.
    budget: NotNegative | None  # Time limit in seconds; None for no limit.
    # Number of seeds, before the others, that choose one of the arms on validation; 0 compares all.
    select_seeds: Seeds
    # Numbers of seeds at which the results are analysed; the last is the total.
    seed_counts: Annotated[tuple[Seeds, ...], ValueRule(is_ascending, "ascending, and not empty")]
    jobs: Positive = 1  # Number of runs that train at the same time.
    gpus_per_run: Positive = 1  # GPUs of each run if several train at the same time.
    draws: bool = False  # Whether each seed also draws its own rows, as `--data_seed`.
    engine: Annotated[str, one_of(ENGINES)] = LOCAL  # Where runs train, one of `ENGINES`.
    folds: Count = 0  # Number of folds, each a run of its own; 0 for none.


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """A parsed command line."""

    design: ComparisonDesign  # What is compared, and how; the plan of the comparison keeps it.
    settings: ComparisonFlags  # What the user set, for what the plan does not keep.
    yardstick: bool  # Whether the noise yardstick is measured.
    classify_argv: tuple[str, ...]  # Command line arguments after `--`, for classify.py.
    classify: ClassifyArguments  # Settings of classify.py, parsed from `classify_argv`.
    notes: tuple[str, ...] = ()  # Notes to print.
    # Time at which the command began, in seconds since the epoch; None for the start of the
    # process.
    started: float | None = None


def parse_compare_arguments(
    argv: Sequence[str] | None = None, *, program: str = PROGRAM, trainer: str = "classify.py"
) -> CompareCommand:
    """Parse the command line of `recipes/compare_precision.py` or of `ampft compare`.

    Args:
        argv: Command line arguments; `sys.argv[1:]` if None.
        trainer: Name of the program that trains one run.

    Raises:
        InputError: A flag of the comparison or of its runs is unknown, has an invalid value, or
            conflicts with another.
    """
    return PRECISIONS(argv, program=program, trainer=trainer)


def command_of_precisions(line: CommandLine[CompareArguments]) -> CompareCommand:
    """Return the comparison of precisions that a command line asks for.

    Raises:
        InputError: A setting has an invalid value.
    """
    modes: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    if line.flags.modes is not None:
        named = parse_mode_list("--modes", line.flags.modes, MODES)
        modes = baseline_first(named)
        if BASELINE not in named:
            notes = (f"{BASELINE} was added as the baseline.",)
    return comparison_command(
        line.flags,
        line.after,
        line.training,
        modes=modes,
        notes=notes,
        yardstick=line.flags.yardstick,
    )


def comparison_command(
    settings: ComparisonFlags,
    classify_argv: Sequence[str],
    classify: ClassifyArguments,
    *,
    modes: tuple[str, ...] | None = None,
    arms: tuple[ArmSettings, ...] = (),
    notes: tuple[str, ...] = (),
    yardstick: bool = False,
    select_seeds: int = 0,
) -> CompareCommand:
    """Return the command with these settings, after checking them.

    Args:
        classify_argv: Command line arguments that all runs share.
        classify: Settings of the runs of the baseline.
        yardstick: Whether the noise yardstick is measured.
        select_seeds: Number of seeds that choose one of the arms.

    Raises:
        InputError: A setting is out of range.
    """
    seed_counts = parse_seeds("seeds", settings.seeds)
    total = select_seeds + seed_counts[-1]
    if classify.seed + total - 1 > MAX_SEED:
        raise InputError(
            f"--seed {classify.seed}: {total} seeds starting there exceed {MAX_SEED}. "
            "Use a smaller first seed."
        )
    if yardstick and settings.engine != LOCAL:
        raise InputError(
            f"--yardstick with --engine {settings.engine}: it is measured on this machine, not on "
            "a node. Use ampft yardstick instead."
        )
    if settings.config_file is not None and not Path(settings.config_file).is_file():
        raise InputError(f"--config_file {settings.config_file}: the file does not exist.")
    if settings.folds is not None:
        folds = ("--folds", str(settings.folds))
        classify_argv = later_wins(ClassifyArguments, classify_argv, folds)
        classify = replace(classify, folds=settings.folds)
    design = ComparisonDesign(
        modes=modes,
        arm_settings=arms,
        first_seed=classify.seed,
        metric=_requested_metric(settings.metric, classify.task),
        margin=settings.margin / 100,
        placebo=not settings.no_placebo and settings.folds is None,
        config_file=settings.config_file,
        budget=None if settings.budget is None else parse_duration("budget", settings.budget),
        select_seeds=select_seeds,
        seed_counts=seed_counts,
        jobs=settings.jobs,
        gpus_per_run=settings.gpus_per_run,
        engine=settings.engine,
        draws=settings.folds is not None,
        folds=settings.folds or 0,
    )
    return CompareCommand(
        design=design,
        settings=settings,
        yardstick=yardstick,
        classify_argv=tuple(classify_argv),
        classify=classify,
        notes=notes,
    )


def _requested_metric(name: str | None, task: str | None) -> str | None:
    """Return the metric to compare; None for the primary one of a task that the data will show."""
    if task is not None:
        return chosen_metric(name, list(TASKS[task].problem_type().metrics))
    if name is None:
        return None
    known = [metric for problem in problem_types().values() for metric in problem.metrics]
    return chosen_metric(name, list(dict.fromkeys(known)))


def chosen_metric(name: str | None, metrics: Sequence[str]) -> str:
    """Return `name`, or the first metric if `name` is None.

    Raises:
        InputError: `name` is not among the metrics.
    """
    if name is None:
        return metrics[0]
    if name not in metrics:
        raise InputError(
            f"--metric: received {name!r}.{without_interval(name) or did_you_mean(name, metrics)} "
            f"Choose from {', '.join(metrics)}."
        )
    return name


def without_interval(name: str) -> str:
    """Return why a comparison cannot have a metric that a run can have; empty for others."""
    if name.endswith(("roc_auc", "average_precision")):
        reason = "It depends on pairs of examples, not on sums over examples"
    elif name.endswith(".py") or "/" in name:
        reason = "A metric of the package evaluate may not be a sum over examples"
    else:
        return ""
    return f" {reason}, so it has no interval. The report of each run has it."


def parse_mode_list(option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the modes of a comma-separated list.

    Raises:
        InputError: A mode is unknown or listed twice, or only the baseline is listed.
    """
    listed = (part.strip().lower() for part in text.split(","))
    modes = tuple(BASELINE if is_fp32(mode) else mode for mode in listed)
    for mode in modes:
        check_mode(option, text, mode, allowed)
        if modes.count(mode) > 1:
            raise InputError(f"{option}: received {text!r}; {mode} appears twice.")
    if set(modes) == {BASELINE}:
        raise InputError(
            f"{option}: received {text!r}; give a precision to compare with {BASELINE}, such as "
            f"{option} fp32,bf16."
        )
    return modes


def check_mode(option: str, text: str, mode: str, allowed: Sequence[str]) -> None:
    """Check that a mode in the value `text` of a flag is one of `allowed`.

    Raises:
        InputError: It is not.
    """
    if mode not in allowed:
        hint = mode_hint(mode) or did_you_mean(mode, allowed)
        raise InputError(
            f"{option}: received {text!r}; {mode!r} is not a precision.{hint} Choose from "
            f"{', '.join(allowed)}."
        )


def baseline_first(modes: Sequence[str]) -> tuple[str, ...]:
    """Return the baseline and then the other modes."""
    return (BASELINE, *(mode for mode in modes if mode != BASELINE))


PRECISIONS = Command(
    CompareArguments,
    command_of_precisions,
    Help(
        "Compare precisions statistically: train every mode with several seeds, one process per "
        "run, and write a report. Settings of a training that all runs share follow after ` -- `."
    ),
    TrainingSettings(SET_BY_COMPARISON | SET_BY_MODES),
    reads_config=True,
)
